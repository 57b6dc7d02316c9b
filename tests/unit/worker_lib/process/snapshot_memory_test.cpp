// Snapshots in memory: whole or not there, whatever was torn, overwritten or of another shape.
#include "worker_lib/process/snapshot_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ddprun/error.h"

namespace ddprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kRanks = 2;
constexpr SnapshotMemory::Shape kShape{
    .ranks = kRanks, .data_bytes = 1000, .own_bytes = 100, .layout = 7};

// The file that an agent has, and what a process of each rank makes of it.
class Node {
 public:
  explicit Node(const SnapshotMemory::Shape& shape = kShape) : shape_(shape) {}

  std::shared_ptr<SnapshotMemory> process() const {
    return SnapshotMemory::open(rdzv::UniqueFd(::dup(file_.get())));
  }
  std::string data_of(std::int64_t step) const {
    return std::string(shape_.data_bytes, static_cast<char>('a' + step));
  }
  void write(std::int64_t step, const std::vector<int>& ranks = {0, 1}) const {
    for (const int rank : ranks) {
      const auto memory = process();
      memory->use(shape_);
      auto part = memory->begin(rank, step, rank, kRanks);
      const std::string data = data_of(step);
      part.sum.copy(part.share.data(), data.data() + part.begin, part.share.size());
      const std::string number = std::to_string(step);
      ASSERT_TRUE(memory->finish(part, rank == 0 ? "text " + number : "",
                                 "own " + number + std::to_string(rank)));
    }
  }
  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> steps;
    const auto memory = process();
    for (const auto& found : memory->find()) {
      if (is_whole(*memory, found)) steps.push_back(found.step);
    }
    return steps;
  }
  static bool is_whole(const SnapshotMemory& memory, const SnapshotMemory::Found& found) {
    bool is_whole = true;
    for (std::size_t writer = 0; writer < found.ranks.size(); ++writer) {
      is_whole = is_whole && memory.is_whole(found, static_cast<int>(writer));
    }
    return is_whole;
  }
  int file() const { return file_.get(); }

 private:
  SnapshotMemory::Shape shape_;
  rdzv::UniqueFd file_{::memfd_create("ddprun-snapshot", MFD_CLOEXEC)};
};

TEST(SnapshotMemory, GivesTheLastTwoToAnotherProcess) {
  const Node node;
  EXPECT_THAT(node.steps(), IsEmpty());
  for (const std::int64_t step : {0, 5, 10}) node.write(step);
  EXPECT_THAT(node.steps(), ElementsAre(10, 5));
  const auto memory = node.process();
  const auto found = memory->find();
  EXPECT_EQ(memory->data(found[0]), node.data_of(10));
  EXPECT_EQ(memory->text(found[0]), "text 10");
  EXPECT_EQ(memory->own(found[0], 1), "own 101");
  EXPECT_EQ(memory->data(found[1]), node.data_of(5));
  EXPECT_THAT(found[0].ranks, ElementsAre(0, 1));
}

TEST(SnapshotMemory, IsNotThereBeforeAllRanksHaveWrittenTheirParts) {
  const Node node;
  node.write(0);
  node.write(1);
  node.write(2, {1});
  EXPECT_THAT(node.steps(), ElementsAre(1));
  // The next one spoils only what is torn.
  node.write(3, {0});
  EXPECT_THAT(node.steps(), ElementsAre(1));
  node.write(3, {1});
  EXPECT_THAT(node.steps(), ElementsAre(3, 1));
}

TEST(SnapshotMemory, ForgetsWhatIsLaterThanTheStepThatIsGoneOnFrom) {
  const Node node;
  node.write(5);
  node.write(10);
  const auto memory = node.process();
  memory->find();
  memory->forget_after(1, 5);
  EXPECT_THAT(node.steps(), ElementsAre(5));
  node.write(6);
  EXPECT_THAT(node.steps(), ElementsAre(6, 5));
}

