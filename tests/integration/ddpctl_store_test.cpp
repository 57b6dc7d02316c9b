// ddpctl store as a user runs it: its output and how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>

#include "tests/support/ddpctl.h"
#include "tests/support/store_process.h"

namespace ddprun::rdzv::testing {
namespace {

using ::testing::StartsWith;

class DdpctlStore : public ::testing::Test {
 protected:
  test::CommandOutcome run(const std::string& command, const std::string& arguments = "") {
    return test::ddpctl("store " + command + " 127.0.0.1:" + std::to_string(store_.port()) + " " +
                        arguments);
  }
  StoreProcess store_;
};

TEST_F(DdpctlStore, SetsGetsAddsListsAndDeletes) {
  EXPECT_EQ(run("set", "dir/key 'a value'").code, 0);
  EXPECT_EQ(run("get", "dir/key").output, "a value");
  EXPECT_EQ(run("add", "n 5").output, "5\n");
  EXPECT_EQ(run("add", "n -- -7").output, "-2\n");
  EXPECT_EQ(run("set", "\"$(printf 'line\\nbreak')\" x").code, 0);
  EXPECT_EQ(run("list").output, "dir/key\nline\\x0abreak\nn\n");
  EXPECT_EQ(run("wait", "n dir/key").code, 0);
  EXPECT_NE(run("stats").output.find("keys        3\n"), std::string::npos);
  EXPECT_EQ(run("delete", "n dir/key").code, 0);
  EXPECT_EQ(
      test::ddpctl("store set 127.0.0.1:" + std::to_string(store_.port()) + " k - </dev/null").code,
      0);
  EXPECT_EQ(run("get", "k").output, "");
}

TEST_F(DdpctlStore, HasAnExitCodeForEachKindOfFailure) {
  EXPECT_EQ(test::ddpctl("store get 127.0.0.1 k").code, 2);
  EXPECT_EQ(test::ddpctl("store").code, 2);
  EXPECT_EQ(test::ddpctl("shop").code, 2);
  EXPECT_EQ(test::ddpctl("store get name.invalid:1 k").code, 3);
  EXPECT_EQ(run("wait", "absent --timeout 0.05").code, 5);
  EXPECT_EQ(run("get", "absent").code, 6);
  EXPECT_EQ(run("delete", "absent").code, 6);
  EXPECT_EQ(run("set", "text abc").code, 0);
  EXPECT_EQ(run("add", "text").code, 7);
  EXPECT_EQ(test::ddpctl("store --listen localhost:0").code, 2);
  EXPECT_EQ(test::ddpctl("store --listen 127.0.0.1:" + std::to_string(store_.port())).code, 8);
}

TEST_F(DdpctlStore, SaysWhatFailedWhereInOneLine) {
  const std::string where = "127.0.0.1:" + std::to_string(store_.port());
  EXPECT_EQ(run("get", "absent").output,
            "ddpctl: the store at " + where + " has no key 'absent'\n");
  EXPECT_EQ(run("wait", "absent --timeout 0.05").output,
            "ddpctl: not set within 50 ms: 'absent' (store: " + where + ")\n");
}

TEST_F(DdpctlStore, TakesTimesWithUnits) {
  EXPECT_THAT(run("wait", "absent --timeout=50ms").output,
              StartsWith("ddpctl: not set within 50 ms"));
  EXPECT_THAT(run("get", "absent --wait=0.05s").output, StartsWith("ddpctl: not set within 50 ms"));
  EXPECT_EQ(run("set", "key value --timeout=1m30s").code, 0);
}

TEST(DdpctlTimes, AWrongOneIsSaidToBeOneAndWhatWouldBeRight) {
  const std::string right = ", such as 30 or 0.5, or as in 90s, 5m, 2h\n";
  const auto refuses = [](const std::string& command, const std::string& sentence) {
    const test::CommandOutcome outcome = test::ddpctl(command);
    EXPECT_EQ(outcome.code, 2) << command;
    EXPECT_THAT(outcome.output, StartsWith(sentence));
  };
  for (const std::string wrong : {"5x", "-1", "1e99", "nan"}) {
    refuses("store get 127.0.0.1:1 k --timeout=" + wrong,
            "--timeout: " + wrong + " is no such time; give seconds" + right);
    refuses("store get 127.0.0.1:1 k --wait=" + wrong,
            "--wait: " + wrong + " is no such time; give seconds" + right);
    refuses("doctor --timeout=" + wrong,
            "--timeout: " + wrong + " is no such time; give seconds, at least 0.001" + right);
  }
  refuses("doctor --timeout=0",
          "--timeout: 0 is no such time; give seconds, at least 0.001" + right);
  refuses("status --watch --interval=50ms",
          "--interval: 50ms is no such time; give seconds, at least 0.1" + right);
}

TEST(DdpctlStoreServer, ServesUntilTerm) {
  // The shell prints ddpctl's pid, then becomes ddpctl.
  FILE* pipe = ::popen("echo $$; exec " DDPRUN_DDPCTL " store --listen 127.0.0.1:0", "r");
  char pid[32], address[64];
  ASSERT_NE(::fgets(pid, sizeof pid, pipe), nullptr);
  ASSERT_NE(::fgets(address, sizeof address, pipe), nullptr);
  std::string where = address;
  where.pop_back();
  EXPECT_EQ(test::ddpctl("store add " + where + " n").output, "1\n");
  ASSERT_EQ(::kill(std::stoi(pid), SIGTERM), 0);
  EXPECT_EQ(::pclose(pipe), 0);
  EXPECT_EQ(test::ddpctl("store get " + where + " n").code, 3);
}

}  // namespace
}  // namespace ddprun::rdzv::testing
