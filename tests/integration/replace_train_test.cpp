// A rank dies at any point of a training, also while another one is being replaced, and is replaced in place: the
// training ends with the bits of an undisturbed one (model, optimizer, buffers, random numbers of every rank,
// schedule, scale), and each rank has added up the same losses, so no sample was used twice or not at all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/certificates.h"
#include "tests/support/deaths_in_place.h"
#include "tests/support/training.h"

namespace ddprun::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr seconds kTime{240};

// Over NCCL on the fake GPU. Where the host awaits the GPU before the optimizer's step and not sooner it is `ahead`; that is
// so in `accumulation`, too.
struct Way {
  const char* backend;
  int ranks;
  const char* kind = "plain";
};
std::ostream& operator<<(std::ostream& out, const Way& way) {
  return out << way.backend << "_" << way.ranks << "_" << way.kind;
}

Command command_of(const Way& way, Command command) {
  return way.backend == std::string("nccl") ? on_fake_gpu(std::move(command)) : command;
}
std::string standbys_of(const Way& way) {
  return way.backend == std::string("nccl") ? std::to_string(way.ranks) : "auto";
}

class ReplaceTrain : public ::testing::TestWithParam<Way> {
 protected:
  struct End {
    std::string losses;  // what the job prints
    std::unique_ptr<TemporaryTree> folder;
  };

  Command command(const std::string& folder, std::vector<std::string> options) const {
    options.insert(options.begin(), {"--nproc-per-node=" + std::to_string(GetParam().ranks),
                                     "--max-restarts=1000", "--no-python"});
    return command_of(GetParam(),
                      ddprun(options, {DDPRUN_MORTAL_TRAINING, folder, "now", GetParam().backend}));
  }
  JobSetup setup_of(JobSetup setup) const {
    const std::string kind = GetParam().kind;
    auto& variables = setup.environment;
    variables["OMP_NUM_THREADS"] = "1";
    if (kind == "accumulation") variables["DDPRUN_MORTAL_PARTS"] = "2";
    if (kind != "plain") {
      variables.insert({{"DDPRUN_MORTAL_AHEAD", "1"}, {"FAKE_NCCL_SLOW_MS", "5"}});
    }
    variables.insert({"FAKE_NCCL_ABORT_MS", "100"});
    return setup;
  }
  const End& undisturbed() {
    static std::map<std::string, End> ends;
    End& end = ends[::testing::PrintToString(GetParam())];
    if (end.folder) return end;
    end.folder = std::make_unique<TemporaryTree>();
    Job job(command(end.folder->path(), {}), setup_of({}));
    EXPECT_EQ(job.wait(kTime), exited(0)) << job.err();
    end.losses = job.out();
    return end;
  }

  // One job in which these deaths come one after the other: POINT:STEP:RANK.
  void dies(const std::vector<std::string>& deaths, bool is_always_in_place = true,
            const std::map<std::string, std::string>& variables = {}) {
    const TemporaryTree folder;
    const DeathsInPlace plan(deaths);
    SCOPED_TRACE(plan.text());
    JobSetup setup = setup_of(plan.setup());
    setup.environment.insert(variables.begin(), variables.end());
    Job job(command(folder.path(), plan.options(standbys_of(GetParam()))), setup);
    ASSERT_NO_FATAL_FAILURE(plan.let_happen(job, GetParam().ranks, kTime));
    ASSERT_EQ(job.wait(kTime), exited(0)) << job.err();
    said_ = job.err();
    EXPECT_TRUE(end_with_the_same_bytes(undisturbed().folder->path(), folder.path())) << job.err();
    EXPECT_THAT(job.left_over(), IsEmpty());
    const std::string events = plan.events();
    EXPECT_THAT(events, HasSubstr("\"how\":\"replaced\""));
    const bool was_restarted = events.find("\"round\":1") != std::string::npos;
    // The sums are in no checkpoint.
    if (!was_restarted) {
      EXPECT_EQ(job.out(), undisturbed().losses) << job.err();
    }
    if (is_always_in_place) {
      EXPECT_THAT(events, Not(HasSubstr("\"round\":1"))) << job.err();
    }
  }

