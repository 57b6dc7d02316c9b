// The output of workers arrives completely, and no output can harm the job.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <system_error>

#include "tests/support/job.h"
#include "tests/support/terminal.h"

namespace ddprun::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// How many lines of each rank there are; a torn, missing or repeated one fails the test.
std::map<std::string, long> whole_lines(const std::string& output) {
  std::map<std::string, long> next;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string rank, rest;
    long number = -1;
    words >> rank >> number >> rest;
    EXPECT_EQ(rest, std::string(40, '.')) << "torn: " << line;
    if (rest != std::string(40, '.')) break;
    EXPECT_EQ(number, next[rank]) << "of rank " << rank;
    next[rank] = number + 1;
  }
  return next;
}

TEST(Output, AFloodOfLinesArrivesWhole) {
  Job job(ddprun({"--nproc-per-node=2"}, worker({"flood", "200000"})));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(whole_lines(job.out()), (std::map<std::string, long>{{"0", 200'000}, {"1", 200'000}}));
}

// Nobody reads for a while: the worker waits, and nothing is lost.
TEST(Output, AReaderThatPausesLosesNothing) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  Job job(ddprun({}, worker({"flood", "50000"})), {.stdout_fd = ends[1]});
  close(ends[1]);
  const auto pipe_is_full = [&] {
    int waiting = 0;
    return ioctl(ends[0], FIONREAD, &waiting) == 0 && waiting >= 60'000;
  };
  ASSERT_TRUE(job.reaches(pipe_is_full)) << job.err();
  std::string output;
  std::array<char, 65'536> buffer{};
  for (ssize_t count = 0; (count = read(ends[0], buffer.data(), buffer.size())) > 0;) {
    output.append(buffer.data(), static_cast<std::size_t>(count));
  }
  close(ends[0]);
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(whole_lines(output), (std::map<std::string, long>{{"0", 50'000}}));
}

TEST(Output, AReaderThatNeverReadsDoesNotKeepTheJobFromStopping) {
  for (const std::string tee : {"0", "3"}) {
    SCOPED_TRACE("--tee=" + tee);
    std::array<int, 2> ends{};
    ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    const TemporaryTree folder;
    Job job(ddprun({"--nproc-per-node=2", "--tee=" + tee, "--log-dir=" + (folder / "logs")},
                   worker({"stamp", folder.path(), "flood", "1000000"})),
            {.stdout_fd = ends[1]});
    close(ends[1]);
    ASSERT_TRUE(job.reaches([&] { return stamps(folder.path(), 0).size() == 2; })) << job.err();
    job.signal(SIGTERM);
    EXPECT_EQ(job.wait(seconds(10)), exited(143)) << job.err();
    EXPECT_THAT(job.left_over(), IsEmpty());
    close(ends[0]);
  }
}

// When it goes on, its patience with the reader is over, and one more signal has come.
TEST(Output, ALauncherThatWasStoppedWhileItWaitedForAReaderEndsWell) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const TemporaryTree folder;
  Job job(ddprun({"--tee=1", "--log-dir=" + (folder / "logs"), "--events=" + (folder / "events")},
                 worker({"flood", "1000000"})),
          {.stdout_fd = ends[1]});
  close(ends[1]);
  const auto is_console_behind = [&] {
    std::uintmax_t logged = 0;
    std::error_code not_there;
    for (std::filesystem::recursive_directory_iterator each(folder / "logs", not_there), end;
         each != end; each.increment(not_there)) {
      if (each->path().filename() == "stdout.log") logged = each->file_size(not_there);
    }
    return !not_there && logged > 2'000'000;
  };
  ASSERT_TRUE(job.reaches(is_console_behind)) << job.err();
  job.signal(SIGTERM);
  ASSERT_TRUE(job.reaches([&] {
    return read_file(folder / "events").find("\"finished\"") != std::string::npos;
  })) << job.err();
  job.signal(SIGSTOP);
  EXPECT_EQ(job.wait(milliseconds(600)), Ended{}) << "longer than it waits for a reader";
  job.signal(SIGTERM);
  job.signal(SIGCONT);
  EXPECT_EQ(job.wait(), exited(143)) << job.err();
  close(ends[0]);
}

// Rank 1 dies while both workers and the launcher wait for a reader that never comes.
TEST(Output, AReaderThatNeverReadsDoesNotKeepADeathFromBeingSeen) {
  for (const std::string option : {"--log-line-prefix-template=[${rank}]:", "--tee=3"}) {
    SCOPED_TRACE(option);
    std::array<int, 2> ends{};
    ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    const TemporaryTree folder;
    Job job(
        ddprun({"--nproc-per-node=2", "--max-restarts=1", option,
                "--log-dir=" + (option == "--tee=3" ? folder / "logs" : "")},
               worker({"stamp", folder.path(), "on-round", "0", "pour", "100000000@4", "wait"})),
        {.stdout_fd = ends[1]});
    close(ends[1]);
    ASSERT_TRUE(job.reaches([&] {
      int waiting = 0;
      return stamps(folder.path(), 0).size() == 2 && ioctl(ends[0], FIONREAD, &waiting) == 0 &&
             waiting >= 48'000;
    })) << job.err();
    kill(stamps(folder.path(), 0).at(1).pid, SIGKILL);
    EXPECT_TRUE(job.reaches([&] { return stamps(folder.path(), 1).size() == 2; }));
    job.signal(SIGTERM);
    EXPECT_EQ(job.wait(seconds(10)), exited(143));
    close(ends[0]);
  }
}

// The small sister of what scripts/bench output measures.
TEST(Output, EveryByteOfManyStreamsIsInItsFileInOrder) {
  constexpr int kWorkers = 4;
  constexpr int kLines = 10'000;
  for (const char* option : {"-r3", "-t3"}) {
    const TemporaryTree folder;
    Job job(ddprun(
        {"--nproc-per-node=" + std::to_string(kWorkers), option, "--log-dir=" + folder.path()},
        worker({"pour", std::to_string(kLines) + "@0"})));
    ASSERT_EQ(job.wait(), exited(0));
    int files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
      if (!entry.is_regular_file()) continue;
      ++files;
      const std::string rank = entry.path().parent_path().filename();
      const std::string stream = entry.path().stem() == "stdout" ? "out" : "err";
      const std::string content = read_file(entry.path());
      ASSERT_EQ(content.size(), 120U * kLines) << option << " " << entry.path();
      for (int line = 0; line < kLines; ++line) {
        std::string number = std::to_string(line);
        number.insert(0, 10 - number.size(), '0');
        std::string expected = rank + " " + stream + " " + number + " ";
        expected.resize(119, '.');
        const auto begin = 120U * static_cast<std::size_t>(line);
        ASSERT_EQ(content.substr(begin, 120), expected + "\n") << option << " " << entry.path();
      }
    }
    EXPECT_EQ(files, 2 * kWorkers);
  }
}

TEST(Output, AWorkerMayCloseItsStdoutAndStderr) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2"}, worker({"close", "1", "close", "2", "stamp", folder.path(),
                                                 "until", folder / "go", "exit", "6"})));
  ASSERT_TRUE(job.reaches([&] { return stamps(folder.path(), 0).size() == 2; })) << job.err();
  EXPECT_EQ(job.wait(milliseconds(100)), Ended{}) << "closing a stream is not an end";
  write_file(folder / "go", "");
  EXPECT_EQ(job.wait(), exited(6)) << job.err();
}