// Several snapshots of one step: the last call of all ranks counts, and parts of two calls are never one snapshot.
TEST(SnapshotMemory, OfOneStepIsThatOfTheLastCallOfAllRanks) {
  const Node node;
  const auto write = [&](std::uint64_t call, int rank) {
    const auto memory = node.process();
    memory->use(kShape);
    auto part = memory->begin(rank, 5, rank, kRanks, call);
    const std::string data = node.data_of(static_cast<std::int64_t>(call));
    part.sum.copy(part.share.data(), data.data() + part.begin, part.share.size());
    ASSERT_TRUE(memory->finish(part, "", ""));
  };
  const auto calls = [&] {
    std::vector<std::uint64_t> of_snapshots;
    const auto memory = node.process();
    for (const auto& found : memory->find()) {
      EXPECT_EQ(memory->data(found), node.data_of(static_cast<std::int64_t>(found.call)));
      of_snapshots.push_back(found.call);
    }
    return of_snapshots;
  };
  for (const std::uint64_t call : {0, 1, 2}) {
    for (const int rank : {0, 1}) write(call, rank);
  }
  EXPECT_THAT(calls(), ElementsAre(2, 1));
  write(3, 0);
  EXPECT_THAT(calls(), ElementsAre(2));
  // A rank that is two calls ahead.
  write(4, 0);
  write(3, 1);
  EXPECT_THAT(calls(), ElementsAre(2));
  write(4, 1);
  EXPECT_THAT(calls(), ElementsAre(4, 2));
  const auto memory = node.process();
  memory->find();
  memory->forget_after(1, 5, 2);
  EXPECT_THAT(calls(), ElementsAre(2));
}

TEST(SnapshotMemory, OfAnotherShapeBeginsAnew) {
  const Node node;
  node.write(1);
  SnapshotMemory::Shape other = kShape;
  other.layout = 8;
  node.process()->use(other);
  EXPECT_THAT(node.steps(), IsEmpty());
  other.ranks = 3;
  other.data_bytes = 1 << 20;
  node.process()->use(other);
  node.process()->use(kShape);  // smaller again
  node.write(2);
  EXPECT_THAT(node.steps(), ElementsAre(2));
}

TEST(SnapshotMemory, RefusesAStateForWhichThereIsNoRoom) {
  const Node node;
  SnapshotMemory::Shape large = kShape;
  large.data_bytes = std::uint64_t{1} << 44;
  for (int process = 0; process < 2; ++process) {
    try {
      node.process()->use(large);
      ADD_FAILURE() << "it is used";
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.error().code, ErrorCode::kResourceExhausted);
      const char* const expected =
          process == 0 ? "two snapshots take 3355443" : "there was no room";
      EXPECT_THAT(failure.what(), HasSubstr(expected));
    }
  }
  struct stat about {};
  ::fstat(node.file(), &about);
  EXPECT_LE(about.st_blocks, 16);  // nothing was copied
  node.process()->use(kShape);
}

TEST(SnapshotMemory, KeepsNothingOfPartsThatAreTooLarge) {
  const Node node;
  node.write(1);
  const auto memory = node.process();
  memory->use(kShape);
  auto part = memory->begin(0, 2, 0, kRanks);
  EXPECT_FALSE(memory->finish(part, "", std::string(101, 'x')));
  EXPECT_THAT(node.steps(), ElementsAre(1));
}

// Ranks that sum the shares of their peers, too, over the values that they have themselves.
class ComparingNode {
 public:
  explicit ComparingNode(int ranks) : shape_{.ranks = ranks, .data_bytes = 1000, .layout = 7} {
    values.assign(static_cast<std::size_t>(ranks), std::string(shape_.data_bytes, 'a'));
  }
  std::shared_ptr<SnapshotMemory> process() const {
    return SnapshotMemory::open(rdzv::UniqueFd(::dup(file_.get())));
  }
  void write(std::int64_t step) {
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      const std::string& its = values[static_cast<std::size_t>(rank)];
      const auto memory = process();
      memory->use(shape_);
      auto part = memory->begin(rank, step, 10 + rank, 20);
      part.sum.copy(part.share.data(), its.data() + part.begin, part.share.size());
      part.peer_sum.add(its.data() + part.peer_begin, part.peer_end - part.peer_begin);
      part.values = rank == rank_of_other_values ? 2 : 1;
      met.insert({rank, part.peer});
      ASSERT_TRUE(memory->finish(part, ""));
    }
  }
  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> steps;
    for (const auto& found : process()->find()) steps.push_back(found.step);
    return steps;
  }
  // {step, rank, other rank}; none: {}.
  std::vector<std::int64_t> difference() const {
    const auto memory = process();
    memory->find();
    const auto its = memory->difference();
    return its ? std::vector<std::int64_t>{its->step, its->rank, its->other}
               : std::vector<std::int64_t>();
  }

  std::vector<std::string> values;  // by rank
  int rank_of_other_values = -1;    // in what is not in the data
  std::set<std::pair<int, int>> met;

 private:
  SnapshotMemory::Shape shape_;
  rdzv::UniqueFd file_{::memfd_create("ddprun-snapshot", MFD_CLOEXEC)};
};

