// How ranks find out with whom they share memory, over a store that is a map here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "tests/unit/worker_lib/outcome.h"
#include "tests/unit/worker_lib/shm/shm_node.h"
#include "worker_lib/shm/shm_join.h"

namespace ddprun::shm::test {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::size_t kUsual = 2560 << 10;

std::string identity(const std::string& machine, const std::string& mount = "1") {
  return "machine=" + machine + "\nmount namespace=" + mount + "\nuser=0\nversion=1\n";
}

TEST(ShmPlacement, GroupsRanksByMachineInTheirOrder) {
  const Placement placement =
      placement_of({identity("b"), identity("a"), identity("b"), identity("c")}, {0, 1, 2, 3});
  EXPECT_THAT(placement.nodes, ElementsAre(ElementsAre(0, 2), ElementsAre(1), ElementsAre(3)));
  EXPECT_EQ(placement.why_not, "");
  EXPECT_TRUE(placement.has_neighbours());
  EXPECT_THAT(placement.node_of(2), ElementsAre(0, 2));
  EXPECT_FALSE(placement_of({identity("a"), identity("b")}, {0, 1}).has_neighbours());
}

TEST(ShmPlacement, SaysWhatKeepsRanksOfOneMachineApart) {
  EXPECT_EQ(placement_of({identity("a"), identity("b"), identity("a", "2")}, {0, 4, 7}).why_not,
            "ranks 0 and 7 are on one machine but not of one mount namespace");
  EXPECT_THAT(placement_of({"machine=a\nversion=1\n", "machine=a\nversion=2\n"}, {0, 1}).why_not,
              HasSubstr("not of one version"));
}

TEST(ShmPlacement, AProcessIsLikeItselfAndUnlikeAnotherNode) {
  EXPECT_EQ(identity_of_this_process(0), identity_of_this_process(0));
  EXPECT_NE(identity_of_this_process(0), identity_of_this_process(2));
  EXPECT_THAT(identity_of_this_process(0), HasSubstr("\nmount namespace="));
}

// A store as process groups have one, as far as joining goes.
class MapStore {
 public:
  StoreAccess access() {
    return {.set =
                [this](const std::string& key, const std::string& value) {
                  const std::scoped_lock lock(mutex_);
                  values_[key] = value;
                  changed_.notify_all();
                },
            .get =
                [this](const std::vector<std::string>& keys) {
                  std::unique_lock lock(mutex_);
                  std::vector<std::string> values;
                  for (const std::string& key : keys) {
                    if (!changed_.wait_for(lock, 20s, [&] { return values_.contains(key); })) {
                      throw std::runtime_error("nobody set " + key);
                    }
                    values.push_back(values_[key]);
                  }
                  return values;
                }};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

std::vector<Result<Joined>> join_all(const std::vector<std::string>& identities,
                                     std::size_t bytes) {
  MapStore store;
  const auto watch = std::make_shared<PeerWatch>();
  const int size = static_cast<int>(identities.size());
  std::vector<Result<Joined>> results(identities.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto own = static_cast<std::size_t>(rank);
      results[own] = ddprun::test::outcome([&] {
        return join({.store = store.access(),
                     .identity = identities[own],
                     .rank = rank,
                     .global_ranks = ranks_below(size),
                     .bytes_per_rank = bytes,
                     .patience = Clock::now() + 20s},
                    watch);
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(ShmJoin, RanksOfANodeShareOneMemory) {
  const auto joined =
      join_all({identity("a"), identity("b"), identity("a"), identity("a")}, kUsual);
  for (const auto& one : joined) ASSERT_TRUE(one) << one.error().message;
  EXPECT_EQ(joined[0]->node->exchange().size(), 3);
  EXPECT_EQ(joined[3]->node->exchange().rank(), 2);
  EXPECT_EQ(joined[2]->node->exchange().global_rank(1), 2);
  EXPECT_EQ(joined[1]->node->exchange().size(), 1);
  std::vector<std::thread> threads;
  for (const std::size_t rank : {0, 2, 3}) {
    threads.emplace_back([&, rank] { run<Barrier>(*joined[rank]->node); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ShmJoin, NothingIsSharedByRanksWithoutNeighbours) {
  for (const auto& one : join_all({identity("a"), identity("b")}, kUsual)) {
    ASSERT_TRUE(one);
    EXPECT_EQ(one->node, nullptr);
  }
}

TEST(ShmJoin, AllHearTheSameOfMemoryThatCannotBeHad) {
  // On one node and on two.
  for (const char* const machine : {"a", "b"}) {
    const auto joined = join_all({identity("a"), identity("a"), identity(machine)},
                                 std::size_t{1} << 46);  // more than there are addresses for
    for (const auto& one : joined) {
      ASSERT_FALSE(one);
      EXPECT_EQ(one.error().message, joined[0].error().message);
      EXPECT_THAT(one.error().message, HasSubstr("rank 0: there is no room for the"));
    }
  }
}

TEST(ShmJoin, ARankThatTheOthersCannotReachSaysWhy) {
  MapStore store;
  store.access().set("who/1", identity("a") + "address=none: too many open files");
  const auto joined = ddprun::test::outcome([&] {
    return join({.store = store.access(),
                 .identity = identity("a"),
                 .rank = 0,
                 .global_ranks = {4, 7},
                 .bytes_per_rank = kUsual,
                 .patience = Clock::now() + 20s},
                std::make_shared<PeerWatch>());
  });
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().message, "rank 7: too many open files");
}

TEST(ShmJoin, AllHearTheSameOfRanksThatAreKeptApart) {
  for (const auto& one : join_all({identity("a"), identity("a", "2")}, kUsual)) {
    ASSERT_FALSE(one);
    EXPECT_THAT(one.error().message, HasSubstr("not of one mount namespace"));
  }
}

TEST(ShmJoin, AllHearTheSameOfAPeerOfAnotherVersion) {
  const std::string own = identity_of_this_process(0);
  const std::string version = "version=" + std::to_string(kVersion);
  std::string newer = own;
  ASSERT_NE(newer.find(version), std::string::npos);
  newer.replace(newer.find(version), version.size(), "version=" + std::to_string(kVersion + 1));
  for (const auto& one : join_all({own, own, newer}, kUsual)) {
    ASSERT_FALSE(one);
    EXPECT_EQ(one.error().message, "ranks 0 and 2 are on one machine but not of one version");
  }
}

}  // namespace
}  // namespace ddprun::shm::test