TEST(Output, StderrPassesThroughUnchanged) {
  Job job(ddprun({}, worker({"complain", "first", "complain", "", "complain", "  last"})));
  EXPECT_EQ(job.wait(), exited(0));
  EXPECT_EQ(job.err(), "first\n\n  last\n");
}

TEST(Output, TeeWritesToTheLogAndPrefixedToTheConsole) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2", "--tee=3", "--log-dir=" + folder.path()},
                 worker({"print", "said {rank}", "complain", "cried {rank}"})));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("[default0]:said 0\n"));
  EXPECT_THAT(job.out(), HasSubstr("[default1]:said 1\n"));
  EXPECT_THAT(job.err(), HasSubstr("[default1]:cried 1\n"));
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (!entry.is_regular_file()) continue;
    const auto rank = entry.path().parent_path().filename();
    const auto attempt = entry.path().parent_path().parent_path().filename();
    files[(attempt / rank / entry.path().filename()).string()] = read_file(entry.path());
  }
  EXPECT_EQ(files["attempt_0/0/stdout.log"], "said 0\n");
  EXPECT_EQ(files["attempt_0/1/stdout.log"], "said 1\n");
  EXPECT_EQ(files["attempt_0/0/stderr.log"], "cried 0\n");
  EXPECT_EQ(files["attempt_0/1/stderr.log"], "cried 1\n");
}

