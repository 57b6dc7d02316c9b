#include "launcher/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/plan_text.h"
#include "tests/unit/launcher/temporary_tree.h"

namespace ddprun::cli {
namespace {

using agent::StreamSet;
using testing::HasSubstr;

// A machine with 6 CPUs and no GPU, and a program called "prog".
class Planning : public testing::Test {
 protected:
  Planning() {
    tree_.write("cwd/prog", "x", 0755);
    tree_.write("sys/devices/system/cpu/online", "0-5\n");
    surroundings_.places = {tree_ / "cwd", tree_ / "bin"};
    surroundings_.machine = {tree_.path(), ""};
    surroundings_.random_run_id = "random-id";
  }

  Result<Plan> plan(std::vector<std::string> words, const Environment& environment = {}) {
    words.push_back("prog");
    const auto line = parse_command_line(words);
    if (!line) return fail(line.error());
    return make_plan(resolve(*line, environment, {}), line->command, environment, surroundings_);
  }
  agent::Job job(const std::vector<std::string>& words, const Environment& environment = {}) {
    const auto made = plan(words, environment);
    EXPECT_TRUE(made) << made.error().to_string();
    return made ? made->job : agent::Job{};
  }
  std::string refusal(const std::vector<std::string>& words, const Environment& environment = {}) {
    const auto made = plan(words, environment);
    EXPECT_FALSE(made) << testing::PrintToString(words);
    if (made) return {};
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
    return made.error().to_string();
  }

  void add_gpus(int count) {
    for (int i = 0; i < count; ++i) tree_.write("dev/nvidia" + std::to_string(i), "");
  }

