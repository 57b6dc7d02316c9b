// The C interface to snapshots in memory, as Python calls it: each rank is a process of its own, forked anew.
#include "worker_lib/process/snapshot_module.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "rendezvous/common/unique_fd.h"
#include "rendezvous/common/worker_abi/worker_link.h"
#include "worker_lib/process/snapshot_memory.h"

namespace ddprun {
namespace {

constexpr int kRanks = 2;
constexpr std::uint64_t kLayout = 7;

// What one process says, for the one that has forked it: a few words.
using Words = std::string;

class SnapshotModule : public ::testing::Test {
 protected:
  // In a new process, which has the memory as a worker has it.
  Words in_process(const std::function<Words(DdprunSnapshots*)>& work) const {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(ends[0]);
      ::setenv(link::kSnapshotVariable, std::to_string(file_.get()).c_str(), 1);
      ::fcntl(file_.get(), F_SETFD, 0);
      const Words said = work(ddprun_snapshots_of_this_process());
      [[maybe_unused]] const auto written = ::write(ends[1], said.data(), said.size());
      ::_exit(0);
    }
    ::close(ends[1]);
    Words said;
    std::array<char, 4096> some{};
    for (ssize_t size = 0; (size = ::read(ends[0], some.data(), some.size())) > 0;) {
      said.append(some.data(), static_cast<std::size_t>(size));
    }
    ::close(ends[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    return said;
  }

  // What a rank keeps: of `data` its share, in pieces of 100 bytes and zeroes at the end, and `own`.
  static Words write(DdprunSnapshots* snapshots, int rank, std::int64_t step,
                     const std::string& data, const std::string& own,
                     std::uint64_t layout = kLayout) {
    std::array<std::uint64_t, 2> share{};
    std::array<char, 200> why{};
    const int how =
        ddprun_snapshots_begin(snapshots, kRanks, rank, rank, kRanks, step, 0, data.size() + 64,
                               layout, own.size(), share.data(), why.data(), why.size());
    if (how == kDdprunRefused) return why.data();
    for (auto at = share[0]; at < share[1];) {
      const auto end = std::min<std::uint64_t>(share[1], at + 100);
      const auto there = std::min<std::uint64_t>(end, data.size());
      std::vector<DdprunPiece> pieces;
      if (at < there) pieces.push_back({data.data() + at, there - at});
      if (std::max(at, there) < end) pieces.push_back({nullptr, end - std::max(at, there)});
      ddprun_snapshots_write(snapshots, 0, pieces.data(), pieces.size());
      at = end;
    }
    const DdprunPiece piece{own.data(), own.size()};
    ddprun_snapshots_write(snapshots, 1, &piece, 1);
    const Words text = rank == 0 ? "text " + std::to_string(step) : "";
    const bool is_kept =
        ddprun_snapshots_finish(snapshots, text.data(), text.size(), nullptr, 0) != 0;
    return (how == kDdprunBegunAnew ? "anew " : "") + Words(is_kept ? "kept" : "not kept");
  }
  Words keep(int rank, std::int64_t step, const std::string& own) const {
    return in_process([&](DdprunSnapshots* snapshots) {
      return write(snapshots, rank, step, data_of(step), own);
    });
  }
  static std::string data_of(std::int64_t step) {
    return std::string(1000, static_cast<char>('a' + step));
  }

  static std::string bytes(const DdprunSnapshots* snapshots, int number, int what, int writer) {
    std::uint64_t size = 0;
    const void* const begin = ddprun_snapshots_bytes(snapshots, number, what, writer, &size);
    return {static_cast<const char*>(begin), size};
  }
  // Steps, texts and own parts of what is whole.
  Words kept() const {
    return in_process([](DdprunSnapshots* snapshots) {
      Words all;
      const int count = ddprun_snapshots_find(snapshots, nullptr, 0);
      for (int number = 0; number < count; ++number) {
        bool is_whole = true;
        for (int writer = 0; writer < ddprun_snapshots_writers(snapshots, number); ++writer) {
          is_whole = ddprun_snapshots_check(snapshots, number, writer) != 0 && is_whole;
        }
        if (!is_whole) continue;
        const std::int64_t step = ddprun_snapshots_step(snapshots, number);
        all += std::to_string(step) + ":" + bytes(snapshots, number, kDdprunText, 0) + "," +
               bytes(snapshots, number, kDdprunOwn, 0) + "," +
               bytes(snapshots, number, kDdprunOwn, 1);
        const bool is_right =
            bytes(snapshots, number, kDdprunData, 0) == data_of(step) + std::string(64, '\0') &&
            ddprun_snapshots_rank(snapshots, number, 1) == 1 &&
            ddprun_snapshots_world_size(snapshots, number) == kRanks;
        all += is_right ? ";" : " of other data;";
      }
      return all;
    });
  }

  rdzv::UniqueFd file_{::memfd_create("ddprun-snapshot", MFD_CLOEXEC)};
};

TEST_F(SnapshotModule, GivesToOtherProcessesWhatTwoRanksHaveKept) {
  EXPECT_EQ(kept(), "");
  EXPECT_EQ(keep(0, 1, "first"), "anew kept");
  EXPECT_EQ(kept(), "");
  EXPECT_EQ(keep(1, 1, "second"), "kept");
  EXPECT_EQ(kept(), "1:text 1,first,second;");
  for (const int rank : {1, 0}) EXPECT_EQ(keep(rank, 2, "of 2"), "kept");
  EXPECT_EQ(kept(), "2:text 2,of 2,of 2;1:text 1,first,second;");
}

TEST_F(SnapshotModule, TakesOwnPartsOfOtherSizes) {
  EXPECT_EQ(keep(0, 1, ""), "anew kept");
  EXPECT_EQ(keep(1, 1, std::string(1000, 'x')), "kept");
  EXPECT_EQ(kept(), "1:text 1,," + std::string(1000, 'x') + ";");
  // Grown: what was there is gone, and the next one has room for all.
  const std::string large(100'000, 'y');
  EXPECT_EQ(keep(0, 2, ""), "kept");
  EXPECT_EQ(keep(1, 2, large), "anew kept");
  EXPECT_EQ(kept(), "");
  EXPECT_EQ(keep(0, 3, ""), "kept");
  EXPECT_EQ(keep(1, 3, large + "y"), "kept");
  EXPECT_THAT(kept(), ::testing::StartsWith("3:text 3,,y"));
}

TEST_F(SnapshotModule, KeepsNothingIfAnotherLaysTheMemoryOutMeanwhile) {
  const Words said = in_process([&](DdprunSnapshots* snapshots) {
    std::array<std::uint64_t, 2> share{};
    ddprun_snapshots_begin(snapshots, kRanks, 0, 0, kRanks, 1, 0, 1064, kLayout, 5, share.data(),
                           nullptr, 0);
    SnapshotMemory::open(rdzv::UniqueFd(::dup(file_.get())))
        ->use({.ranks = kRanks, .data_bytes = 1064, .own_bytes = 1 << 20, .layout = kLayout},
              1 << 20);
    const std::string data(share[1] - share[0], 'b');
    const std::array<DdprunPiece, 2> pieces{{{data.data(), data.size()}, {"12345", 5}}};
    ddprun_snapshots_write(snapshots, 0, pieces.data(), 1);
    ddprun_snapshots_write(snapshots, 1, &pieces[1], 1);
    return ddprun_snapshots_finish(snapshots, "", 0, nullptr, 0) == 0 ? Words("not kept")
                                                                      : Words("kept");
  });
  EXPECT_EQ(said, "not kept");
  EXPECT_EQ(kept(), "");
  EXPECT_EQ(keep(0, 2, "12345"), "kept");
  EXPECT_EQ(keep(1, 2, "67"), "kept");
  EXPECT_EQ(kept(), "2:text 2,12345,67;");
}

TEST_F(SnapshotModule, KeepsNothingOfMoreOrLessThanWasSaid) {
  for (const std::uint64_t size : {100, 5000}) {
    const Words said = in_process([&](DdprunSnapshots* snapshots) {
      std::array<std::uint64_t, 2> share{};
      ddprun_snapshots_begin(snapshots, 1, 0, 0, 1, 1, 0, 1064, kLayout, 0, share.data(), nullptr,
                             0);
      const DdprunPiece piece{nullptr, size};
      ddprun_snapshots_write(snapshots, 0, &piece, 1);
      return std::to_string(ddprun_snapshots_finish(snapshots, "", 0, nullptr, 0));
    });
    EXPECT_EQ(said, "0");
  }
}

// A rank sums the other's share in pieces, from its own values; what it has not summed to the end is not kept.
TEST_F(SnapshotModule, ComparesTheShareOfTheOtherRank) {
  const auto keep_with = [&](int rank, std::int64_t step, char value, std::uint64_t left_out) {
    return in_process([&](DdprunSnapshots* snapshots) {
      std::array<std::uint64_t, 2> share{};
      ddprun_snapshots_begin(snapshots, kRanks, rank, rank, kRanks, step, 0, 1064, kLayout, 0,
                             share.data(), nullptr, 0);
      const std::string values(1000, value);
      const auto pieces_of = [&](std::uint64_t begin, std::uint64_t end) {
        const auto there = std::min<std::uint64_t>(end, values.size());
        return std::vector<DdprunPiece>{{values.data() + begin, 33},
                                        {values.data() + begin + 33, there - begin - 33},
                                        {nullptr, end - there}};
      };
      const auto own = pieces_of(share[0], share[1]);
      ddprun_snapshots_write(snapshots, 0, own.data(), own.size());
      EXPECT_EQ(ddprun_snapshots_compare(snapshots, 1, share.data()), 1 - rank);
      const auto others = pieces_of(share[0], share[1] - left_out);
      ddprun_snapshots_add(snapshots, others.data(), others.size());
      Words said = ddprun_snapshots_finish(snapshots, "", 0, nullptr, 0) != 0 ? "kept" : "not kept";
      std::int64_t at = 0;
      int first = -1;
      int other = -1;
      if (ddprun_snapshots_difference(snapshots, &at, &first, &other) != 0) {
        said += " differs " + std::to_string(at) + std::to_string(first) + std::to_string(other);
      }
      return said;
    });
  };
  for (const int rank : {0, 1}) EXPECT_EQ(keep_with(rank, 1, 'b', 0), "kept");
  EXPECT_EQ(kept(), "1:,,;");
  EXPECT_EQ(keep_with(0, 2, 'c', 1), "not kept");
  EXPECT_EQ(keep_with(0, 2, 'c', 0), "kept");
  EXPECT_EQ(keep_with(1, 2, 'd', 0), "kept differs 201");
  EXPECT_EQ(kept(), "1:,,;");
  for (const int rank : {0, 1}) EXPECT_EQ(keep_with(rank, 3, 'd', 0), "kept");
  EXPECT_EQ(kept(), "3:,,;1:,,;");
}

TEST_F(SnapshotModule, FallsToTheOtherSlotWhereOneIsDamagedAndDoesNotFindItAgain) {
  for (const std::int64_t step : {1, 2}) {
    for (const int rank : {0, 1}) keep(rank, step, "own");
  }
  // The heads begin at 4096, of rank 0 slot 0, slot 1, rank 1 …; step 2 is in slot 1.
  const std::string garbage(128, '\x5a');
  ASSERT_EQ(::pwrite(file_.get(), garbage.data(), garbage.size(), 4096 + 3 * 128), 128);
  EXPECT_EQ(kept(), "1:text 1,own,own;");
  for (const int rank : {0, 1}) EXPECT_EQ(keep(rank, 3, "own"), "kept");
  EXPECT_EQ(kept(), "3:text 3,own,own;1:text 1,own,own;");
  // Data that are other than their sum: the writer's head says so from then on.
  const off_t end = ::lseek(file_.get(), 0, SEEK_END);
  ASSERT_EQ(::pwrite(file_.get(), garbage.data(), garbage.size(), end - 4096), 128);
  EXPECT_EQ(kept(), "1:text 1,own,own;");
  EXPECT_EQ(kept(), "1:text 1,own,own;");
}

TEST_F(SnapshotModule, ForgetsLaterStepsOfOneRank) {
  for (const std::int64_t step : {1, 2}) {
    for (const int rank : {0, 1}) keep(rank, step, "own");
  }
  in_process([](DdprunSnapshots* snapshots) {
    ddprun_snapshots_find(snapshots, nullptr, 0);
    ddprun_snapshots_forget_after(snapshots, 1, 1, 0);
    return Words();
  });
  EXPECT_EQ(kept(), "1:text 1,own,own;");
}

TEST_F(SnapshotModule, SaysInOneSentenceThatThereIsNoRoom) {
  for (const char* const expected : {"two snapshots take 3355", "there was no room for them"}) {
    const Words said = in_process([&](DdprunSnapshots* snapshots) {
      std::array<std::uint64_t, 2> share{};
      std::array<char, 200> why{};
      const int how = ddprun_snapshots_begin(snapshots, 1, 0, 0, 1, 1, 0, std::uint64_t{1} << 44,
                                             kLayout, 0, share.data(), why.data(), why.size());
      return how == kDdprunRefused ? Words(why.data()) : Words("begun");
    });
    EXPECT_THAT(said, ::testing::HasSubstr(expected));
  }
}

TEST_F(SnapshotModule, SaysOnAllRanksThatTheTextIsTooLargeUntilTheTrainingGoesOnFromElsewhere) {
  const auto keep_text = [&](int rank, std::uint64_t size) {
    return in_process([&](DdprunSnapshots* snapshots) {
      std::array<std::uint64_t, 2> share{};
      std::array<char, 200> why{};
      int how = ddprun_snapshots_begin(snapshots, kRanks, rank, rank, kRanks, 1, 0, 0, kLayout, 0,
                                       share.data(), why.data(), why.size());
      if (how != kDdprunRefused) {
        const std::string text(size, 'x');
        how = ddprun_snapshots_finish(snapshots, text.data(), size, why.data(), why.size());
      }
      return how == kDdprunRefused ? Words(why.data()) : std::to_string(how);
    });
  };
  constexpr std::uint64_t kRoom = std::uint64_t{64} << 20;
  const auto is_refused = ::testing::HasSubstr("more than the 64 MiB that a snapshot has room for");
  EXPECT_EQ(keep_text(0, kRoom), "1");
  EXPECT_THAT(keep_text(0, kRoom + 1), is_refused);
  EXPECT_THAT(keep_text(1, 0), is_refused);
  in_process([](DdprunSnapshots* snapshots) {
    ddprun_snapshots_find(snapshots, nullptr, 0);
    ddprun_snapshots_forget_after(snapshots, 1, 0, 0);
    return Words();
  });
  EXPECT_EQ(keep_text(1, 0), "1");
}

TEST_F(SnapshotModule, IsNotThereWithoutTheVariable) {
  const Words said = in_process([](DdprunSnapshots* snapshots) {
    return Words(snapshots != nullptr ? "there" : "not there");
  });
  EXPECT_EQ(said, "there");
  const pid_t child = ::fork();
  if (child == 0) {
    ::unsetenv(link::kSnapshotVariable);
    ::_exit(ddprun_snapshots_of_this_process() == nullptr ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ddprun
