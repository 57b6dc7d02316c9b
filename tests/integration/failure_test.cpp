// What a failed job leaves for those who do not read the terminal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

JobSetup with(const std::string& name, const std::string& value) {
  JobSetup setup;
  setup.environment[name] = value;
  return setup;
}

TEST(Failure, IsTheTerminationMessageOfTheContainer) {
  const TempDir folder;
  write_file(folder / "message", "");
  const auto setup = with("DDPRUN_TERMINATION_LOG", folder / "message");
  Job good(ddprun({}, worker({"exit", "0"})), setup);
  EXPECT_EQ(good.wait(), exited(0));
  EXPECT_EQ(read_file(folder / "message"), "");
  Job bad(ddprun({}, worker({"complain", "no data", "exit", "3"})), setup);
  EXPECT_EQ(bad.wait(), exited(3));
  EXPECT_THAT(read_file(folder / "message"), StartsWith("ddprun: "));
  EXPECT_THAT(read_file(folder / "message"), HasSubstr("| no data"));
}

TEST(Failure, ReachesTheLauncherOutsideThroughItsErrorFile) {
  const TempDir folder;
  const auto setup = with("TORCHELASTIC_ERROR_FILE", folder / "error.json");
  Job told(ddprun({"--nproc-per-node=2"}, worker({"on-rank", "1", "error-file", "ValueError: x",  //
                                                  "on-rank", "1", "exit", "3", "wait"})),
           setup);
  EXPECT_EQ(told.wait(), exited(3));
  EXPECT_EQ(read_file(folder / "error.json"),
            R"({"message":{"message":"ValueError: x","extraInfo":{"py_callstack":"",)"
            R"("timestamp":"1760000000"},"errorCode":3}})");
  Job killed(ddprun({}, worker({"signal", "9"})), setup);
  EXPECT_EQ(killed.wait(), exited(137));
  EXPECT_THAT(read_file(folder / "error.json"), HasSubstr("was killed by SIGKILL"));
}

}  // namespace
}  // namespace ddprun::test
