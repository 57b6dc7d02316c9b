// The examples of about sixty lines, and the one of the Trainer: each ends with the line that its first comment states.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include "tests/support/deaths_in_place.h"

namespace ddprun::test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr seconds kTime{240};

// The numbers in the last line, by its form; empty if it has another form.
std::vector<double> numbers_at_the_end(const std::string& output, const std::string& form) {
  std::smatch found;
  std::vector<double> numbers;
  if (!std::regex_search(output, found, std::regex("(?:^|\n)" + form + "\n$"))) return numbers;
  for (std::size_t i = 1; i < found.size(); ++i) numbers.push_back(std::stod(found[i]));
  return numbers;
}

Command on(int ranks, const Command& program, std::vector<std::string> options = {}) {
  options.push_back("--nproc-per-node=" + std::to_string(ranks));
  return ddprun(options, program);
}

TEST(Examples, MixedPrecisionLearnsIn16Bits) {
  for (const int ranks : {1, 2}) {
    Job job(on(ranks, {DDPRUN_MIXED_PRECISION}));
    ASSERT_EQ(job.wait(kTime), exited(0)) << job.err();
    const auto numbers =
        numbers_at_the_end(job.out(), R"(300 steps in (?:BFloat16|Half), loss ([\d.]+))");
    ASSERT_EQ(numbers.size(), 1U) << job.out();
    EXPECT_LT(numbers[0], 0.5);  // 2.08 before the first step
  }
}

TEST(Examples, NcclSaysWhatIsMissingWithoutAGpu) {
  for (const Command& command : {Command{DDPRUN_NCCL}, on(2, {DDPRUN_NCCL})}) {
    Job job(command, {.environment = {{"CUDA_VISIBLE_DEVICES", ""}}});
    EXPECT_EQ(job.wait(kTime), exited(2)) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("the backend nccl needs a GPU and this process sees none"));
    EXPECT_THAT(job.err(), HasSubstr("use the backend gloo to train on the CPU"));
  }
}

TEST(Examples, TheTrainerStopsEarlyAndKeepsTheBestModel) {
  for (const int ranks : {1, 2}) {
    const TemporaryTree folder;
    Job job(on(ranks, {DDPRUN_TRAINER, folder.path()}));
    ASSERT_EQ(job.wait(kTime), exited(0)) << job.err();
    const auto numbers =
        numbers_at_the_end(job.out(), R"(best accuracy ([\d.]+) %, stopped after epoch (\d+))");
    ASSERT_EQ(numbers.size(), 2U) << job.out();
    EXPECT_GT(numbers[0], 80);
    EXPECT_LT(numbers[1], 20);
    // The callback, once for each epoch, and on the main process alone.
    EXPECT_EQ(count_of(": learning rate ", job.out()), static_cast<std::size_t>(numbers[1]));
    EXPECT_THAT(job.out(), HasSubstr("epoch 1: learning rate 0.0500, accuracy "));
    EXPECT_THAT(job.out(), HasSubstr("epoch 2: learning rate 0.0300, accuracy "));
    EXPECT_TRUE(std::filesystem::exists(folder / "best.safetensors"));
  }
}

TEST(Examples, RecoverableEndsWithTheSameBitsWhenRanksAreReplaced) {
  const TemporaryTree folder;
  const auto command = [&](const std::string& program, const std::string& file,
                           const std::vector<std::string>& options) {
    return on(2, {program, folder / file}, options);
  };
  Job plain(command(DDPRUN_RECOVERABLE, "undisturbed", {}));
  ASSERT_EQ(plain.wait(kTime), exited(0)) << plain.err();
  const auto numbers = numbers_at_the_end(plain.out(), R"(2560 steps, mean loss ([\d.]+))");
  ASSERT_EQ(numbers.size(), 1U) << plain.out();
  EXPECT_LT(numbers[0], 0.5);

  const DeathsInPlace plan({"forward:200:1", "batch:900:0", "forward:1500:0"});
  auto options = plan.options();
  options.push_back("--max-restarts=10");
  Job job(command(DDPRUN_RECORDED_RECOVERABLE, "replaced", options), plan.setup());
  ASSERT_NO_FATAL_FAILURE(plan.let_happen(job, 2, kTime));
  ASSERT_EQ(job.wait(kTime), exited(0)) << job.err();
  EXPECT_EQ(count_of("\"event\":\"restarted\"", plan.events()), 3U) << job.err();
  EXPECT_THAT(plan.events(), Not(HasSubstr("\"round\":1"))) << job.err();
  EXPECT_EQ(job.out(), plain.out());
  const std::string weights = read_file(folder / "undisturbed");
  EXPECT_FALSE(weights.empty());
  EXPECT_TRUE(read_file(folder / "replaced") == weights);
}

}  // namespace
}  // namespace ddprun::test
