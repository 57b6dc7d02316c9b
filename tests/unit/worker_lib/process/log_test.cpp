// Log lines on stderr and in a file per rank. Each case in a process of its own (the logger is the
// process').
#include "ddprun/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <sstream>
#include <thread>

#include "ddprun/error.h"
#include "tests/unit/worker_lib/temp_folder.h"
#include "worker_lib/process/log_setup.h"

namespace ddprun::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

// What a child process that does this writes to its stderr.
std::string stderr_of(const std::function<void()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    body();
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return text;
}

void say_everything() {
  log::debug("a debug line");
  log::info("an info line");
  log::warning("a warning");
}

TEST(Log, TheMainProcessSaysInfoAndTheOthersOnlyWarnings) {
  EXPECT_THAT(
      stderr_of([] {
        set_up_log(0, 2);
        say_everything();
      }),
      AllOf(HasSubstr("[rank 0] an info line\n"), HasSubstr("a warning"), Not(HasSubstr("debug"))));
  EXPECT_THAT(stderr_of([] {
                set_up_log(1, 2);
                say_everything();
              }),
              AllOf(HasSubstr("[rank 1] a warning\n"), Not(HasSubstr("info"))));
  EXPECT_THAT(stderr_of([] {
                set_up_log(0, 1);
                say_everything();
              }),
              Not(HasSubstr("rank")));
}

TEST(Log, TheDefaultLoggerOfSpdlogStaysTheProgramsOwn) {
  const auto before = spdlog::default_logger();
  set_up_log(0, 2);
  EXPECT_EQ(spdlog::default_logger(), before);
}

TEST(Log, ALevelThatIsAskedForIsEveryRanks) {
  EXPECT_THAT(stderr_of([] {
                set_up_log(1, 2, {.level = log::level_from("debug")});
                say_everything();
              }),
              HasSubstr("[rank 1] a debug line"));
  EXPECT_EQ(stderr_of([] {
              set_up_log(0, 2, {.level = log::level_from("error")});
              say_everything();
            }),
            "");
  EXPECT_EQ(log::level_from("loud"), std::nullopt);
}

TEST(Log, EveryRankHasAFileWhenOneIsAskedFor) {
  const TempFolder folder;
  const std::string logs = folder.path() + "/a/new/folder";
  for (int round = 0; round < 2; ++round) {
    EXPECT_THAT(stderr_of([&] {
                  set_up_log(3, 4, {.folder = logs});
                  say_everything();
                }),
                Not(HasSubstr("info")));
  }
  const std::string text = read(logs + "/rank3.log");
  EXPECT_THAT(text, AllOf(HasSubstr("[rank 3] an info line\n"), HasSubstr("a warning\n")));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4) << "of both rounds";
}

TEST(Log, AFolderThatCannotBeWrittenIsAnError) {
  EXPECT_THAT([] { set_up_log(0, 2, {.folder = "/proc/no/such"}); },
              ThrowsMessage<UsageError>(HasSubstr("/proc/no/such/rank0.log cannot be written")));
}

TEST(Log, LinesOfManyThreadsAndProcessesNeverMixWithinALine) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not follow threads of a process that was forked by threads";
#endif
  const TempFolder folder;
  constexpr int kLines = 500;
  const auto shout = [&] {
    set_up_log(0, 2, {.folder = folder.path()});
    std::vector<std::thread> threads;
    for (char letter : {'a', 'b', 'c'}) {
      threads.emplace_back([letter] {
        for (int i = 0; i < kLines; ++i) log::info(std::string(300, letter));
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  std::string console;
  std::thread other([&] { stderr_of(shout); });  // the same file, another process
  console = stderr_of(shout);
  other.join();
  for (const auto& [text, lines] :
       {std::pair{console, 3 * kLines}, std::pair{read(folder.file("rank0.log")), 6 * kLines}}) {
    std::istringstream stream(text);
    int whole = 0;
    for (std::string line; std::getline(stream, line);) {
      const std::string letters = line.substr(line.rfind(' ') + 1);
      whole += letters.size() == 300 && letters == std::string(300, letters.front()) ? 1 : 0;
    }
    EXPECT_EQ(whole, lines);
  }
}

}  // namespace
}  // namespace ddprun::test
