// The memory itself, and how it is handed from process to process.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "worker_lib/src/shm_door.h"
#include "worker_lib/src/shm_segment.h"

namespace ddprun::shm {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr std::size_t kUsual = 2560 << 10;

Deadline soon() { return std::chrono::steady_clock::now() + 20s; }

rdzv::UniqueFd copy_of(const rdzv::UniqueFd& memory) {
  return rdzv::UniqueFd(::fcntl(memory.get(), F_DUPFD_CLOEXEC, 0));
}

TEST(ShmSegment, StaysWithinWhatItMayTake) {
  for (const int ranks : {2, 3, 8, 64, 128}) {
    const Geometry geometry = geometry_for(ranks, kUsual);
    EXPECT_LE(geometry.total(), static_cast<std::size_t>(ranks) * (kUsual + 2 * kPage) + kPage)
        << ranks;
    EXPECT_GE(geometry.slot_bytes, std::size_t{1} << 20) << "a piece of " << ranks;
  }
  EXPECT_GE(geometry_for(1000, 1).slot_bytes, 1000 * kLine) << "a line for each rank";
}

TEST(ShmSegment, PartsOfDifferentRanksDoNotOverlap) {
  auto made = Segment::make(geometry_for(3, 1));
  ASSERT_TRUE(made);
  Segment& segment = *made;
  const std::size_t slot = segment.geometry().slot_bytes;
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(segment.touch(rank));
    for (std::uint32_t round = 0; round < 2; ++round) {
      std::fill_n(segment.slot(rank, round), slot, std::byte(2 * rank + static_cast<int>(round)));
    }
    for (int to = 0; to < 3; ++to) segment.mailbox(rank, to).written = 99;
  }
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(segment.page(rank).published, 0U);
    EXPECT_EQ(segment.slot(rank, 7)[slot - 1], std::byte(2 * rank + 1));
    EXPECT_EQ(segment.slot(rank, 6)[0], std::byte(2 * rank));
  }
}

TEST(ShmSegment, RefusesMemoryThatIsNotWhatItShouldBe) {
  const Geometry geometry = geometry_for(2, 1);
  const auto segment = Segment::make(geometry);
  ASSERT_TRUE(segment);
  EXPECT_TRUE(Segment::map(copy_of(segment->memory()), geometry));
  EXPECT_THAT(Segment::map(copy_of(segment->memory()), geometry_for(3, 1)).error().message,
              HasSubstr("bytes, not the"));
  rdzv::UniqueFd open_ended(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(open_ended.get(), static_cast<off_t>(geometry.total())), 0);
  EXPECT_THAT(Segment::map(copy_of(open_ended), geometry).error().message,
              HasSubstr("none of sealed size"));
  ASSERT_EQ(::fcntl(open_ended.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  EXPECT_THAT(Segment::map(std::move(open_ended), geometry).error().message,
              HasSubstr("another layout (version 0)"));
}

// In a child, whose limits end with it.
TEST(ShmSegment, ALimitThatIsTooSmallIsAnErrorAndNoSignal) {
  for (const int limit : {RLIMIT_FSIZE, RLIMIT_AS}) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      const rlimit low{1 << 20, 1 << 20};
      const auto segment = ::setrlimit(static_cast<__rlimit_resource>(limit), &low) == 0
                               ? Segment::make(geometry_for(8, kUsual))
                               : Result<Segment>(fail(ErrorCode::kIo, "setrlimit"));
      const bool is_said = !segment && segment.error().code == ErrorCode::kResourceExhausted &&
                           segment.error().message.find("MiB of memory") != std::string::npos;
      ::_exit(is_said ? 0 : 1);
    }
    int status = -1;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0) << "limit " << limit;
  }
}

TEST(ShmDoor, GivesTheMemoryToWhoKnowsTheWord) {
  const auto segment = Segment::make(geometry_for(3, 1));
  ASSERT_TRUE(segment);
  auto door = Door::open();
  ASSERT_TRUE(door);
  std::thread visitors([&] {
    std::string wrong = door->address();
    wrong.back() = wrong.back() == '0' ? '1' : '0';
    EXPECT_THAT(knock(wrong, soon()).error().message, HasSubstr("gave out no shared memory"));
    for (int i = 0; i < 2; ++i) {
      auto memory = knock(door->address(), soon());
      ASSERT_TRUE(memory) << memory.error().message;
      EXPECT_TRUE(Segment::map(std::move(*memory), segment->geometry()));
    }
  });
  EXPECT_TRUE(door->hand_out(segment->memory(), 2, soon()));
  visitors.join();
}

TEST(ShmDoor, WaitsForVisitorsOnlySoLong) {
  auto door = Door::open();
  ASSERT_TRUE(door);
  const auto segment = Segment::make(geometry_for(2, 1));
  const auto handed = door->hand_out(segment->memory(), 1, std::chrono::steady_clock::now() + 20ms);
  ASSERT_FALSE(handed);
  EXPECT_THAT(handed.error().message, HasSubstr("only 0 of 1 ranks of this node came"));
}

TEST(ShmDoor, IsFoundByItsOwnProcessOnly) {
  std::string address;
  {
    const auto door = Door::open();
    ASSERT_TRUE(door);
    address = door->address();
  }
  EXPECT_FALSE(knock(address, soon())) << "after it is closed";
  const auto door = Door::open();
  std::string other = door->address();
  const std::size_t colon = other.find(':');
  other.insert(colon + 1, "1");
  EXPECT_THAT(knock(other, soon()).error().message, HasSubstr("answers where process 1"));
  EXPECT_THAT(knock("nonsense", soon()).error().message, HasSubstr("is no address"));
}

}  // namespace
}  // namespace ddprun::shm
