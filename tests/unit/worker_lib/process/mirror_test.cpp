// The memory in which a rank notes the state that only it has: what the process that takes its place finds there.
#include "worker_lib/process/mirror.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <tuple>

#include "ddprun/error.h"

namespace ddprun {
namespace {

using Moment = Mirror::Moment;

std::unique_ptr<Mirror> other_process_sees(const Mirror& mirror) {
  return Mirror::open(rdzv::UniqueFd(::dup(mirror.descriptor())));
}

TEST(Mirror, GivesTheStatesOfTheLastTwoSteps) {
  const auto mirror = Mirror::make(100, "set-up");
  EXPECT_EQ(mirror->read(0, Moment::kEntry), std::nullopt);
  for (std::int64_t step = 0; step < 5; ++step) {
    ASSERT_TRUE(mirror->write(step, Moment::kEntry, "entry " + std::to_string(step)));
    ASSERT_TRUE(mirror->write(step, Moment::kEffect, "effect " + std::to_string(step)));
  }
  const auto seen = other_process_sees(*mirror);
  EXPECT_EQ(seen->setup(), "set-up");
  EXPECT_EQ(seen->read(4, Moment::kEntry), "entry 4");
  EXPECT_EQ(seen->read(4, Moment::kEffect), "effect 4");
  EXPECT_EQ(seen->read(3, Moment::kEntry), "entry 3");
  EXPECT_EQ(seen->read(3, Moment::kEffect), "effect 3");
  EXPECT_EQ(seen->read(2, Moment::kEntry), std::nullopt);
}

TEST(Mirror, HasNoEffectOfAStepThatHasGivenTheOthersNothing) {
  const auto mirror = Mirror::make(100, "");
  mirror->write(1, Moment::kEffect, "of step 1");
  mirror->write(3, Moment::kEntry, "of step 3");
  EXPECT_EQ(mirror->read(3, Moment::kEffect), std::nullopt);
}

TEST(Mirror, RefusesAStateThatIsTooLargeAndForgetsTheOneBefore) {
  const auto mirror = Mirror::make(64, "");
  ASSERT_TRUE(mirror->write(2, Moment::kEntry, std::string(64, 'x')));
  EXPECT_FALSE(mirror->write(2, Moment::kEntry, std::string(65, 'x')));
  EXPECT_EQ(mirror->read(2, Moment::kEntry), std::nullopt);
  ASSERT_TRUE(mirror->write(2, Moment::kEntry, ""));
  EXPECT_EQ(mirror->read(2, Moment::kEntry), "");
}

TEST(Mirror, TakesAStateInParts) {
  const auto mirror = Mirror::make(64, "");
  const std::string_view parts[] = {"head", "", " and data"};
  ASSERT_TRUE(mirror->write(2, Moment::kEffect, parts));
  EXPECT_EQ(other_process_sees(*mirror)->read(2, Moment::kEffect), "head and data");
  const std::string large(61, 'x');
  const std::string_view too_large[] = {"head", large};
  EXPECT_FALSE(mirror->write(2, Moment::kEffect, too_large));
}

TEST(Mirror, GrowsWithWhatItHasOfTheLastTwoSteps) {
  const auto mirror = Mirror::make(64, "set-up");
  mirror->write(4, Moment::kEntry, "entry 4");
  mirror->write(5, Moment::kEntry, "entry 5");
  mirror->write(5, Moment::kEffect, "effect 5");
  const auto larger = mirror->larger(6, 1000);
  ASSERT_TRUE(larger->write(6, Moment::kEntry, std::string(1000, 'x')));
  EXPECT_EQ(larger->setup(), "set-up");
  EXPECT_EQ(larger->read(4, Moment::kEntry), std::nullopt);
  EXPECT_EQ(larger->read(5, Moment::kEntry), "entry 5");
  EXPECT_EQ(larger->read(5, Moment::kEffect), "effect 5");
}

// Killed at any instruction: each state that is read is whole.
TEST(Mirror, HasNoTornStateOfAProcessThatIsKilled) {
  const auto mirror = Mirror::make(4096, "");
  for (int life = 0; life < 50; ++life) {
    int begun[2];
    ASSERT_EQ(::pipe(begun), 0);
    const pid_t writer = ::fork();
    if (writer == 0) {
      for (std::int64_t step = 0;; ++step) {
        if (step == 1) std::ignore = ::write(begun[1], "x", 1);
        const std::string state(1000 + static_cast<std::size_t>(step % 3000),
                                static_cast<char>('a' + step % 26));
        mirror->write(step, Moment::kEntry, state);
      }
    }
    char byte = 0;
    ASSERT_EQ(::read(begun[0], &byte, 1), 1);
    ::close(begun[0]);
    ::close(begun[1]);
    ::usleep(static_cast<useconds_t>(37 * life));  // anywhere
    ::kill(writer, SIGKILL);
    ::waitpid(writer, nullptr, 0);
    int whole = 0;
    for (std::int64_t step = 0; step < 1'000'000 && whole < 2; ++step) {
      const auto state = mirror->read(step, Moment::kEntry);
      if (!state) continue;
      ++whole;
      ASSERT_EQ(*state, std::string(1000 + static_cast<std::size_t>(step % 3000),
                                    static_cast<char>('a' + step % 26)));
    }
    ASSERT_GE(whole, 1) << "the step before stays readable";
  }
}

// As after closerange(3, 1024), in a program that has opened a file since.
TEST(Mirror, LeavesAFileAloneThatHasItsNumber) {
  auto mirror = Mirror::make(64, "");
  const int number = mirror->descriptor();
  EXPECT_TRUE(is_memory_named(number, Mirror::kName));
  const rdzv::UniqueFd theirs(::memfd_create("theirs", MFD_CLOEXEC));
  ASSERT_EQ(::dup2(theirs.get(), number), number);
  EXPECT_FALSE(is_memory_named(number, Mirror::kName));
  EXPECT_EQ(mirror->descriptor(), -1) << "or the agent would get it";
  EXPECT_TRUE(mirror->write(1, Moment::kEntry, "as before"));
  mirror.reset();
  EXPECT_EQ(::close(number), 0);
}

TEST(Mirror, OpensNothingThatIsNoMirror) {
  EXPECT_THROW(Mirror::open(rdzv::UniqueFd()), Failure);
  EXPECT_THROW(Mirror::open(rdzv::UniqueFd(::memfd_create("empty", 0))), Failure);
  rdzv::UniqueFd zeroes(::memfd_create("zeroes", 0));
  ASSERT_EQ(::ftruncate(zeroes.get(), 8192), 0);
  EXPECT_THROW(Mirror::open(std::move(zeroes)), Failure);
  const auto mirror = Mirror::make(100, "set-up");
  rdzv::UniqueFd longer(::memfd_create("longer", 0));
  ASSERT_EQ(::ftruncate(longer.get(), 8192), 0);
  char header[64];
  ASSERT_EQ(::pread(mirror->descriptor(), header, sizeof header, 0), 64);
  ASSERT_EQ(::pwrite(longer.get(), header, sizeof header, 0), 64);
  EXPECT_THROW(Mirror::open(std::move(longer)), Failure);
}

}  // namespace
}  // namespace ddprun
