// The layout of a worker's record of collectives: what one side writes the other reads, from several
// threads, around the ring, and out of garbage.
#include "rendezvous/common/worker_abi/collective_record.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <latch>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace ddprun::record {
namespace {

class CollectiveRecordTest : public ::testing::Test {
 protected:
  CollectiveRecordTest() { std::memset(static_cast<void*>(memory.get()), 0, sizeof(Memory)); }

  GroupPlace add(const std::string& name, std::uint32_t rank = 0, std::uint32_t size = 2) {
    return add_group(*memory, name, rank, size, ++made);
  }
  Ticket enter_one(GroupPlace place, std::uint64_t elements = 7, std::int64_t now = 1) {
    return enter(*memory, place, {.operation = Operation::kAllReduce, .elements = elements}, now);
  }

  std::unique_ptr<Memory> memory = std::make_unique<Memory>();
  std::uint32_t made = 0;
};

TEST_F(CollectiveRecordTest, IsEmptyAtFirst) { EXPECT_TRUE(read(*memory).empty()); }

TEST_F(CollectiveRecordTest, ShowsTheFirstCallThatWasNotLeftAndTheLatestOne) {
  const GroupPlace place = add("ddprun", 3, 8);
  const Ticket first = enter_one(place, 10, 100);
  const Ticket second = enter_one(place, 20, 200);
  auto groups = read(*memory);
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].name, "ddprun");
  EXPECT_EQ(groups[0].id, id_of("ddprun"));
  EXPECT_EQ(groups[0].rank, 3U);
  EXPECT_EQ(groups[0].size, 8U);
  EXPECT_EQ(groups[0].calls, 2U);
  ASSERT_TRUE(groups[0].open);
  EXPECT_EQ(groups[0].open->number, 1U);
  EXPECT_EQ(groups[0].open->entered_ns, 100);
  EXPECT_EQ(groups[0].open->call.elements, 10U);
  EXPECT_EQ(groups[0].open->call.operation, Operation::kAllReduce);
  leave(*memory, first, 300);
  groups = read(*memory);
  EXPECT_EQ(groups[0].open->number, 2U);
  leave(*memory, second, 400);
  groups = read(*memory);
  EXPECT_FALSE(groups[0].open);
  ASSERT_TRUE(groups[0].last);
  EXPECT_EQ(groups[0].last->number, 2U);
  EXPECT_EQ(groups[0].last->left_ns, 400);
}

TEST_F(CollectiveRecordTest, KeepsTheLastCallsBeforeThatWhichARankIsIn) {
  const GroupPlace place = add("ddprun");
  const auto numbers = [&] {
    std::vector<std::uint64_t> found;
    const auto groups = read(*memory);
    for (const NumberedCall& each : groups.at(0).recent) found.push_back(each.number);
    return found;
  };
  for (std::uint64_t i = 1; i <= 12; ++i) {
    // Nothing but the number is known of the fifth and of the last.
    const auto operation = i == 5 || i == 12 ? Operation::kOther : Operation::kBroadcast;
    leave(*memory, enter(*memory, place, {.operation = operation}, 1), 2);
  }
  EXPECT_EQ(numbers(), (std::vector<std::uint64_t>{3, 4, 6, 7, 8, 9, 10, 11}));
  enter_one(place);
  enter_one(place);
  EXPECT_EQ(numbers(), (std::vector<std::uint64_t>{3, 4, 6, 7, 8, 9, 10, 11}))
      << "before the first that it has not left";
  EXPECT_EQ(read(*memory)[0].recent[0].call.operation, Operation::kBroadcast);
}

TEST_F(CollectiveRecordTest, CountsThreadsAndThoseThatWait) {
  EXPECT_EQ(read_threads(*memory).count, 0U);
  EXPECT_FALSE(read_threads(*memory).all_wait()) << "nothing is said";
  memory->threads = 2;
  memory->threads_in_wait = 1;
  EXPECT_FALSE(read_threads(*memory).all_wait());
  memory->threads_in_wait = 2;
  EXPECT_TRUE(read_threads(*memory).all_wait());
}

TEST_F(CollectiveRecordTest, ALateEndDoesNotTouchTheEntryOfAnotherCall) {
  const GroupPlace place = add("ddprun");
  const Ticket old = enter_one(place);
  for (std::size_t i = 1; i < kEntries; ++i) leave(*memory, enter_one(place), 2);
  const Ticket in_its_place = enter_one(place);
  leave(*memory, old, 3);
  ASSERT_TRUE(read(*memory)[0].open);
  EXPECT_EQ(read(*memory)[0].open->number, kEntries + 1);
  leave(*memory, in_its_place, 4);
  EXPECT_FALSE(read(*memory)[0].open);
}

