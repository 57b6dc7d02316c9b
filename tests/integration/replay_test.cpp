// ddpctl replay: for jobs recorded with --record it makes the same decisions again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int kFailed = 1;
constexpr int kDamaged = 3;
constexpr int kDiffers = 4;

Told replay(const std::string& file) { return run_to_its_end(ddpctl({"replay", file})); }

// With a restart.
std::string record(const TemporaryTree& folder) {
  const std::string file = folder / "record";
  Job job(ddprun({"--max-restarts=1", "--record=" + file}, worker({"on-round", "0", "exit", "3"})));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  return file;
}

TEST(Replay, TellsEveryDecisionOfAJobAndWhatLedToIt) {
  const TemporaryTree folder;
  const Told told = replay(record(folder));
  EXPECT_EQ(told.code, 0) << told.out << told.err;
  EXPECT_THAT(told.out, HasSubstr("leader  begins: job none, 1 to 1 node, 1 restarts\n"));
  EXPECT_THAT(told.out, HasSubstr("leader  node 0: WorkerFailed of round 0: rank 0"));
  EXPECT_THAT(
      told.out,
      HasSubstr("running (round 0) -> stopping (round 0)\n              because a failure "));
  EXPECT_THAT(told.out, HasSubstr("this costs a restart\n"));
  EXPECT_THAT(told.out, HasSubstr(", 1 node of 1 to 1 ready, 1 of 1 restarts used\n"));
  EXPECT_THAT(told.out, HasSubstr("because every worker of every node has ended with 0\n"));
  EXPECT_THAT(told.out, HasSubstr("all decisions were the same as in the recording\n"));
}

TEST(Replay, OfSeveralNodesEachHasItsPart) {
  const TemporaryTree folder;
  Cluster cluster({.meeting = Meeting::kC10d, .nnodes = "2:2"});
  cluster.start(0, {"--record=" + (folder / "0")});
  cluster.start(1, {"--record=" + (folder / "1")});
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  cluster[1].signal(SIGKILL);
  EXPECT_EQ(cluster[1].wait(), killed_by(SIGKILL));
  cluster.start(2);
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  cluster.let_finish();
  EXPECT_EQ(cluster[0].wait(), exited(0)) << cluster.told();

  const Told leader = replay(folder / "0");
  EXPECT_EQ(leader.code, 0) << leader.out << leader.err;
  EXPECT_THAT(leader.out, AllOf(HasSubstr("its connection broke"), HasSubstr("it costs no restart"),
                                HasSubstr("leader  begins")));
  const Told killed = replay(folder / "1");
  EXPECT_EQ(killed.code, 0) << killed.out << killed.err;
  EXPECT_THAT(killed.out, AllOf(Not(HasSubstr("leader  begins")), HasSubstr("start the workers")));
}

TEST(Replay, AFileThatIsCutOffIsPlayedAsFarAsItGoes) {
  const TemporaryTree folder;
  const std::string whole = read_file(record(folder));
  const std::string cut = folder / "cut";
  write_file(cut, whole.substr(0, whole.size() - 20));
  const Told told = replay(cut);
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_THAT(told.out, HasSubstr("is cut off: the recording ends here\n"));
  EXPECT_THAT(told.out, HasSubstr("all decisions were the same as in the recording"));
}

TEST(Replay, WhatIsNoRecordingIsRefused) {
  const TemporaryTree folder;
  const std::string file = folder / "file";
  EXPECT_EQ(replay(file).code, kFailed);
  write_file(file, "");
  EXPECT_EQ(replay(file).code, kDamaged);
  write_file(file, "{\"event\":\"job_started\"}\n");
  EXPECT_THAT(replay(file).err, HasSubstr(file + ", line 1: the line cannot be read"));
  const std::string whole = read_file(record(folder));
  std::string damaged = whole;
  damaged[whole.find('\n') + 5] = '!';
  write_file(file, damaged);
  const Told told = replay(file);
  EXPECT_EQ(told.code, kDamaged);
  EXPECT_THAT(told.err, HasSubstr("line 2"));
}

TEST(Replay, ADecisionThatIsAnotherOneNowIsPointedAt) {
  const TemporaryTree folder;
  const std::string file = record(folder);
  std::string text = read_file(file);
  const std::string said = "\"decisions\":1";
  text.replace(text.find(said), said.size(), "\"decisions\":2");
  write_file(file, text);
  const Told told = replay(file);
  EXPECT_EQ(told.code, kDiffers);
  EXPECT_THAT(told.out, HasSubstr("DIFFERS: 2 decisions then, 1 now\n"));
}

TEST(Replay, AFileThatCannotBeWrittenIsRefusedBeforeAnythingStarts) {
  Job job(ddprun({"--record=/no/such/folder/file"}, worker({"exit", "0"})));
  EXPECT_EQ(job.wait(), exited(2));
  EXPECT_THAT(job.err(), HasSubstr("--record=/no/such/folder/file: it cannot be written"));
}

}  // namespace
}  // namespace ddprun::test