  std::string said_;  // on stderr, by the last job
};

TEST_P(ReplaceTrain, AtAnyPointLeavesTheSameBits) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto rank = [&] {
    return std::to_string(random() % static_cast<unsigned>(GetParam().ranks));
  };
  std::vector<std::string> deaths;
  // On a GPU a standby prepares for a rank when the memory that the rank takes is known, which is after its second step.
  int step = GetParam().backend == std::string("nccl") ? 3 : 2;
  for (const char* point : {"forward", "backward", "reduced", "optimizer", "after_step",
                            "evaluation", "saving", "half_written", "after_rename"}) {
    const bool is_of_rank_zero =
        std::string(point) == "saving" || point[0] == 'h' || std::string(point) == "after_rename";
    deaths.push_back(std::string(point) + ":" + std::to_string(step) + ":" +
                     (is_of_rank_zero ? "0" : rank()));
    step += 3;
  }
  if (GetParam().backend == std::string("gloo")) deaths.push_back("all_reduce:29:" + rank());
  dies(deaths);
}

// The rank that takes the place, or one of the others, dies at the n-th call of its recovery. Where its own standby
// is not there again the round is restarted, from the checkpoint.
TEST_P(ReplaceTrain, AlsoInTheMiddleOfAReplacement) {
  if (GetParam().kind != std::string("plain") && !full_tests())
    GTEST_SKIP() << "only with DDPRUN_TEST_FULL";
  std::mt19937 random(std::random_device{}());
  const int calls = full_tests() ? 30 : 1;
  for (int i = 0; i < calls; ++i) {
    const int call = full_tests() ? i + 1 : 1 + static_cast<int>(random() % 30);
    const int first = call % 2;
    dies({"backward:5:" + std::to_string(first),
          "recovery-" + std::to_string(call) + ":5:" + std::to_string(1 - first)},
         /*is_always_in_place=*/false);
  }
}

std::vector<Way> ways() {
  std::vector<Way> all{{"shm", 2}, {"shm", 3}, {"gloo", 2}, {"gloo", 3}};
  if (!has_fake_gpu()) return all;
  all.insert(all.end(), {{"nccl", 3, "plain"}, {"nccl", 2, "accumulation"}});
  if (!full_tests()) return all;
  all.insert(all.end(), {{"nccl", 2, "plain"},
                         {"nccl", 3, "accumulation"},
                         {"nccl", 2, "ahead"},
                         {"nccl", 3, "ahead"}});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Ways, ReplaceTrain, ::testing::ValuesIn(ways()),
                         ::testing::PrintToStringParamName());

// A kernel that is ended tells those of other ranks that their data is there.
class ReplaceTrainOverNccl : public ReplaceTrain {
 protected:
  void SetUp() override {
    if (!has_fake_gpu()) GTEST_SKIP() << "there is no fake GPU in this build";
  }
};

TEST_P(ReplaceTrainOverNccl, ARankThatHearsLateCommitsNothingOfWhatOthersHaveEnded) {
  dies({"backward:5:1"}, /*is_always_in_place=*/true, {{"DDPRUN_HEARS_LATE", "0"}});
}

TEST_P(ReplaceTrainOverNccl, AGpuThatHasFailedGetsNoOtherRank) {
  const TemporaryTree folder;
  const TemporaryTree marks;
  JobSetup setup = setup_of({.environment = {{"DDPRUN_MORTAL_GPU_FAILS", "1"}}});
  Job job(command(folder.path(), {"--standby=3", "--events=" + marks / "events"}), setup);
  ASSERT_EQ(job.wait(kTime), exited(0)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("its GPU has failed ("));
  EXPECT_THAT(read_file(marks / "events"), HasSubstr("\"round\":1")) << job.err();
  EXPECT_TRUE(end_with_the_same_bytes(undisturbed().folder->path(), folder.path())) << job.err();
}

TEST_P(ReplaceTrainOverNccl, GroupsAreMadeAnewWhileTheOnesBeforeAreFreed) {
  dies({"backward:5:1", "optimizer:8:0", "forward:11:2"}, /*is_always_in_place=*/true,
       {{"DDPRUN_NCCL_FREE_LATER", "1"}, {"FAKE_NCCL_ABORT_MS", "1000"}});
}