  TemporaryTree tree_;
  Surroundings surroundings_;
};

TEST_F(Planning, DefaultsAreTorchruns) {
  const agent::Job made = job({}, {{"HOME", "/root"}});
  EXPECT_EQ(made.local_world_size, 1);
  EXPECT_EQ(made.max_restarts, 0);
  EXPECT_EQ(made.run_id, "none");
  EXPECT_EQ(made.role, "default");
  EXPECT_EQ(made.output, agent::OutputSpec{});
  EXPECT_EQ(made.environment, (Environment{{"HOME", "/root"}}));
  EXPECT_EQ(made.program.path, tree_ / "cwd/prog");
}

TEST_F(Planning, CountsWorkersAsAsked) {
  EXPECT_EQ(job({"--nproc-per-node=3"}).local_world_size, 3);
  EXPECT_EQ(job({"--nproc-per-node=4096"}).local_world_size, 4096);
  EXPECT_EQ(job({"--nproc-per-node=cpu"}).local_world_size, 6);
  EXPECT_EQ(job({"--nproc-per-node=auto"}).local_world_size, 6);
  add_gpus(4);
  EXPECT_EQ(job({"--nproc-per-node=gpu"}).local_world_size, 4);
  EXPECT_EQ(job({"--nproc-per-node=auto"}).local_world_size, 4);
  EXPECT_EQ(job({"--nproc-per-node=cpu"}).local_world_size, 6);
  EXPECT_EQ(job({"--nproc-per-node=gpu"}, {{"CUDA_VISIBLE_DEVICES", "2,3"}}).local_world_size, 2);
  EXPECT_EQ(job({"--nproc-per-node=auto"}, {{"CUDA_VISIBLE_DEVICES", ""}}).local_world_size, 6);
}

TEST_F(Planning, RefusesWorkerCountsThatMakeNoSense) {
  for (const std::string text : {"0", "-1", "4097", "99999999999999999999"}) {
    EXPECT_THAT(refusal({"--nproc-per-node=" + text}),
                HasSubstr("--nproc-per-node=" + text + ": "));
  }
  for (const std::string text : {"two", "", "2x", " 2", "1.5"}) {
    EXPECT_THAT(refusal({"--nproc-per-node=" + text}), HasSubstr("or auto, cpu or gpu")) << text;
  }
  EXPECT_THAT(refusal({"--nproc-per-node=gpu"}), HasSubstr("no GPU was found"));
  EXPECT_THAT(refusal({"--nproc-per-node=gpu"}, {{"CUDA_VISIBLE_DEVICES", "-1"}}),
              HasSubstr("CUDA_VISIBLE_DEVICES is set to '-1'"));
}

TEST_F(Planning, AWrongValueNamesTheVariableItCameFrom) {
  EXPECT_THAT(refusal({}, {{"PET_NPROC_PER_NODE", "two"}}), HasSubstr("PET_NPROC_PER_NODE=two: "));
  EXPECT_THAT(refusal({}, {{"DDPRUN_MAX_RESTARTS", "-1"}}), HasSubstr("DDPRUN_MAX_RESTARTS=-1: "));
  EXPECT_THAT(refusal({}, {{"PET_STANDALONE", ""}}), HasSubstr("PET_STANDALONE=: give 1 (on)"));
}

TEST_F(Planning, ReadsRestarts) {
  EXPECT_EQ(job({"--max-restarts=7"}).max_restarts, 7);
  for (const std::string text : {"-1", "x", "", "1.0", "99999999999"}) {
    EXPECT_THAT(refusal({"--max-restarts=" + text}), HasSubstr("give a whole number of 0 or more"));
  }
}

TEST_F(Planning, StandaloneHasARunIdOfItsOwn) {
  EXPECT_EQ(job({"--standalone"}).run_id, "random-id");
  EXPECT_EQ(job({}, {{"PET_STANDALONE", "1"}}).run_id, "random-id");
  EXPECT_EQ(job({}, {{"PET_STANDALONE", "0"}}).run_id, "none");
}

TEST_F(Planning, ReadsStreamMaps) {
  const agent::OutputSpec all = job({"-r", "3", "-t1"}).output;
  EXPECT_EQ(all.redirects, StreamSet::kBoth);
  EXPECT_EQ(all.tee, StreamSet::kStdout);
  const agent::OutputSpec some = job({"--redirects=0:2,12:3"}).output;
  EXPECT_EQ(some.redirects, StreamSet::kNone);
  EXPECT_EQ(some.redirects_of,
            (std::map<int, StreamSet>{{0, StreamSet::kStderr}, {12, StreamSet::kBoth}}));
  for (const std::string text :
       {"4", "-1", "", "x", "0:", ":1", "0:4", "0:1,", "1,2", "0:1 ,1:2"}) {
    EXPECT_THAT(refusal({"--tee=" + text}), HasSubstr("--tee=" + text + ": give 0 (none)"));
  }
}

TEST_F(Planning, WithoutAProgramSaysHowToGiveOne) {
  const auto made = make_plan(resolve({}, {}, {}), {}, {}, surroundings_);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(made.error().message, HasSubstr("no program was given"));
}

TEST_F(Planning, LogDirectoryIsMadeAndTriedBeforehand) {
  const std::string directory = tree_ / "logs/deep";
  auto made = plan({"--log-dir=" + directory});
  ASSERT_TRUE(made);
  EXPECT_FALSE(std::filesystem::exists(directory)) << "planning starts nothing and makes nothing";
  EXPECT_TRUE(prepare_log_dir(*made));
  EXPECT_TRUE(std::filesystem::is_empty(directory));

  EXPECT_TRUE(prepare_log_dir(*plan({})));
  EXPECT_TRUE(prepare_log_dir(*plan({"--log-dir=/dev/null"})));
  EXPECT_THAT(refusal({"--log-dir="}), HasSubstr("give a folder"));
  const std::string file = tree_.write("file", "");
  for (const std::string& bad : {file, file + "/below", std::string("/proc/nowhere")}) {
    const auto prepared = prepare_log_dir(*plan({"--log-dir=" + bad}));
    ASSERT_FALSE(prepared) << bad;
    EXPECT_EQ(prepared.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(prepared.error().message, HasSubstr("--log-dir=" + bad));
  }
}

TEST_F(Planning, TableShowsEveryValueWithItsOrigin) {
  const auto made = plan({"--nproc-per-node=2", "--max-restarts=1"}, {{"PET_TEE", "3"}});
  ASSERT_TRUE(made);
  const std::string table = to_table(*made);
  EXPECT_THAT(table, testing::ContainsRegex("nproc-per-node +2 +--nproc-per-node\n"));
  EXPECT_THAT(table, testing::ContainsRegex("tee +3 +PET_TEE\n"));
  EXPECT_THAT(table, testing::ContainsRegex("redirects +0 +default\n"));
}

}  // namespace
}  // namespace ddprun::cli
