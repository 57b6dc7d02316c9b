#include "launcher/plan/leader_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_tree.h"

namespace ddprun::cli {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Words = std::vector<std::string>;

Result<rdzv::LeaderJob> read(Words words, std::vector<std::string>& warnings,
                             const std::string& listen = "0.0.0.0:29400",
                             const Environment& environment = {}) {
  const auto line = parse_command_line(words);
  EXPECT_TRUE(line);
  return read_leader_job(listen, resolve(*line, environment, {}), /*is_in_slurm_job=*/false,
                         warnings);
}

std::string refusal(const Words& words, const std::string& listen = "0.0.0.0:29400") {
  std::vector<std::string> warnings;
  const auto job = read(words, warnings, listen);
  EXPECT_FALSE(job) << testing::PrintToString(words);
  if (job) return {};
  EXPECT_EQ(job.error().code, ErrorCode::kInvalidArgument);
  return job.error().to_string();
}

TEST(LeaderOptions, MeanWhatTheyMeanToDdprun) {
  std::vector<std::string> warnings;
  const auto job = read({"--nnodes=2:4", "--rdzv-id=job7", "--max-restarts=3", "--min-uptime=2",
                         "--restart-pause=1:60", "--final-exit-codes=2",
                         "--rdzv-conf=join_timeout=60,last_call_timeout=5,keep_alive_interval=1,"
                         "reconnect_grace=500,replace_timeout=7"},
                        warnings);
  ASSERT_TRUE(job) << job.error().to_string();
  EXPECT_EQ(job->listen, (rdzv::Endpoint{"0.0.0.0", 29400}));
  EXPECT_EQ(job->round.run_id, "job7");
  EXPECT_EQ(job->round.min_nodes, 2);
  EXPECT_EQ(job->round.max_nodes, 4);
  EXPECT_EQ(job->round.restarts.max_restarts, 3);
  EXPECT_EQ(job->round.restarts.min_uptime, 2s);
  EXPECT_EQ(job->round.restarts.pause_after_failure, (rdzv::Backoff{1s, 60s}));
  EXPECT_THAT(job->round.restarts.final_exit_codes, ElementsAre(2));
  EXPECT_EQ(job->round.join_timeout, 60s);
  EXPECT_EQ(job->round.last_call_timeout, 5s);
  EXPECT_EQ(job->round.replace_timeout, 7s);
  EXPECT_EQ(job->round.reconnect_grace, 500ms);
  EXPECT_EQ(job->keep_alive, (rdzv::KeepAlive{1s, 3, 500ms}));
  EXPECT_THAT(warnings, IsEmpty());
}

TEST(LeaderOptions, LeadNoNodeOfTheirOwnAndAnyProgramThatComesFirst) {
  std::vector<std::string> warnings;
  const auto job = read({"--nnodes=2"}, warnings, "[::]:0");
  ASSERT_TRUE(job);
  EXPECT_EQ(job->listen, (rdzv::Endpoint{"::", 0}));
  EXPECT_EQ(job->round.own_node, std::nullopt);
  EXPECT_EQ(job->round.program, "");
  EXPECT_EQ(job->round.user, "");
  EXPECT_FALSE(job->round.has_exact_ranks);
  EXPECT_EQ(job->round.run_id, "none");
  EXPECT_EQ(job->round.join_timeout, 600s);
}

TEST(LeaderOptions, ComeFromTheEnvironmentToo) {
  std::vector<std::string> warnings;
  const auto job = read({}, warnings, "0.0.0.0:1",
                        {{"PET_NNODES", "3"}, {"DDPRUN_RDZV_CONF", "joint_timeout=1"}});
  ASSERT_TRUE(job);
  EXPECT_EQ(job->round.max_nodes, 3);
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("did you mean join_timeout?")));
}

TEST(LeaderOptions, TheTokenIsRead) {
  const TemporaryTree tree;
  const std::string file = tree.write("token", "s3cret\n", 0600);
  std::vector<std::string> warnings;
  EXPECT_EQ(read({"--nnodes=2", "--token-file=" + file}, warnings)->proof.token, "s3cret");
  EXPECT_EQ(read({"--nnodes=2", "--rdzv-conf=token_file=" + file}, warnings)->proof.token,
            "s3cret");
  EXPECT_EQ(read({"--nnodes=2"}, warnings)->proof.token, "");
  EXPECT_THAT(refusal({"--nnodes=2", "--token-file=/no/such/file"}),
              HasSubstr("--token-file=/no/such/file: "));
}

TEST(LeaderOptions, WrongOnesAreRefusedWithASentence) {
  EXPECT_THAT(refusal({}), HasSubstr("--nnodes=1:1: one node leads itself"));
  EXPECT_THAT(refusal({"--nnodes=x"}), HasSubstr("or MIN:MAX"));
  EXPECT_THAT(refusal({"--nnodes=2", "--rdzv-id="}), HasSubstr("--rdzv-id: give the nodes'"));
  EXPECT_THAT(refusal({"--nnodes=2", "--rdzv-id=" + std::string(1025, 'x')}),
              HasSubstr("of 1 to 1024 bytes"));
  EXPECT_THAT(refusal({"--nnodes=2", "--max-restarts=-1"}), HasSubstr("--max-restarts=-1"));
  EXPECT_THAT(refusal({"--nnodes=2", "--rdzv-conf=join_timeout=0"}), HasSubstr("join_timeout"));
  for (const std::string listen : {"", "node0", "node0:x", "node0:65536"}) {
    EXPECT_THAT(refusal({"--nnodes=2"}, listen), HasSubstr("--listen=" + listen + ": "));
  }
}

}  // namespace
}  // namespace ddprun::cli