// Each rank takes 1.5 GB of its GPU's, and a second model has no room beside it.
std::map<std::string, std::string> gpus_of(const char* megabytes, const TemporaryTree& tree,
                                           const char* late_ms) {
  return {{"DDPRUN_MORTAL_BALLAST_MB", "1500"},
          {"FAKE_GPU_MEMORY", tree / "memory"},
          {"FAKE_GPU_MEMORY_MB", megabytes},
          {"FAKE_GPU_MEMORY_LATE_MS", late_ms}};
}

TEST_P(ReplaceTrainOverNccl, AStandbyWithoutRoomOnItsGpuComesWhenTheMemoryIsBack) {
  for (const char* const megabytes : {"2700", "2000"}) {  // room for a context; not even for that
    const TemporaryTree tree;
    dies({"backward:5:1"}, /*is_always_in_place=*/true, gpus_of(megabytes, tree, "300"));
    EXPECT_THAT(said_, HasSubstr("the program's set-up is made then: GPU "));
  }
}

TEST_P(ReplaceTrainOverNccl, MemoryThatDoesNotComeBackIsSaidAndAllBeginAnew) {
  const TemporaryTree tree;
  dies({"backward:5:1"}, /*is_always_in_place=*/false, gpus_of("2700", tree, "6000"));
  EXPECT_THAT(said_,
              HasSubstr("the memory of the process before is not back after 5 s: its GPU has "));
}

TEST_P(ReplaceTrainOverNccl, AStepWaitsOnceMoreThanWhereNoRankIsReplaced) {
  const auto waits = [&](const std::string& standbys) {
    const TemporaryTree folder;
    Job job(command(folder.path(), {"--standby=" + standbys}),
            setup_of({.environment = {{"DDPRUN_MORTAL_COUNTS", "1"}}}));
    EXPECT_EQ(job.wait(kTime), exited(0)) << job.err();
    const std::string out = job.out();
    const std::size_t at = out.find("waits ");
    return at == std::string::npos ? 0 : std::stol(out.substr(at + 6));
  };
  const long plain = waits("off");
  EXPECT_GT(plain, 0);
  constexpr long kCountedSteps = 20;
  EXPECT_EQ(waits("3") - plain, kCountedSteps);
}

TEST_P(ReplaceTrainOverNccl, AnOlderNcclIsRefused) {
  const TemporaryTree folder;
  Job job(command(folder.path(), {"--standby=3"}),
          setup_of({.environment = {{"FAKE_NCCL_VERSION", "22703"}}}));
  EXPECT_EQ(job.wait(kTime), exited(0)) << job.err();
  EXPECT_THAT(
      job.err(),
      HasSubstr("cannot be replaced in place: its NCCL is 2.27.3, and calls can be ended from"));
}

INSTANTIATE_TEST_SUITE_P(Ways, ReplaceTrainOverNccl, ::testing::Values(Way{"nccl", 3, "plain"}),
                         ::testing::PrintToStringParamName());

// What the Trainer has added up comes along: the losses of an epoch, and the history.
class ReplaceTrainer : public ::testing::TestWithParam<Way> {};

TEST_P(ReplaceTrainer, DoesItByItself) {
  const auto command = [](const std::string& folder, std::vector<std::string> options) {
    options.insert(options.begin(), {"--nproc-per-node=" + std::to_string(GetParam().ranks),
                                     "--max-restarts=10", "--no-python"});
    return command_of(
        GetParam(), ddprun(options, {DDPRUN_TRAINED_BY_TRAINER, folder, "0", GetParam().backend}));
  };
  const TemporaryTree undisturbed;
  Job plain(command(undisturbed.path(), {}));
  ASSERT_EQ(plain.wait(kTime), exited(0)) << plain.err();
  const TemporaryTree folder;
  const DeathsInPlace plan(
      {"forward:3:1", "forward:8:0", "step_end:11:1", "forward:17:0", "step_end:19:0"});
  JobSetup setup = plan.setup();
  setup.environment.insert({"FAKE_NCCL_ABORT_MS", "100"});
  Job job(command(folder.path(), plan.options(standbys_of(GetParam()))), setup);
  ASSERT_NO_FATAL_FAILURE(plan.let_happen(job, GetParam().ranks, kTime));
  ASSERT_EQ(job.wait(kTime), exited(0)) << job.err();
  EXPECT_EQ(job.out(), plain.out()) << job.err();
  EXPECT_EQ(last_step_in(folder.path()), last_step_in(undisturbed.path()));
  EXPECT_THAT(plan.events(), Not(HasSubstr("\"round\":1"))) << job.err();
}

