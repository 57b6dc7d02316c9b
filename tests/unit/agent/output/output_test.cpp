#include "agent/output/output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/terminal.h"
#include "tests/unit/agent/output/output_fixture.h"

namespace ddprun::agent {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

using DefaultOutput = OutputTest;

TEST_F(DefaultOutput, StdoutIsInherited) {
  const auto streams = make({}).open(0, {0, 0, "role"});
  ASSERT_TRUE(streams);
  EXPECT_EQ(streams->stdout_fd, -1);
}

TEST_F(DefaultOutput, TheWorkersEndOfStderrIsBlockingAndClosesOnExec) {
  const auto streams = make({}).open(0, {0, 0, "role"});
  ASSERT_TRUE(streams);
  EXPECT_EQ(::fcntl(streams->stderr_fd, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(::fcntl(streams->stderr_fd, F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(DefaultOutput, StderrPassesThroughUnchanged) {
  make({});
  const auto worker = start(0);
  const std::string odd("a\0b\xff\xfe\r\n\tc\n", 10);
  write_all(worker->err, odd);
  EXPECT_TRUE(sees_stderr(odd));
}

TEST_F(DefaultOutput, APromptWithoutNewlineAppears) {
  make({});
  const auto worker = start(0);
  write_all(worker->err, "line\nPassword: ");
  EXPECT_TRUE(sees_stderr("line\nPassword: "));
}

TEST_F(DefaultOutput, LinesWrittenInPiecesDoNotMix) {
  make({});
  const auto first = start(0);
  const auto second = start(1);
  write_all(first->err, "first ");
  loop_.run_one();  // read, and held: however long this test is kept waiting now, the line goes on
  write_all(second->err, "second line\n");
  write_all(first->err, "line\n");
  EXPECT_TRUE(run_until(loop_, [&] {
    seen_err_ += err_.read_available();
    return seen_err_.size() >= 23;
  }));
  EXPECT_THAT(seen_err_, testing::AnyOf("second line\nfirst line\n", "first line\nsecond line\n"));
}

TEST_F(DefaultOutput, TheTailIsKeptUntilTheNextStart) {
  OutputSpec spec;
  spec.stderr_tail_lines = 2;
  Output& output = make(spec);
  auto worker = start(3);
  write_all(worker->err, "one\ntwo\nthree");
  worker.reset();
  output.ended(3);  // without the loop having run: what the pipe holds is taken here
  EXPECT_THAT(output.stderr_tail(3), ElementsAre("two", "three"));
  EXPECT_TRUE(deliver());
  EXPECT_EQ(seen_err_, "one\ntwo\nthree");
  EXPECT_THAT(output.stderr_tail(3), ElementsAre("two", "three"));
  worker = start(3, 1);
  EXPECT_THAT(output.stderr_tail(3), IsEmpty());
  EXPECT_THAT(output.stderr_tail(7), IsEmpty());
}

TEST_F(DefaultOutput, WithABlockedConsoleTheWorkerWaitsTheTailIsKeptAndNothingIsLost) {
  Output& output = make({});
  const std::size_t filled = err_.fill();
  auto worker = start(0);
  ::fcntl(worker->err, F_SETFL, O_NONBLOCK);
  std::string written;
  // Until the pipe, the agent's buffer and the console's queue are full.
  const auto writes_nothing_more = [&] {
    const auto before = written.size();
    for (int i = 0; i < 1000; ++i) {
      const std::string line = "line " + std::to_string(written.size()) + "\n";
      if (::write(worker->err, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
        break;
      written += line;
    }
    return written.size() == before;
  };
  for (int quiet = 0; quiet < 20;) {
    quiet = writes_nothing_more() ? quiet + 1 : 0;
    loop_.restart();
    loop_.run_one_for(milliseconds(1));
  }
  EXPECT_LT(written.size(), 512 * 1024);
  worker.reset();
  output.ended(0);
  EXPECT_THAT(output.stderr_tail(0), testing::SizeIs(20));
  EXPECT_TRUE(written.ends_with(output.stderr_tail(0).back() + "\n"));
  EXPECT_TRUE(deliver());
  EXPECT_EQ(seen_err_.substr(filled), written);
}

TEST_F(DefaultOutput, IsNotDeliveredBeforeABlockedConsoleIsRead) {
  Output& output = make({});
  err_.fill();
  auto worker = start(0);
  for (int i = 0; i < 3; ++i) {  // into the console's queue, the agent's buffer, the pipe
    write_all(worker->err, std::string(50'000, 'x') + "\n");
    loop_.restart();
    loop_.run_for(milliseconds(2));
  }
  worker.reset();
  output.ended(0);
  bool done = false;
  output.when_delivered([&] { done = true; });
  loop_.restart();
  loop_.run_for(milliseconds(20));
  EXPECT_FALSE(done);
  EXPECT_TRUE(run_until(loop_, [&] {
    err_.read_available();
    return done;
  }));
}

TEST_F(DefaultOutput, ClosingStderrEndsTheStreamAndNotTheWorker) {
  Output& output = make({});
  const auto worker = start(0);
  write_all(worker->err, "last words");
  FakeWorker::close_fd(worker->err);
  EXPECT_TRUE(sees_stderr("last words"));
  output.ended(0);
  EXPECT_THAT(output.stderr_tail(0), ElementsAre("last words"));
}

TEST_F(DefaultOutput, AProcessThatLeftTheGroupDoesNotHoldUpTheEnd) {
  Output& output = make({});
  const auto worker = start(0);
  write_all(worker->err, "x\n");
  output.ended(0);  // though the worker's end is still open
  EXPECT_TRUE(deliver());
  EXPECT_EQ(seen_err_, "x\n");
}

TEST_F(DefaultOutput, OrderIsKeptInAFloodOfEightWorkers) {
  make({});
  constexpr int kWorkers = 8;
  constexpr int kLines = 20'000;
  const auto line_of = [](std::size_t worker, int number) {
    return std::to_string(worker) + " " + std::to_string(number) + " some words to fill the line\n";
  };
  std::vector<std::unique_ptr<FakeWorker>> workers;
  std::vector<std::jthread> writers;
  for (int i = 0; i < kWorkers; ++i) {
    workers.push_back(start(i));
    writers.emplace_back([&line_of, i, fd = workers.back()->err] {
      for (int n = 0; n < kLines; ++n) write_all(fd, line_of(static_cast<std::size_t>(i), n));
    });
  }
  std::array<int, kWorkers> next{};
  std::string rest;
  int lines = 0;
  EXPECT_TRUE(run_until(loop_, [&] {
    rest += err_.read_available();
    std::size_t begin = 0;
    for (std::size_t end; (end = rest.find('\n', begin)) != std::string::npos; ++lines) {
      const auto worker = static_cast<std::size_t>(rest[begin] - '0') % kWorkers;
      EXPECT_EQ(rest.substr(begin, end + 1 - begin), line_of(worker, next.at(worker)++));
      if (HasFailure()) return true;
      begin = end + 1;
    }
    rest.erase(0, begin);
    return lines == kWorkers * kLines;
  }));
  output_.reset();  // lets writers go, whatever happened
}

TEST_F(DefaultOutput, LeavesNoDescriptorAndNoFileAfterManyRounds) {
  make({});
  start(0).reset();
  output_->ended(0);
  EXPECT_TRUE(deliver());
  const std::size_t before = open_descriptors();
  for (std::uint64_t round = 1; round <= 200; ++round) {
    auto worker = start(0, round);
    if (round % 2 == 0) write_all(worker->err, "x\n");
    worker.reset();
    output_->ended(0);
  }
  EXPECT_TRUE(deliver());
  EXPECT_EQ(open_descriptors(), before);
  output_.reset();
  EXPECT_TRUE(std::filesystem::is_empty(temporary_.path()));
}

TEST_F(DefaultOutput, AStartThatFailedIsEndedToo) {
  Output& output = make({});
  const std::size_t before = open_descriptors();
  ASSERT_TRUE(output.open(0, {0, 0, "role"}));
  output.ended(0);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(DefaultOutput, ErrorFilesNeedNoFolderAndAreGoneWithTheirRound) {
  Output& output = make({});
  start(0);
  start(1);
  const std::string file = output.error_file_of(0, 1);
  EXPECT_THAT(file,
              AllOf(StartsWith(temporary_.path() + "/torchelastic_"), EndsWith("_0_1_error.json")));
  EXPECT_TRUE(std::filesystem::is_empty(temporary_.path()));
  std::ofstream(file) << "{}";
  start(1, 1);  // beside the loop
  EXPECT_TRUE(run_until(loop_, [&] { return !std::filesystem::exists(file); }));
  std::ofstream(output.error_file_of(1, 1)) << "{}";
  // Of one that takes this worker's place, and of another one after it.
  for (const char* const newcomer : {"third", "fourth"}) {
    start(1, 1);
    EXPECT_TRUE(run_until(loop_, [&] { return std::filesystem::is_empty(temporary_.path()); }));
    output.set_error_file(1, temporary_.path() + "/" + newcomer);
    std::ofstream(temporary_.path() + "/" + newcomer) << "{}";
  }
  // The keeper removes the last one.
}

TEST_F(DefaultOutput, LogDirDevNullMeansNoErrorFile) {
  OutputSpec spec;
  spec.log_dir = "/dev/null";
  make(spec);
  start(0);
  EXPECT_EQ(output_->error_file_of(0, 0), "");
  EXPECT_TRUE(std::filesystem::is_empty(temporary_.path()));
}

// The agent's stderr is a terminal: another pseudo-terminal, of which the test has the other side.
class TerminalOutput : public testing::Test {
 protected:
  void SetUp() override {
    terminal_.set_size(30, 101);
    console_ = std::make_unique<Console>(
        loop_.get_executor(), Console::Options{out_.write_end(), terminal_.fd(), 64 * 1024});
    output_ = std::make_unique<Output>(loop_.get_executor(), *console_, OutputSpec{}, "run",
                                       temporary_.path());
    output_->prepare([](const Result<void>& made) { ASSERT_TRUE(made); });
    const auto streams = output_->open(0, {0, 0, "role"});
    ASSERT_TRUE(streams);
    worker_ = std::make_unique<FakeWorker>(*streams);
    output_->started(0);
  }
  void TearDown() override {
    output_.reset();
    console_.reset();
  }

  bool sees(const std::string& text) {
    return run_until(loop_, [&] { return terminal_.seen().size() >= text.size(); }) &&
           terminal_.seen() == text;
  }

  boost::asio::io_context loop_;
  PipeEnds out_;
  test::Terminal terminal_;
  TemporaryDirectory temporary_;
  std::unique_ptr<Console> console_;
  std::unique_ptr<Output> output_;
  std::unique_ptr<FakeWorker> worker_;
};

TEST_F(TerminalOutput, StderrIsATerminalOfTheSameSize) {
  EXPECT_EQ(::isatty(worker_->err), 1);
  winsize size{};
  ASSERT_EQ(::ioctl(worker_->err, TIOCGWINSZ, &size), 0);
  EXPECT_EQ(size.ws_row, 30);
  EXPECT_EQ(size.ws_col, 101);
  terminal_.set_size(50, 60);
  output_->window_changed();
  ASSERT_EQ(::ioctl(worker_->err, TIOCGWINSZ, &size), 0);
  EXPECT_EQ(size.ws_col, 60);
}

TEST_F(TerminalOutput, NoByteIsChangedAndThePromptAppears) {
  std::string text;
  for (int c = 0; c < 256; ++c) text += static_cast<char>(c);
  text += "\nprompt> ";
  write_all(worker_->err, text);
  EXPECT_TRUE(sees(text));
}

TEST_F(TerminalOutput, LastWordsAreNotLost) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += "line " + std::to_string(i) + "\n";
  write_all(worker_->err, text);
  worker_.reset();
  output_->ended(0);
  EXPECT_EQ(output_->stderr_tail(0).back(), "line 299");
  EXPECT_TRUE(sees(text));
}

TEST_F(TerminalOutput, ItIsNotTheWorkersControllingTerminal) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setsid();
    ::dup2(worker_->err, 2);
    ::_exit(::open("/dev/tty", O_RDWR) < 0 && ::isatty(2) == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ddprun::agent
