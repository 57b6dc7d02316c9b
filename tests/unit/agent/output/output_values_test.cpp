// The pure parts of the agent's output: plans, prefixes, lines, tails.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "agent/output/line_splitter.h"
#include "agent/output/stream_plan.h"
#include "agent/output/tail.h"

namespace ddprun::agent {
namespace {

using Route = StreamPlan::Route;
using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> split(const std::vector<std::string>& pieces) {
  std::vector<std::string> lines;
  LineSplitter splitter;
  const auto add = [&](std::string_view line) { lines.emplace_back(line); };
  for (const auto& piece : pieces) splitter.feed(piece, add);
  splitter.finish(add);
  return lines;
}

TEST(LineSplitter, EveryKindOfLineEndCounts) {
  EXPECT_THAT(split({"a\nb\r\nc\rd\n\n\re"}), ElementsAre("a", "b", "c", "d", "", "", "e"));
}

TEST(LineSplitter, CutsDoNotMatter) {
  const std::string text = "one\r\ntwo\rthree\n\r\nfour";
  const auto whole = split({text});
  EXPECT_THAT(whole, ElementsAre("one", "two", "three", "", "four"));
  for (std::size_t i = 0; i <= text.size(); ++i) {
    for (std::size_t j = i; j <= text.size(); ++j) {
      EXPECT_EQ(split({text.substr(0, i), text.substr(i, j - i), text.substr(j)}), whole)
          << i << " " << j;
    }
  }
}

TEST(LineSplitter, KeepsNulAndInvalidUtf8) {
  const std::string odd("a\0b\xff\xfe", 5);
  EXPECT_THAT(split({odd + "\n"}), ElementsAre(odd));
}

TEST(LineSplitter, CutsALineThatIsTooLongToHold) {
  const std::string half(LineSplitter::kLineBytesMax, 'x');
  EXPECT_THAT(split({half, "rest\n"}), ElementsAre(half, "rest"));
}

TEST(Tail, KeepsTheLastLines) {
  Tail tail(3);
  tail.append("1\n2\n3\n4");
  tail.append("4\n5\n");
  EXPECT_THAT(tail.lines(), ElementsAre("3", "44", "5"));
}

TEST(Tail, KeepsAnUnfinishedLineAndEmptyOnes) {
  Tail tail(3);
  tail.append("1\n\n2");
  EXPECT_THAT(tail.lines(), ElementsAre("1", "", "2"));
  EXPECT_THAT(Tail(3).lines(), IsEmpty());
}

TEST(Tail, ShowsWhatAProgressBarShowsLast) {
  Tail tail(3);
  tail.append("start\r\n\r 10%\r 50%\r100%\r\nend\n");
  EXPECT_THAT(tail.lines(), ElementsAre("start", "100%", "end"));
}

TEST(Tail, IsBoundedAndDropsALineWithoutBeginning) {
  Tail tail(20);
  for (int i = 0; i < 100; ++i) tail.append(std::string(999, 'a') + "\n");
  std::size_t bytes = 0;
  for (const auto& line : tail.lines()) {
    EXPECT_EQ(line.size(), 999);
    bytes += line.size();
  }
  EXPECT_GE(bytes, 15'000);
  tail.append(std::string(5'000'000, 'b'));
  ASSERT_EQ(tail.lines().size(), 1);
  EXPECT_LE(tail.lines().front().size(), 32 * 1024);
}

TEST(StreamPlan, WithoutOptionsStdoutIsInheritedAndStderrPassesThroughWithATail) {
  const OutputSpec spec;
  EXPECT_EQ(plan_stream(spec, Stream::kStdout, 0, false),
            (StreamPlan{.route = Route::kInherit, .to_console = true}));
  EXPECT_EQ(plan_stream(spec, Stream::kStderr, 0, false),
            (StreamPlan{.route = Route::kAgent, .to_console = true, .keeps_tail = true}));
  EXPECT_EQ(plan_stream(spec, Stream::kStderr, 0, true),
            (StreamPlan{.route = Route::kAgentAsTty, .to_console = true, .keeps_tail = true}));
}

TEST(StreamPlan, WithoutATailStderrIsInheritedToo) {
  OutputSpec spec;
  spec.stderr_tail_lines = 0;
  EXPECT_EQ(plan_stream(spec, Stream::kStderr, 0, true).route, Route::kInherit);
}

TEST(StreamPlan, RedirectsGoToTheFileOnly) {
  OutputSpec spec;
  spec.redirects_of = {{1, StreamSet::kStdout}};
  EXPECT_EQ(plan_stream(spec, Stream::kStdout, 1, true),
            (StreamPlan{.route = Route::kAgent, .to_file = true}));
  EXPECT_EQ(plan_stream(spec, Stream::kStdout, 0, true).route, Route::kInherit);
  EXPECT_FALSE(plan_stream(spec, Stream::kStderr, 1, true).to_file);
}

TEST(StreamPlan, TeeGoesToFileAndConsoleEvenWhereRedirected) {
  OutputSpec spec;
  spec.redirects = StreamSet::kBoth;
  spec.tee_of = {{0, StreamSet::kStderr}};
  spec.duplicate_stderr_filters = {"loss"};
  EXPECT_EQ(plan_stream(spec, Stream::kStderr, 0, true), (StreamPlan{.route = Route::kAgent,
                                                                     .to_file = true,
                                                                     .to_console = true,
                                                                     .is_prefixed = true,
                                                                     .is_filtered = true,
                                                                     .keeps_tail = true}));
  EXPECT_FALSE(plan_stream(spec, Stream::kStderr, 1, true).to_console);
  EXPECT_FALSE(plan_stream(spec, Stream::kStderr, 1, true).is_filtered);
}

TEST(StreamPlan, TheRankFilterKeepsFilesAndEmptiesTheConsole) {
  OutputSpec spec;
  spec.local_ranks_filter = {0, 2};
  spec.duplicate_stdout_filters = {""};
  EXPECT_EQ(plan_stream(spec, Stream::kStdout, 2, false).route, Route::kInherit);
  EXPECT_EQ(plan_stream(spec, Stream::kStdout, 1, false).route, Route::kDevNull);
  EXPECT_EQ(plan_stream(spec, Stream::kStderr, 1, true),
            (StreamPlan{.route = Route::kAgent, .keeps_tail = true}));
  spec.tee = StreamSet::kBoth;
  EXPECT_EQ(plan_stream(spec, Stream::kStdout, 1, false),
            (StreamPlan{.route = Route::kAgent, .to_file = true}));
}

TEST(StreamPlan, LogDirDevNullSwitchesFilesAndTheRankFilterOff) {
  OutputSpec spec;
  spec.log_dir = "/dev/null";
  spec.redirects = spec.tee = StreamSet::kBoth;
  spec.local_ranks_filter = {5};
  EXPECT_EQ(plan_stream(spec, Stream::kStdout, 0, false).route, Route::kInherit);
  EXPECT_FALSE(needs_files(spec));
}

TEST(StreamPlan, APrefixTemplateAloneGivesPrefixedLinesWithoutFiles) {
  OutputSpec spec;
  spec.line_prefix_template = "x";
  EXPECT_EQ(plan_stream(spec, Stream::kStdout, 0, true),
            (StreamPlan{.route = Route::kAgent, .to_console = true, .is_prefixed = true}));
}

TEST(LinePrefix, IsTorchrunsUnlessATemplateIsGiven) {
  OutputSpec spec;
  const WorkerIdentity worker{3, 11, "trainer", "node7"};
  EXPECT_EQ(line_prefix(spec, worker), "[trainer3]:");
  // What string.Template.safe_substitute answers.
  const std::vector<std::pair<std::string, std::string>> table = {
      {"${role_name}/$rank.${local_rank} ", "trainer/11.3 "},
      {"${hostname}:${rank}: ", "node7:11: "},
      {"$unknown ${unknown} $ranks", "$unknown ${unknown} $ranks"},
      {"$$rank $$$rank", "$rank $11"},
      {"${rank $ ${} $1 100$", "${rank $ ${} $1 100$"},
      {"", ""},
  };
  for (const auto& [text, expected] : table) {
    spec.line_prefix_template = text;
    EXPECT_EQ(line_prefix(spec, worker), expected) << text;
  }
}

}  // namespace
}  // namespace ddprun::agent
