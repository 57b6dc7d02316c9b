// The memory itself.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <optional>

#include "rendezvous/common/cgroup.h"
#include "tests/unit/worker_lib/outcome.h"
#include "worker_lib/shm/shm_segment.h"

namespace ddprun::shm {
namespace {

using testing::HasSubstr;

constexpr std::size_t kUsual = 2560 << 10;

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
  auto segment = Segment::make(geometry_for(3, 1));
  const std::size_t slot = segment.geometry().slot_bytes;
  for (int rank = 0; rank < 3; ++rank) {
    segment.allocate(rank);
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

TEST(ShmSegment, ARanksMemoryIsTakenBeforehand) {
  auto segment = Segment::make(geometry_for(2, kUsual));
  const auto bytes_taken = [&] {
    struct stat found {};
    EXPECT_EQ(::fstat(segment.memory().get(), &found), 0);
    return static_cast<std::size_t>(found.st_blocks) * 512;
  };
  for (std::size_t rank = 0; rank < 2; ++rank) {
    segment.allocate(static_cast<int>(rank));
    EXPECT_GE(bytes_taken(), (rank + 1) * segment.geometry().slots_bytes());
  }
}

TEST(ShmSegment, RefusesMemoryThatIsNotWhatItShouldBe) {
  const Geometry geometry = geometry_for(2, 1);
  const auto segment = Segment::make(geometry);
  const auto error_of = [](const rdzv::UniqueFd& memory, const Geometry& expected) {
    const auto mapped = test::outcome([&] { return Segment::map(copy_of(memory), expected); });
    return mapped ? std::string() : mapped.error().message;
  };
  EXPECT_EQ(error_of(segment.memory(), geometry), "");
  EXPECT_THAT(error_of(segment.memory(), geometry_for(3, 1)), HasSubstr("bytes, not the"));
  rdzv::UniqueFd open_ended(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(open_ended.get(), static_cast<off_t>(geometry.total())), 0);
  EXPECT_THAT(error_of(open_ended, geometry), HasSubstr("none of sealed size"));
}

rlim_t addresses_taken() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * kPage;
}

// In a child, whose limits end with it.
TEST(ShmSegment, ALimitThatIsTooSmallIsAnErrorAndNoSignal) {
  for (const int limit : {RLIMIT_FSIZE, RLIMIT_AS}) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      // Of addresses, room for what else a process does, be it a sanitizer.
      const rlim_t taken = limit == RLIMIT_AS ? addresses_taken() : 0;
      const rlimit low{taken + (4 << 20), taken + (4 << 20)};
      const auto segment = test::outcome([&] {
        if (::setrlimit(static_cast<__rlimit_resource>(limit), &low) != 0) std::abort();
        return Segment::make(geometry_for(8, kUsual));
      });
      const bool is_said = !segment && segment.error().code == ErrorCode::kResourceExhausted &&
                           segment.error().message.find("MiB of memory") != std::string::npos;
      ::_exit(is_said ? 0 : 1);
    }
    int status = -1;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0) << "limit " << limit;
  }
}

// A control group with a limit, inside one that this process is in; none where such may not be made.
class SmallGroup {
 public:
  static std::optional<std::string> make(std::uint64_t limit) {
    for (const std::string& around : cgroup::folders("memory")) {
      const std::string folder = around + "/ddprun_test_" + std::to_string(::getpid());
      if (::mkdir(folder.c_str(), 0755) != 0) continue;
      for (const char* name : {"/memory.max", "/memory.limit_in_bytes"}) {
        if (write(folder + name, std::to_string(limit))) return folder;
      }
      ::rmdir(folder.c_str());
    }
    return std::nullopt;
  }

  explicit SmallGroup(std::string folder) : folder_(std::move(folder)) {}
  ~SmallGroup() { ::rmdir(folder_.c_str()); }
  SmallGroup(const SmallGroup&) = delete;
  SmallGroup& operator=(const SmallGroup&) = delete;

  // The status of a child in this group.
  int run(const std::function<int()>& body) const {
    const pid_t pid = ::fork();
    if (pid == 0) {
      if (!write(folder_ + "/cgroup.procs", "0")) ::_exit(100);
      ::_exit(body());
    }
    int status = -1;
    ::waitpid(pid, &status, 0);
    return status;
  }

 private:
  // Never makes the file.
  static bool write(const std::string& path, const std::string& text) {
    const rdzv::UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return file &&
           ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  }

  std::string folder_;
};

bool speaks_of_the_group(const Result<void>& result) {
  if (result) return false;
  std::fprintf(stderr, "%s\n", result.error().message.c_str());
  return result.error().code == ErrorCode::kResourceExhausted &&
         result.error().message.find("/ddprun_test_") != std::string::npos &&
         result.error().message.find("shared_bytes_per_rank") != std::string::npos;
}

TEST(ShmSegment, AControlGroupThatIsTooSmallIsAnErrorAndNoKill) {
  const auto folder = SmallGroup::make(16 << 20);
  if (!folder) GTEST_SKIP() << "no control group for memory can be made here";
  const SmallGroup group(*folder);
  const auto make_and_allocate = [](const Geometry& geometry) {
    return test::outcome([&] {
      auto segment = Segment::make(geometry);
      for (int rank = 0; rank < segment.ranks(); ++rank) segment.allocate(rank);
    });
  };
  EXPECT_EQ(group.run([&] {
    return speaks_of_the_group(make_and_allocate(geometry_for(8, kUsual))) ? 0 : 1;
  }),
            0);
  EXPECT_EQ(group.run([&] { return make_and_allocate(geometry_for(2, kUsual)) ? 0 : 1; }), 0)
      << "and what there is room for can be had";
  // Made by a rank outside.
  auto segment = Segment::make(geometry_for(2, 20 << 20));
  EXPECT_EQ(group.run([&] {
    return speaks_of_the_group(test::outcome([&] { segment.allocate(1); })) ? 0 : 1;
  }),
            0);
}

}  // namespace
}  // namespace ddprun::shm