TEST_F(CollectiveRecordTest, AnEntryWhoseWriterWasInterruptedIsSkipped) {
  const GroupPlace place = add("ddprun");
  memory->claimed = 1;
  memory->entries[0].turn = 1;  // claimed, and nothing after it
  leave(*memory, enter_one(place), 5);
  EXPECT_FALSE(read(*memory)[0].open);
  for (std::size_t i = 2; i < kEntries; ++i) leave(*memory, enter_one(place), 5);
  EXPECT_EQ(enter_one(place), 0U) << "the interrupted thread may still go on";
  EXPECT_NE(enter_one(place), 0U);
}

TEST_F(CollectiveRecordTest, CallsOfAGroupThatIsGoneAreNotThoseOfTheNextOneInItsPlace) {
  const GroupPlace gone = add("first");
  enter_one(gone);
  remove_group(*memory, gone);
  EXPECT_TRUE(read(*memory).empty());
  const GroupPlace next = add("second");
  EXPECT_EQ(next.slot, gone.slot);
  const auto groups = read(*memory);
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].calls, 0U);
  EXPECT_FALSE(groups[0].open || groups[0].last);
}

TEST_F(CollectiveRecordTest, MessagesAreCallsOfAGroupOfTheTwoRanksAlone) {
  const Channel channel{.from = 2, .to = 0, .tag = 5, .job_peer = 0};
  const GroupPlace place = add_channel(*memory, "ddprun", channel, /*is_sender=*/true, ++made);
  enter(*memory, place, {.operation = Operation::kSendReceive, .elements = 3}, 1);
  const auto groups = read(*memory);
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].name, "ddprun 2->0 tag 5");
  EXPECT_EQ(groups[0].id, id_of("ddprun 2->0 tag 5")) << "equal at both ends";
  EXPECT_EQ(groups[0].size, 2U);
  EXPECT_EQ(groups[0].rank, 0U);
  EXPECT_EQ(groups[0].peer, 0U);
  ASSERT_TRUE(groups[0].open);
  EXPECT_EQ(name_of(groups[0].open->call.operation), "send_recv");
  EXPECT_EQ(name_of(std::string(40, 'g'), channel), std::string(21, 'g') + " 2->0 tag 5");
}