TEST(Output, RedirectKeepsItOffTheConsole) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2", "-r", "0:3", "--log-dir=" + folder.path()},
                 worker({"print", "said {rank}", "complain", "cried {rank}"})));
  EXPECT_EQ(job.wait(), exited(0));
  EXPECT_EQ(job.out(), "said 1\n");
  EXPECT_EQ(job.err(), "cried 1\n");
}

// Every round has files of its own: the reason for a restart is in the first one's.
TEST(Output, LogsOfEarlierRoundsAreKept) {
  const TemporaryTree folder;
  Job job(ddprun({"--max-restarts=1", "-r", "3", "--log-dir=" + folder.path()},
                 worker({"print", "round {round}", "on-round", "0", "exit", "1"})));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  std::map<std::string, std::string> by_round;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (entry.path().filename() == "stdout.log") {
      by_round[entry.path().parent_path().parent_path().filename()] = read_file(entry.path());
    }
  }
  EXPECT_EQ(by_round, (std::map<std::string, std::string>{{"attempt_0", "round 0\n"},
                                                          {"attempt_1", "round 1\n"}}));
}

// On a terminal that belongs to ddprun alone there is a live line, and colour.
class OnATerminal : public ::testing::Test {
 protected:
  std::string run(const std::map<std::string, std::string>& environment, const Command& command) {
    Terminal terminal;
    JobSetup setup;
    setup.environment = environment;
    setup.removed_variables = {"NO_COLOR"};
    setup.stdout_fd = setup.stderr_fd = terminal.fd();
    Job job(command, setup);
    if (!eventually([&] { return terminal.seen().find(awaited_) != std::string::npos; })) {
      ADD_FAILURE() << "no '" << awaited_ << "' in: " << terminal.seen();
    }
    job.signal(SIGTERM);
    EXPECT_EQ(job.wait(), exited(143));
    return terminal.seen();
  }

  TemporaryTree folder_;
  std::string awaited_;
};

TEST_F(OnATerminal, TheStatusIsOneLineThatIsRewritten) {
  awaited_ = "\r\x1b[Kddprun: 0:00:01, round 0, 2 workers";
  const std::string seen =
      run({{"TERM", "xterm"}},
          ddprun({"--nproc-per-node=2", "-r3", "--log-dir=" + folder_.path()}, worker({"wait"})));
  EXPECT_THAT(seen, HasSubstr("\x1b[1;33mddprun:\x1b[0m got SIGTERM"));
  EXPECT_THAT(seen, HasSubstr("\x1b[1;31mddprun: "));  // the report
  // The line was erased before what came after it.
  const std::string after = seen.substr(seen.rfind("2 workers") + 9);
  EXPECT_EQ(after.rfind("\r\x1b[K", 0), 0U) << after;
}

TEST_F(OnATerminal, NoColorLeavesTheStatusPlain) {
  awaited_ = "\r\x1b[Kddprun: 0:00:01, round 0, 1 worker";
  const std::string seen = run({{"TERM", "xterm"}, {"NO_COLOR", "1"}},
                               ddprun({"-r3", "--log-dir=" + folder_.path()}, worker({"wait"})));
  EXPECT_THAT(seen, HasSubstr("] ddprun: got SIGTERM"));
  EXPECT_THAT(seen, Not(HasSubstr("\x1b[1;")));
}

TEST_F(OnATerminal, ADumbOneGetsPlainLinesOnly) {
  awaited_ = "\n";
  const std::string seen = run({{"TERM", "dumb"}}, ddprun({"-t3", "--log-dir=" + folder_.path()},
                                                          worker({"flood", "1", "wait"})));
  EXPECT_THAT(seen, Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace ddprun::test
