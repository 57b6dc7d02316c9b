// The examples about data end with the line that they state, alone and on two ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <regex>
#include <string>
#include <vector>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::HasSubstr;

constexpr seconds kTime{240};

std::string last_line(const std::string& text) {
  const auto end = text.find_last_not_of('\n');
  if (end == std::string::npos) return {};
  const auto before = text.rfind('\n', end);
  return text.substr(before == std::string::npos ? 0 : before + 1,
                     end - (before == std::string::npos ? 0 : before));
}

// The numbers in the last line of a run that ends well.
std::vector<double> numbers_at_the_end(const Command& command, const std::string& form) {
  Job job(command);
  EXPECT_EQ(job.wait(kTime), exited(0)) << job.err();
  std::smatch found;
  std::string line = last_line(job.out());
  EXPECT_TRUE(std::regex_match(line, found, std::regex(form))) << line;
  std::vector<double> numbers;
  for (std::size_t i = 1; i < found.size(); ++i) numbers.push_back(std::stod(found[i]));
  numbers.resize(3);
  return numbers;
}

Command on_two(const Command& program) { return ddprun({"--nproc-per-node=2"}, program); }

const char* const kClassified =
    R"(classified (\d+) images: accuracy ([\d.]+) %, macro F1 ([\d.]+) %)";

TEST(DataExamples, InferenceGivesOneAnswerForEachImageOnOneRankAndOnTwo) {
  // 2501 images: neither ranks nor batches divide them.
  const Command program{DDPRUN_INFERENCE, "--train-steps=60", "--limit=2501"};
  const auto alone = numbers_at_the_end(program, kClassified);
  const auto both = numbers_at_the_end(on_two(program), kClassified);
  EXPECT_EQ(alone[0], 2501);
  EXPECT_EQ(both[0], 2501);
  EXPECT_GT(alone[1], 60);
  // The same training but for rounding.
  EXPECT_NEAR(both[1], alone[1], 2);
}

TEST(DataExamples, InferenceWithSavedWeightsIsTheSameOnAnyNumberOfRanks) {
  const TemporaryTree folder;
  Job train(Command{DDPRUN_TRAIN, "--epochs=1", "--limit=3000", "--checkpoint-dir", folder.path()});
  ASSERT_EQ(train.wait(kTime), exited(0)) << train.err();
  std::string first;
  for (const std::string ranks : {"1", "2", "3"}) {
    const std::string answers = folder / ("answers" + ranks + ".txt");
    Job job(ddprun({"--nproc-per-node=" + ranks},
                   {DDPRUN_INFERENCE, "--weights", folder / "latest.safetensors", "--limit=1001",
                    "--output", answers}));
    ASSERT_EQ(job.wait(kTime), exited(0)) << job.err();
    const std::string bytes = read_file(answers);
    EXPECT_EQ(bytes.size(), 1001u * 2);  // a digit and a line feed for each
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first) << ranks << " ranks answer something else";
  }
}

TEST(DataExamples, InferenceNamesWhatIsMissing) {
  Job job(Command{DDPRUN_INFERENCE, "--data", "/nowhere"});
  EXPECT_EQ(job.wait(kTime), exited(2));
  EXPECT_THAT(job.err(), HasSubstr("/nowhere"));
}

TEST(DataExamples, SentencesAreRecognisedOnOneRankAndOnTwo) {
  const char* const form = R"(of (\d+) new sentences ([\d.]+) % were recognised)";
  const auto alone = numbers_at_the_end({DDPRUN_SENTENCES}, form);
  const auto both = numbers_at_the_end(on_two({DDPRUN_SENTENCES}), form);
  EXPECT_EQ(alone[0], both[0]);
  EXPECT_GT(alone[1], 70);
  EXPECT_GT(both[1], 70);
}

TEST(DataExamples, SentencesOfAFileThatIsNoTextAreRefused) {
  Job job(Command{DDPRUN_SENTENCES, "--text", "/dev/null", "--text", "/nowhere.txt"});
  EXPECT_EQ(job.wait(kTime), exited(2));
  EXPECT_THAT(job.err(), HasSubstr("/dev/null has fewer than five sentences"));
}

}  // namespace
}  // namespace ddprun::test