TEST_F(CollectiveRecordTest, SaysWhenARankCameToTheCallsThatNeedAllMembers) {
  const GroupPlace place = add("ddprun", 1, 2);
  leave(*memory, enter_one(place, 7, 1'000), 5'000);
  enter(*memory, place, {.operation = Operation::kBroadcast, .root = 1}, 6'000);
  enter(*memory, place, {.operation = Operation::kReduce, .root = 0}, 7'000);  // one waits for all
  leave(*memory, enter_one(place, 7, 8'000), 8'000);                           // not known when
  enter_one(place, 7, 9'000);                                                  // it is in it
  auto groups = read_arrivals(*memory, 10);
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].id, id_of("ddprun"));
  EXPECT_EQ(groups[0].rank, 1U);
  EXPECT_FALSE(groups[0].is_channel);
  const std::vector<Arrival> expected{
      {1, 1'000, 5'000}, {2, 6'000, {}, 1}, {4, 8'000, 8'000}, {5, 9'000, {}}};
  EXPECT_EQ(groups[0].calls, expected);
  groups = read_arrivals(*memory, 2);
  EXPECT_EQ(groups[0].calls, std::vector(expected.begin() + 2, expected.end()));
}

TEST_F(CollectiveRecordTest, ACallOfAGpuCountsOnceItHasBegun) {
  const GroupPlace place = add("nccl world 12345678");
  const Ticket ticket =
      enter(*memory, place, {.operation = Operation::kAllReduce, .type = 6}, 5'000'000, kNotBegun);
  EXPECT_TRUE(read_arrivals(*memory, 10)[0].calls.empty());
  begin(*memory, ticket, 12'000'000);
  begin(*memory, ticket, 99'000'000);  // a second channel
  const auto calls = read_arrivals(*memory, 10)[0].calls;
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].entered_ns, 12'000'000);
  EXPECT_EQ(read(*memory)[0].open->entered_ns, 5'000'000) << "as the host made it";
  EXPECT_EQ(read(*memory)[0].open->call.type, 6);
}

TEST_F(CollectiveRecordTest, ACallOfNcclWhoseBeginIsNotToldDoesNotCount) {
  const GroupPlace place = add("nccl world 12345678");
  enter(*memory, place, {.operation = Operation::kAllReduce},
        5'000'000);  // by a plugin of an older release
  EXPECT_TRUE(read_arrivals(*memory, 10)[0].calls.empty());
}

TEST_F(CollectiveRecordTest, AChannelIsKnownAlsoWithoutItsOtherEndOrACall) {
  add_channel(*memory, "sub", {.from = 0, .to = 1}, /*is_sender=*/true, ++made);
  EXPECT_TRUE(read_arrivals(*memory, 10)[0].is_channel);
  EXPECT_FALSE(read(*memory)[0].peer);
}

TEST_F(CollectiveRecordTest, ALateBeginDoesNotTouchTheEntryOfAnotherCall) {
  const GroupPlace place = add("nccl");
  const Ticket ticket = enter(*memory, place, {.operation = Operation::kAllReduce}, 1, kNotBegun);
  for (std::size_t i = 0; i < kEntries; ++i) {
    enter(*memory, place, {.operation = Operation::kAllReduce}, 2, kNotBegun);
  }
  begin(*memory, ticket, 12'000'000);
  EXPECT_TRUE(read_arrivals(*memory, 10)[0].calls.empty());
}

TEST_F(CollectiveRecordTest, OperationsOfALaterVersionHaveANameToo) {
  enter(*memory, add("ddprun"), {.operation = static_cast<Operation>(77)}, 1);
  EXPECT_EQ(name_of(read(*memory)[0].open->call.operation), "a collective");
}

TEST_F(CollectiveRecordTest, GroupsBeyondItsPlacesAreLeftOut) {
  for (std::size_t i = 0; i < kGroupsMax; ++i) add("group " + std::to_string(i));
  const GroupPlace none = add("one more");
  EXPECT_EQ(enter_one(none), 0U);
  EXPECT_EQ(read(*memory).size(), kGroupsMax);
}

TEST_F(CollectiveRecordTest, AReaderSeesOnlyWholeEntriesOfSeveralWriters) {
  constexpr int kWriters = 3;
  std::atomic<bool> is_over = false;
  std::latch all_write(kWriters);
  std::vector<std::thread> writers;
  for (int i = 0; i < kWriters; ++i) {
    const GroupPlace place = add("group " + std::to_string(i));
    writers.emplace_back([this, place, &is_over, &all_write] {
      for (std::uint64_t number = 1; !is_over; ++number) {
        const auto now = static_cast<std::int64_t>(number);
        leave(*memory, enter_one(place, number, now), now);
        if (number == 1) all_write.count_down();
      }
    });
  }
  all_write.wait();
  std::uint64_t seen = 0;
  for (int i = 0; i < 2'000; ++i) {
    for (const RecordedGroup& group : read(*memory)) {
      for (const auto& call : {group.open, group.last}) {
        if (!call) continue;
        ++seen;
        EXPECT_EQ(call->call.elements, call->number);
        EXPECT_EQ(call->entered_ns, static_cast<std::int64_t>(call->number));
        if (call->left_ns) {
          EXPECT_EQ(*call->left_ns, call->entered_ns);
        }
      }
    }
  }
  is_over = true;
  for (auto& writer : writers) writer.join();
  EXPECT_GT(seen, 0U);
}

TEST_F(CollectiveRecordTest, GarbageIsReadWithinBounds) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    auto* const words = reinterpret_cast<std::uint64_t*>(memory.get());
    for (std::size_t i = 0; i < kBytes / 8; ++i) words[i] = random();
    if (trial % 2 == 0) memory->claimed = random() % 4096;
    for (std::size_t slot = 0; slot < kGroupsMax && trial % 3 != 0; ++slot) {
      memory->groups[slot].turn = 2;
      memory->groups[slot].size = 4;
      memory->groups[slot].rank = static_cast<std::uint32_t>(random() % 8);
      memory->groups[slot].name[0] = 0x41;
      memory->groups[slot].name[1] = 0;
    }
    for (std::size_t i = 0; i < kEntries && trial % 3 == 2; ++i) {
      memory->entries[i].turn = 2 * i + 2;
      memory->entries[i].group_turn = 2;
    }
    for (const RecordedGroup& group : read(*memory)) {
      EXPECT_LT(group.rank, group.size);
      EXPECT_LE(group.size, kWorldMax);
      EXPECT_LE(group.name.size(), 32U);
    }
    for (const GroupArrivals& group : read_arrivals(*memory, 100)) {
      EXPECT_LT(group.rank, group.size);
      EXPECT_LE(group.calls.size(), 100U);
      for (const Arrival& call : group.calls) EXPECT_GT(call.entered_ns, 0);
    }
  }
}

}  // namespace
}  // namespace ddprun::record