TEST(SnapshotMemory, EachRankMeetsEachOtherWithinAsManySnapshotsAsThereAreOthers) {
  ComparingNode node(5);
  for (const std::int64_t step : {5, 10, 15, 20}) node.write(step);
  EXPECT_EQ(node.met.size(), 5U * 4U);
  for (const auto& [rank, peer] : node.met) EXPECT_NE(rank, peer);
  EXPECT_THAT(node.steps(), ElementsAre(20, 15));
  EXPECT_THAT(node.difference(), IsEmpty());
}

TEST(SnapshotMemory, NeverGivesTheShareOfARankThatHasDriftedAway) {
  for (int drifted = 0; drifted < 5; ++drifted) {
    ComparingNode node(5);
    node.write(1);
    node.write(2);
    node.values[static_cast<std::size_t>(drifted)].assign(1000, 'b');
    // Each share has a peer in each snapshot, so the first one shows it, and none replaces the last whole one.
    for (std::int64_t step = 3; step < 12; ++step) {
      node.write(step);
      EXPECT_THAT(node.steps(), ElementsAre(2)) << drifted;
      ASSERT_EQ(node.difference().size(), 3U);
      EXPECT_EQ(node.difference()[0], step);
      EXPECT_TRUE(node.difference()[1] == 10 + drifted || node.difference()[2] == 10 + drifted);
    }
    node.values.assign(5, std::string(1000, 'c'));
    node.write(12);
    EXPECT_THAT(node.steps(), ElementsAre(12, 2));
    EXPECT_THAT(node.difference(), IsEmpty());
  }
}

// The byte is in the share of a rank that has the right one, so what the snapshots hold is right; the rank is found
// when it meets the writer.
TEST(SnapshotMemory, FindsAByteThatDiffersOnOneRankWithinAsManySnapshotsAsThereAreOthers) {
  ComparingNode node(4);
  node.values[3][10] = 'b';
  bool is_found = false;
  for (std::int64_t step = 1; step <= 3; ++step) {
    node.write(step);
    const auto difference = node.difference();
    if (difference.empty()) continue;
    EXPECT_THAT(difference, ElementsAre(step, 10, 13));
    is_found = true;
  }
  EXPECT_TRUE(is_found);
}

TEST(SnapshotMemory, ComparesWhatIsNotInTheData) {
  ComparingNode node(3);
  node.write(1);
  node.rank_of_other_values = 2;
  node.write(2);
  EXPECT_THAT(node.steps(), ElementsAre(1));
  EXPECT_THAT(node.difference(), ElementsAre(2, 10, 12));
}

TEST(SnapshotMemory, LetsOneProcessTellOfADifferenceUntilTheTrainingGoesOnFromElsewhere) {
  ComparingNode node(2);
  node.values[1].assign(1000, 'b');
  node.write(1);
  const auto first = node.process();
  const auto second = node.process();
  for (const auto& memory : {first, second}) memory->find();
  EXPECT_FALSE(second->is_difference_told());
  EXPECT_TRUE(first->is_first_to_tell(*first->difference()));
  EXPECT_TRUE(second->is_difference_told());
  EXPECT_FALSE(second->is_first_to_tell(*second->difference()));
  second->forget_after(0, 0);
  EXPECT_FALSE(first->is_difference_told());
  node.write(2);
  EXPECT_TRUE(second->is_first_to_tell(*second->difference()));
}

TEST(SnapshotMemory, TwoNodesHaveOneSumOfEqualValues) {
  ComparingNode one(2);
  ComparingNode same(2);
  ComparingNode other(2);
  for (auto& its : other.values) its[999] = 'b';
  std::vector<std::uint32_t> sums;
  for (auto* const node : {&one, &same, &other}) {
    node->write(1);
    const auto memory = node->process();
    sums.push_back(memory->sum_of_values(memory->find()[0]));
  }
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_NE(sums[0], sums[2]);
}

// Each byte of the heads and of the header, and each half of what the slots hold.
TEST(SnapshotMemory, FindsEveryByteThatIsAnother) {
  const Node node;
  node.write(5);
  node.write(10);
  struct stat about {};
  ::fstat(node.file(), &about);
  std::vector<off_t> places;
  for (off_t at = 0; at < 64; ++at) places.push_back(at);                 // header
  for (off_t at = 4096; at < 4096 + 4 * 128; ++at) places.push_back(at);  // heads
  const auto spoils = [&](off_t at, std::size_t size) {
    std::string before(size, '\0');
    EXPECT_EQ(::pread(node.file(), before.data(), size, at), static_cast<ssize_t>(size));
    std::string other = before;
    for (char& byte : other) byte = static_cast<char>(~byte);
    EXPECT_EQ(::pwrite(node.file(), other.data(), size, at), static_cast<ssize_t>(size));
    const auto left = node.steps();
    ::pwrite(node.file(), before.data(), size, at);
    return left;
  };
  for (const off_t at : places) {
    const auto left = spoils(at, 1);
    // What is left is right; a byte that is reserved changes nothing.
    for (const std::int64_t step : left) EXPECT_TRUE(step == 5 || step == 10) << at;
  }
  EXPECT_THAT(node.steps(), ElementsAre(10, 5));
  // The data end the file: slot 0 has step 5, slot 1 step 10, each of a whole number of pages.
  const off_t second = about.st_size - 4096;
  const off_t first = second - 4096;
  EXPECT_THAT(spoils(first, 500), ElementsAre(10));
  EXPECT_THAT(spoils(first + 512, 400), ElementsAre(10));
  EXPECT_THAT(spoils(second, 1), ElementsAre(5));
  EXPECT_THAT(spoils(second + 999, 1), ElementsAre(5));
}