std::vector<Way> ways_of_trainer() {
  std::vector<Way> all{{"shm", 2}};
  if (has_fake_gpu()) all.push_back({"nccl", 2});
  if (has_fake_gpu() && full_tests()) all.push_back({"nccl", 3});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Ways, ReplaceTrainer, ::testing::ValuesIn(ways_of_trainer()),
                         ::testing::PrintToStringParamName());

// A rank that lives has begun with a second of gradients when the other one dies. Those of a lost step are of no use.
TEST(ReplaceTrainTest, ARankDoesNotFinishTheGradientsOfALostStep) {
  const TemporaryTree marks;
  const JobSetup setup{.environment = {{"DDPRUN_CONTROL_DIR", marks / "control"}}};
  Job job(ddprun({"--nproc-per-node=2", "--standby=auto", "--max-restarts=1", "--no-python",
                  "--events=" + marks / "events"},
                 {DDPRUN_SLOW_BACKWARD, marks / "stop"}),
          setup);
  ASSERT_TRUE(job.reaches(
      [&] {
        return run_to_its_end(ddpctl({"status", "--json", std::to_string(job.pid())}), setup)
                   .out.find("\"can_recover\":true,\"waiting\":2,") != std::string::npos;
      },
      kTime))
      << job.err();
  // Its standby has its rank, too.
  std::smatch found;
  const std::string events = read_file(marks / "events");
  ASSERT_TRUE(std::regex_search(events, found, std::regex(R"("local_rank":1,"pid":(\d+))")));
  const pid_t rank_one = std::stoi(found[1]);
  const auto last_step_begun = [&] {
    const std::string said = job.err();
    const auto end = said.rfind(" layer 7\n");
    const auto begin = end == std::string::npos ? end : said.rfind("step ", end);
    return begin == std::string::npos ? "" : said.substr(begin, end - begin);
  };
  const std::string before = last_step_begun();
  ASSERT_TRUE(job.reaches([&] { return last_step_begun() != before; }, kTime)) << job.err();
  const std::string lost = last_step_begun();
  kill(rank_one, SIGKILL);
  ASSERT_TRUE(job.reaches([&] { return last_step_begun() != lost; }, kTime)) << job.err();
  marks.write("stop", "");
  EXPECT_EQ(job.wait(kTime), exited(0)) << job.err();
  EXPECT_THAT(read_file(marks / "events"), HasSubstr("\"how\":\"replaced\""));
  EXPECT_EQ(count_of(lost + " layer 7\n", job.err()), 2U) << job.err();
  EXPECT_EQ(count_of(lost + " layer 0\n", job.err()), 1U) << job.err();
}

// What cannot be replaced in place is told, and the training goes on.
TEST(ReplaceTrainTest, TellsWhyAProgramCannotBeReplacedInPlace) {
  const std::pair<const char*, const char*> whys[] = {
      {"hook", "the model has a communication hook, which may have a memory of its own"},
      {"join", "the program trains in a join() of uneven inputs"},
      {"backward",
       "the program makes calls between its steps that do not go through ddprun::Group"},
      {"message", "the program sends messages between its steps"},
      {"thread", "a thread beside that of its steps makes calls"},
      {"group", "the program makes a group after its set-up"},
      {"optimizer",
       "its optimizer (ddprun::test::(anonymous namespace)::SignDescent) is none whose state"},
      {"sparse", "optimizer.embedding.weight.momentum_buffer is a sparse tensor"},
      {"late_buffer", "a step changes a buffer or draws random numbers after its backward()"},
      {"late_random", "a step changes a buffer or draws random numbers after its backward()"},
      // For the first time in the fifth step.
      {"later_value", "a step changes what was given to Recoverable::keep() after its backward()"},
      {"later_buffer", "a step changes a buffer or draws random numbers after its backward()"},
      {"later_random", "a step changes a buffer or draws random numbers after its backward()"}};
  for (const auto& [way, why] : whys) {
    Job job(ddprun({"--nproc-per-node=2", "--standby=auto", "--max-restarts=1", "--no-python"},
                   {DDPRUN_UNREPLACEABLE, way}));
    EXPECT_EQ(job.wait(kTime), exited(0)) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("cannot be replaced in place: " + std::string(why)));
  }
}

