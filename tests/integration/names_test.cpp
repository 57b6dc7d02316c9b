// A name server that does not answer delays the job, but not a user who wants to end it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::IsEmpty;

class NameLookup : public ::testing::Test {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
 protected:
  void SetUp() override { GTEST_SKIP() << "what is preloaded has to come after the sanitizer"; }
#endif
};

TEST_F(NameLookup, IsCutShortByASignal) {
  const std::vector<std::string> cases[] = {
      {"--master-addr=node1.silent"},
      {"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29471",
       "--local-addr=node1.silent"},
      {"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node1.silent:29400"},
      {"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=node1.silent:2379"},
  };
  for (const auto& options : cases) {
    for (const int signal : {SIGINT, SIGTERM}) {
      SCOPED_TRACE(options.back());
      Job job(ddprun(options, {"/bin/true"}),
              {.environment = {{"LD_PRELOAD", DDPRUN_SILENT_NAMES}}});
      ASSERT_TRUE(job.reaches([&] { return handles(job.pid(), signal); })) << job.err();
      job.signal(signal);
      EXPECT_EQ(job.wait(seconds(10)), exited(128 + signal)) << job.err();
      EXPECT_THAT(job.left_over(), IsEmpty());
    }
  }
}

// It has no handlers until it listens.
TEST_F(NameLookup, OfALeaderThatIsNoNodeIsCutShortByASignal) {
  Job job(ddpctl({"leader", "--listen=node1.silent:0", "--nnodes=2"}),
          {.environment = {{"LD_PRELOAD", DDPRUN_SILENT_NAMES}}});
  ASSERT_TRUE(job.reaches([&] {
    return read_file("/proc/" + std::to_string(job.pid()) + "/wchan").find("pause") !=
           std::string::npos;
  }));
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(seconds(10)), killed_by(SIGINT));
}

}  // namespace
}  // namespace ddprun::test
