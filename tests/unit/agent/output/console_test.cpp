#include "agent/output/console.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "agent/output/status_line.h"
#include "tests/support/terminal.h"
#include "tests/unit/agent/output/output_fixture.h"

namespace ddprun::agent {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

class ConsoleTest : public testing::Test {
 protected:
  Console make(std::size_t queue_bytes = 4096) {
    return Console(loop_.get_executor(), {out_.write_end(), err_.write_end(), queue_bytes});
  }

  boost::asio::io_context loop_;
  PipeEnds out_;
  PipeEnds err_;
};

TEST_F(ConsoleTest, WritesEachStreamToItsDescriptor) {
  Console console = make();
  ASSERT_TRUE(console.write(Stream::kStdout, "to stdout\n"));
  ASSERT_TRUE(console.write(Stream::kStderr, "to stderr\n"));
  ASSERT_TRUE(console.flush(steady_clock::now() + seconds(10)));
  EXPECT_EQ(out_.read_available(), "to stdout\n");
  EXPECT_EQ(err_.read_available(), "to stderr\n");
}

TEST_F(ConsoleTest, RefusesWhatDoesNotFitAndSaysWhenItDoes) {
  const std::size_t blocked_bytes = out_.fill();
  Console console = make();
  const std::string line(1023, 'x');
  int taken = 0;
  while (console.write(Stream::kStdout, line + "\n")) ++taken;
  EXPECT_EQ(taken, 4);
  bool has_space = false;
  console.when_space(Stream::kStdout, [&] { has_space = true; });
  std::string seen;
  EXPECT_TRUE(run_until(loop_, [&] {
    seen += out_.read_available();
    return has_space;
  }));
  EXPECT_TRUE(console.write(Stream::kStdout, "last\n"));
  EXPECT_TRUE(run_until(loop_, [&] {
    seen += out_.read_available();
    return seen.size() == blocked_bytes + 4 * 1024 + 5;
  }));
  EXPECT_THAT(seen, testing::EndsWith("x\nlast\n"));
}

TEST_F(ConsoleTest, TakesAPieceLargerThanTheQueueWhenItIsEmpty) {
  Console console = make();
  const std::string line = std::string(1'000'000, 'x') + "\n";
  ASSERT_TRUE(console.write(Stream::kStdout, line));
  EXPECT_FALSE(console.write(Stream::kStdout, line));
  std::string seen;
  EXPECT_TRUE(run_until(loop_, [&] {
    seen += out_.read_available();
    return seen.size() >= line.size();
  }));
  EXPECT_EQ(seen, line);
}

TEST_F(ConsoleTest, ABlockedStdoutDoesNotHoldUpStderr) {
  out_.fill();
  Console console = make();
  ASSERT_TRUE(console.write(Stream::kStdout, "waits\n"));
  ASSERT_TRUE(console.write(Stream::kStderr, "gets through\n"));
  std::string seen;
  EXPECT_TRUE(run_until(loop_, [&] {
    seen += err_.read_available();
    return seen == "gets through\n";
  }));
  EXPECT_FALSE(console.flush(steady_clock::now() + milliseconds(1)));
}

TEST_F(ConsoleTest, KeepsTheOrderWhenBothStreamsAreOneFile) {
  Console console(loop_.get_executor(), {out_.write_end(), out_.write_end(), 1 << 20});
  std::string expected;
  for (int i = 0; i < 1000; ++i) {
    const std::string line = std::to_string(i) + "\n";
    ASSERT_TRUE(console.write(i % 2 == 0 ? Stream::kStdout : Stream::kStderr, line));
    expected += line;
  }
  ASSERT_TRUE(console.flush(steady_clock::now() + seconds(10)));
  EXPECT_EQ(out_.read_available(), expected);
}

TEST_F(ConsoleTest, ReportsOnceAndGoesOnWhenItsReaderIsGone) {
  Console console = make();
  out_.close_read();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(console.write(Stream::kStdout, "nobody reads this\n"));
    ASSERT_TRUE(console.flush(steady_clock::now() + seconds(10)));
  }
  std::string seen;
  EXPECT_TRUE(run_until(loop_, [&] {
    seen += err_.read_available();
    return !seen.empty();
  }));
  loop_.restart();
  loop_.poll();
  ASSERT_TRUE(console.flush(steady_clock::now() + seconds(10)));
  seen += err_.read_available();
  EXPECT_EQ(seen,
            "ddprun: cannot write to stdout any more (Broken pipe); the job goes on without it\n");
}