// Also where ranks are not replaced: alone, and without ddprun.
TEST(ReplaceTrainTest, AWriteIntoATensorThatAStepWasGivenAsConstIsAnError) {
  const std::string what =
      "the function of Recoverable::run() writes into a tensor of its argument 4, which it was "
      "given as const";
  Job job(ddprun({"--nproc-per-node=2", "--standby=auto", "--max-restarts=1", "--no-python"},
                 {DDPRUN_UNREPLACEABLE, "const_tensor"}));
  EXPECT_EQ(job.wait(kTime), exited(2)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr(what));
  Job alone({DDPRUN_UNREPLACEABLE, "const_tensor"});
  EXPECT_EQ(alone.wait(kTime), exited(2)) << alone.err();
  EXPECT_THAT(alone.err(), HasSubstr(what));
}

// Gloo's connections with TLS have another class, whose calls end in the same way.
TEST(ReplaceTrainTest, ARankIsReplacedOverTlsToo) {
  const TemporaryTree folder;
  const Certificates certificates(folder.path());
  const DeathsInPlace plan({"backward:5:1"});
  JobSetup setup = plan.setup();
  setup.environment.insert({{"GLOO_DEVICE_TRANSPORT", "TCP_TLS"},
                            {"GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY", certificates.server_key},
                            {"GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT", certificates.server},
                            {"GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE", certificates.ca}});
  auto options = plan.options();
  options.insert(options.end(), {"--nproc-per-node=2", "--max-restarts=10", "--no-python"});
  Job job(ddprun(options, {DDPRUN_MORTAL_TRAINING, folder / "checkpoints", "now", "gloo"}), setup);
  const auto is_without_tls = [&] {
    return job.err().find("unsupported gloo device") != std::string::npos;
  };
  job.reaches([&] { return is_without_tls() || plan.can_happen(job, 2); }, kTime);
  if (is_without_tls()) GTEST_SKIP() << "this LibTorch's Gloo has no TLS, as that of 2.15";
  ASSERT_NO_FATAL_FAILURE(plan.let_happen(job, 2, kTime));
  ASSERT_EQ(job.wait(kTime), exited(0)) << job.err();
  EXPECT_THAT(plan.events(), HasSubstr("\"how\":\"replaced\""));
  EXPECT_THAT(plan.events(), Not(HasSubstr("\"round\":1"))) << job.err();
}

TEST(ReplaceTrainTest, AKeptValueThatChangesAfterBackwardIsAnErrorInTheFirstStep) {
  const std::pair<const char*, const char*> whats[] = {
      {"late_value", "a step changes what was given to Recoverable::keep() after its backward()"},
      {"late_field", "a step changes what was given to Recoverable::keep() after its backward()"},
      {"stranger",
       "Recoverable::run() was given an optimizer that this Recoverable does not carry"}};
  for (const auto& [way, what] : whats) {
    Job job(ddprun({"--nproc-per-node=2", "--standby=auto", "--max-restarts=1", "--no-python"},
                   {DDPRUN_UNREPLACEABLE, way}));
    EXPECT_EQ(job.wait(kTime), exited(2)) << job.err();
    EXPECT_THAT(job.err(), HasSubstr(what));
    EXPECT_THAT(job.err(), Not(HasSubstr("cannot be replaced in place"))) << way;
  }
}

}  // namespace
}  // namespace ddprun::test