TEST(SnapshotMemory, SaysThatItIsDamagedAndNotThatItIsUnfinished) {
  const Node node;
  node.write(5, {1});
  std::string why;
  EXPECT_THAT(node.process()->find(&why), IsEmpty());
  EXPECT_EQ(why, "");
  node.write(5, {0});
  const char other = 77;
  ASSERT_EQ(::pwrite(node.file(), &other, 1, 4096 + 8), 1);  // the step that rank 0 says
  EXPECT_THAT(node.process()->find(&why), IsEmpty());
  EXPECT_EQ(why, "it is damaged");
}

TEST(SnapshotMemory, OfAnotherVersionIsNamed) {
  const Node node;
  node.write(5);
  const std::uint32_t version = 99;
  ASSERT_EQ(::pwrite(node.file(), &version, sizeof version, 8), 4);
  std::string why;
  EXPECT_THAT(node.process()->find(&why), IsEmpty());
  EXPECT_EQ(why, "another version of ddprun wrote it");
}

TEST(SnapshotMemory, IsNoneOfASocketOrAnOldDescriptor) {
  EXPECT_EQ(SnapshotMemory::open(rdzv::UniqueFd()), nullptr);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const rdzv::UniqueFd other(ends[1]);
  EXPECT_EQ(SnapshotMemory::open(rdzv::UniqueFd(ends[0])), nullptr);
}

// As after closerange(3, 1024), in a program that has opened a file since.
TEST(SnapshotMemory, LeavesAFileAloneThatHasItsNumber) {
  const Node node;
  node.write(1);
  const int number = ::dup(node.file());
  auto memory = SnapshotMemory::open(rdzv::UniqueFd(number));
  ASSERT_TRUE(memory);
  const rdzv::UniqueFd theirs(::memfd_create("theirs", MFD_CLOEXEC));
  ASSERT_EQ(::write(theirs.get(), "text", 4), 4);
  ASSERT_EQ(::dup2(theirs.get(), number), number);
  EXPECT_THAT(memory->find(), IsEmpty());
  try {
    memory->use(kShape);
    ADD_FAILURE() << "it has used the program's file";
  } catch (const Failure& failure) {
    EXPECT_THAT(failure.error().message, HasSubstr("has closed the descriptor"));
  }
  memory.reset();
  struct stat about {};
  ASSERT_EQ(::fstat(number, &about), 0) << "closed";
  EXPECT_EQ(about.st_size, 4);
  ::close(number);
}

// Killed at any instruction: what is found is whole, and at most one step is lost.
TEST(SnapshotMemory, IsNeverTornByAProcessThatIsKilled) {
  SnapshotMemory::Shape shape = kShape;
  shape.ranks = 1;
  shape.data_bytes = 300'000;
  const Node node(shape);
  std::int64_t next = 1;
  for (int life = 0; life < 30; ++life) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto memory = node.process();
      memory->use(shape);
      for (std::int64_t step = next;; ++step) {
        auto part = memory->begin(0, step, 0, 1);
        const std::string data(shape.data_bytes, static_cast<char>(step));
        part.sum.copy(part.share.data(), data.data(), data.size());
        memory->finish(part, std::to_string(step), "");
      }
    }
    ::usleep(static_cast<useconds_t>(1000 + 331 * life));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const auto memory = node.process();
    const auto found = memory->find();
    if (found.empty()) continue;
    EXPECT_TRUE(Node::is_whole(*memory, found[0])) << found[0].step;
    EXPECT_EQ(memory->text(found[0]), std::to_string(found[0].step));
    EXPECT_EQ(memory->data(found[0]),
              std::string(shape.data_bytes, static_cast<char>(found[0].step)));
    EXPECT_GE(found[0].step, next - 1);
    next = found[0].step + 1;
  }
  EXPECT_GT(next, 30);
}

}  // namespace
}  // namespace ddprun