TEST_F(ConsoleTest, ReportsAFailingStderrOnStdout) {
  Console console = make();
  err_.close_read();
  ASSERT_TRUE(console.write(Stream::kStderr, "nobody reads this\n"));
  std::string seen;
  EXPECT_TRUE(run_until(loop_, [&] {
    seen += out_.read_available();
    return !seen.empty();
  }));
  EXPECT_THAT(seen, HasSubstr("cannot write to stderr any more (Broken pipe)"));
}

TEST_F(ConsoleTest, ReportsAFullDiskBehindStdout) {
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  Console console(loop_.get_executor(), {full, err_.write_end(), 4096});
  std::vector<std::string> notices;
  console.notify_with([&](std::string_view sentence) { notices.emplace_back(sentence); });
  ASSERT_TRUE(console.write(Stream::kStdout, "no room\n"));
  EXPECT_TRUE(run_until(loop_, [&] { return !notices.empty(); }));
  EXPECT_THAT(notices.front(), HasSubstr("No space left on device"));
  ::close(full);
}

TEST_F(ConsoleTest, LeavesTheDescriptorsBlocking) {
  Console console = make();
  ASSERT_TRUE(console.write(Stream::kStdout, "x\n"));
  ASSERT_TRUE(console.flush(steady_clock::now() + seconds(10)));
  EXPECT_EQ(::fcntl(out_.write_end(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(ConsoleTest, WritesToADescriptorThatSomebodyMadeNonBlocking) {
  ::fcntl(out_.write_end(), F_SETFL, O_NONBLOCK);
  Console console = make(1 << 20);
  const std::string line = std::string(300'000, 'x') + "\n";  // more than the pipe holds
  ASSERT_TRUE(console.write(Stream::kStdout, line));
  std::string seen;
  EXPECT_TRUE(run_until(loop_, [&] {
    seen += out_.read_available();
    return seen.size() >= line.size();
  }));
  EXPECT_EQ(seen, line);
}

TEST_F(ConsoleTest, TheAgentsOwnWordsHaveAReserve) {
  out_.fill();
  Console console = make();
  while (console.write(Stream::kStdout, std::string(1023, 'x') + "\n")) {
  }
  console.say(Stream::kStdout, "own words\n");
  std::string seen;
  EXPECT_TRUE(run_until(loop_, [&] {
    seen += out_.read_available();
    return seen.ends_with("own words\n");
  }));
}

TEST_F(ConsoleTest, EndsWhileItsReaderBlocks) {
  out_.fill();
  const auto begin = steady_clock::now();
  {
    Console console = make();
    ASSERT_TRUE(console.write(Stream::kStdout, "never read\n"));
    EXPECT_FALSE(console.flush(steady_clock::now() + milliseconds(20)));
  }
  EXPECT_LT(steady_clock::now() - begin, seconds(5));
}

TEST_F(ConsoleTest, ShortLinesOfAWorkerOnTheSamePipeFallBetweenOurs) {
  Console console = make(1 << 20);
  std::string ours;
  for (int i = 0; i < 20'000; ++i) ours += "ours " + std::string(20, 'o') + "\n";
  ASSERT_TRUE(console.write(Stream::kStdout, ours));
  // The pipe is full most of the time, so that writers meet in it.
  std::jthread worker([fd = out_.write_end()] {
    const std::string line = "worker " + std::string(20, 'w') + "\n";
    for (int i = 0; i < 5'000; ++i) write_all(fd, line);
  });
  std::string seen;
  const std::size_t all = ours.size() + 5'000 * 28;
  ASSERT_TRUE(run_until(loop_, [&] {
    seen += out_.read_available();
    return seen.size() >= all;
  }));
  std::istringstream lines(seen);
  for (std::string line; std::getline(lines, line);) {
    const std::string expected =
        line[0] == 'o' ? "ours " + std::string(20, 'o') : "worker " + std::string(20, 'w');
    ASSERT_EQ(line, expected);
  }
}

class LiveLine : public testing::Test {
 protected:
  Console make(TerminalLook look = {.can_redraw = true}) {
    return Console(loop_.get_executor(), {out_.write_end(), terminal_.fd(), 4096, look});
  }
  std::string seen(Console& console) {
    EXPECT_TRUE(console.flush(steady_clock::now() + seconds(10)));
    return terminal_.seen();
  }

  boost::asio::io_context loop_;
  PipeEnds out_;
  test::Terminal terminal_;
};

TEST_F(LiveLine, IsErasedBeforeAnythingElseIsWritten) {
  Console console = make();
  console.set_live_line(Stream::kStderr, "one");
  console.set_live_line(Stream::kStderr, "two");
  console.say(Stream::kStderr, "a line\n");
  console.write(Stream::kStderr, "another\n");
  EXPECT_EQ(seen(console), "\r\x1b[Kone\r\x1b[Ktwo\r\x1b[Ka line\nanother\n");
}

TEST_F(LiveLine, LeavesNothingWhenItIsTakenAway) {
  Console console = make();
  console.set_live_line(Stream::kStderr, "one");
  console.set_live_line(Stream::kStderr, "");
  console.set_live_line(Stream::kStderr, "");
  EXPECT_EQ(seen(console), "\r\x1b[Kone\r\x1b[K");
}

TEST_F(LiveLine, DoesNotDisturbALineThatIsUnfinished) {
  Console console = make();
  console.write(Stream::kStderr, " 50 %");
  console.set_live_line(Stream::kStderr, "status");
  console.write(Stream::kStderr, "\r100 %\n");
  console.set_live_line(Stream::kStderr, "status");
  EXPECT_EQ(seen(console), " 50 %\r100 %\n\r\x1b[Kstatus");
}

TEST_F(LiveLine, IsNotShownWhereItCannotBe) {
  Console console = make({.can_redraw = false});
  console.set_live_line(Stream::kStderr, "status");
  console.set_live_line(Stream::kStdout, "status");  // a pipe
  EXPECT_EQ(seen(console) + out_.read_available(), "");
}

// It is due at the same moment at which something else takes it away.
TEST_F(LiveLine, IsNotShownOnceItIsHidden) {
  Console console = make();
  int looks = 0;
  StatusLine line(loop_.get_executor(), console, [&looks] {
    ++looks;
    return NodeSnapshot{};
  });
  Timer first(loop_);
  const auto due = steady_clock::now() + seconds(1);
  first.arm_at(due, [&line] { line.hide(); });
  line.start();
  std::this_thread::sleep_until(due + milliseconds(100));
  loop_.run_for(seconds(10));
  EXPECT_EQ(looks, 0);
  EXPECT_EQ(seen(console), "");
}

TEST(TerminalLookTest, FollowsTheConventions) {
  using Look = TerminalLook;
  EXPECT_EQ(look_from({{"TERM", "xterm"}}), (Look{true, true}));
  EXPECT_EQ(look_from({{"TERM", "xterm"}, {"NO_COLOR", ""}}), (Look{true, true}));
  EXPECT_EQ(look_from({{"TERM", "xterm"}, {"NO_COLOR", "1"}}), (Look{true, false}));
  EXPECT_EQ(look_from({{"TERM", "dumb"}}), (Look{false, false}));
  EXPECT_EQ(look_from({}), (Look{false, false}));
}

TEST(StatusText, TellsTheStepsOfThoseThatSay) {
  const auto at = [](std::int64_t step, std::int64_t total) {
    WorkerProgress progress;
    progress.step = step;
    progress.total_steps = total;
    return progress;
  };
  EXPECT_EQ(progress_text({}), "");
  EXPECT_EQ(progress_text({WorkerProgress()}), "");
  EXPECT_EQ(progress_text({at(412, 0)}), "step 412");
  EXPECT_EQ(progress_text({at(412, 1000), WorkerProgress(), at(412, 1000)}), "step 412 of 1000");
  EXPECT_EQ(progress_text({at(7, 10), at(5, 10), at(6, 10)}), "steps 5 to 7 of 10");
  WorkerProgress with_values = at(7, 10);
  with_values.values = {{"loss", 0.3125}, {"lr", 1e-5}};
  EXPECT_EQ(progress_text({at(5, 10), with_values, at(6, 10)}),
            "steps 5 to 7 of 10, loss 0.3125, lr 1e-05");
}

TEST(StatusText, SaysWhatRunsAndWhatIsWaitedFor) {
  NodeSnapshot node;
  node.state = NodeState::kRunning;
  node.progress.resize(4);
  node.running = 4;
  node.wall = std::chrono::seconds(3723);
  EXPECT_EQ(status_text(node, 80), "ddprun: 1:02:03, round 0, 4 workers");
  node.round.round = Round{2};
  node.round.restarts = 1;
  node.round.max_restarts = 3;
  node.progress.front().emplace().step = 412;
  EXPECT_EQ(status_text(node, 80), "ddprun: 1:02:03, round 2, 4 workers, step 412, restart 1 of 3");
  node.running = 3;
  node.progress.front().reset();
  EXPECT_EQ(status_text(node, 80), "ddprun: 1:02:03, round 2, 3 of 4 workers left, restart 1 of 3");
  node.state = NodeState::kStopping;
  EXPECT_EQ(status_text(node, 80),
            "ddprun: 1:02:03, round 2, waiting for the end of 3 of 4 workers, restart 1 of 3");
  EXPECT_EQ(status_text(node, 20), "ddprun: 1:02:03, rou");
  node.state = NodeState::kWaiting;
  EXPECT_EQ(status_text(node, 80), "ddprun: 1:02:03, waiting for the next round");
}

}  // namespace
}  // namespace ddprun::agent
