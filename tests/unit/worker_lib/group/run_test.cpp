// What run() changes in the process.
#include "ddprun/run.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <exception>
#include <string>

namespace ddprun::test {
namespace {

class RunTest : public ::testing::Test {
 protected:
  RunTest() : before_(::signal(SIGPIPE, SIG_DFL)) {}
  ~RunTest() override { ::signal(SIGPIPE, before_); }

  static sighandler_t action_of_sigpipe() {
    struct sigaction now {};
    ::sigaction(SIGPIPE, nullptr, &now);
    return now.sa_handler;
  }
  static sighandler_t action_in_run(const ContextOptions& options) {
    std::string name = "program";
    char* arguments[] = {name.data(), nullptr};
    sighandler_t found = SIG_ERR;
    EXPECT_EQ(run(
                  1, arguments, [&](Context&) { found = action_of_sigpipe(); }, options),
              0);
    return found;
  }

 private:
  sighandler_t before_;
};

TEST_F(RunTest, IgnoresSigpipeUnlessItIsToldNotTo) {
  EXPECT_EQ(action_in_run({.ignore_sigpipe = false}), SIG_DFL);
  EXPECT_EQ(action_in_run({}), SIG_IGN);
}

TEST_F(RunTest, LeavesAHandlerOfSigpipeAlone) {
  const auto handle = [](int) {};
  ::signal(SIGPIPE, handle);
  EXPECT_EQ(action_in_run({.ignore_sigpipe = true}), static_cast<sighandler_t>(handle));
}

TEST_F(RunTest, AContextByItselfLeavesSigpipeAlone) {
  const Context context({.backend = Backend::kGloo});
  EXPECT_EQ(action_of_sigpipe(), SIG_DFL);
}

TEST_F(RunTest, TheHandlerOfTerminateIsThatOfTheProgramAgainAfterwards) {
  const std::terminate_handler before = std::get_terminate();
  std::terminate_handler inside = nullptr;
  std::string name = "program";
  char* arguments[] = {name.data(), nullptr};
  EXPECT_EQ(run(1, arguments, [&](Context&) { inside = std::get_terminate(); }), 0);
  EXPECT_NE(inside, before);
  EXPECT_EQ(std::get_terminate(), before);
}

}  // namespace
}  // namespace ddprun::test
