// The collectives over shared memory, without LibTorch: on threads for what they calculate, on
// processes for what happens when one ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <random>
#include <string_view>

#include "tests/unit/worker_lib/shm/shm_node.h"

namespace ddprun::shm::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using Numbers = std::vector<std::int32_t>;

// As small as it gets, so that everything goes in many pieces.
constexpr std::size_t kTiny = 1;
constexpr std::size_t kUsual = 2560 << 10;

// What rank `rank` brings: no two ranks and places alike.
Numbers numbers_of(int rank, std::size_t count, int salt = 0) {
  Numbers numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    numbers[i] =
        static_cast<std::int32_t>(i * 31 + static_cast<std::size_t>(rank) * 1000003) + salt;
  }
  return numbers;
}

Numbers sum_of(int ranks, std::size_t count, int salt = 0) {
  Numbers sum(count);
  for (int rank = 0; rank < ranks; ++rank) {
    const Numbers numbers = numbers_of(rank, count, salt);
    for (std::size_t i = 0; i < count; ++i) sum[i] += numbers[i];
  }
  return sum;
}

struct Shape {
  int ranks;
  std::size_t count;
  std::size_t memory;
};

class ShmCollectives : public testing::TestWithParam<Shape> {
 protected:
  static int ranks() { return GetParam().ranks; }
  static std::size_t count() { return GetParam().count; }
  static std::size_t bytes() { return count() * sizeof(std::int32_t); }
  static void on_all(const Body& body) { on_threads(ranks(), GetParam().memory, body); }
};
INSTANTIATE_TEST_SUITE_P(Of, ShmCollectives,
                         testing::Values(Shape{1, 10, kTiny}, Shape{2, 0, kTiny},
                                         Shape{2, 1, kTiny}, Shape{2, 5001, kTiny},
                                         Shape{2, 300000, kUsual}, Shape{3, 777, kTiny},
                                         Shape{3, 20011, kTiny}, Shape{5, 100, kUsual},
                                         Shape{5, 40013, kUsual}, Shape{8, 9000, kTiny}));

TEST_P(ShmCollectives, AllReduceAndReduceGiveTheSum) {
  on_all([](NodeGroup& node) {
    const int rank = node.exchange().rank();
    Numbers numbers = numbers_of(rank, count());
    run<Reduction>(node, numbers.data(), count(), Type::kInt32, Op::kSum);
    EXPECT_EQ(numbers, sum_of(ranks(), count()));
    for (int root = 0; root < ranks(); ++root) {
      numbers = numbers_of(rank, count(), root);
      run<Reduction>(node, numbers.data(), count(), Type::kInt32, Op::kSum, root);
      if (rank == root) {
        EXPECT_EQ(numbers, sum_of(ranks(), count(), root));
      }
    }
  });
}

TEST_P(ShmCollectives, BroadcastGivesTheRootsNumbers) {
  on_all([](NodeGroup& node) {
    for (int root = 0; root < ranks(); ++root) {
      Numbers numbers = numbers_of(node.exchange().rank(), count());
      run<Broadcast>(node, numbers.data(), bytes(), root);
      EXPECT_EQ(numbers, numbers_of(root, count()));
    }
  });
}

TEST_P(ShmCollectives, GatherScatterAndTheirKinMoveEveryPart) {
  on_all([](NodeGroup& node) {
    const int rank = node.exchange().rank();
    const auto places = [](std::vector<Numbers>& parts) {
      std::vector<void*> pointers;
      for (Numbers& part : parts) pointers.push_back(part.data());
      return pointers;
    };
    const auto sources = [](const std::vector<Numbers>& parts) {
      std::vector<Source> all_of_them;
      for (const Numbers& part : parts) all_of_them.push_back({part.data(), bytes()});
      return all_of_them;
    };
    const auto made = static_cast<std::size_t>(ranks());
    const Numbers own = numbers_of(rank, count());
    std::vector<Numbers> all(made, Numbers(count()));
    run<Gather>(node, own.data(), bytes(), places(all));
    for (int other = 0; other < ranks(); ++other) {
      EXPECT_EQ(all[static_cast<std::size_t>(other)], numbers_of(other, count()));
    }
    const int root = ranks() - 1;
    std::vector<Numbers> at_root(rank == root ? made : 0, Numbers(count()));
    run<Gather>(node, own.data(), bytes(), places(at_root), root);
    if (rank == root) {
      EXPECT_EQ(at_root, all);
    }

    std::vector<Numbers> parts;
    for (int other = 0; other < ranks() && rank == root; ++other) {
      parts.push_back(numbers_of(other, count(), 5));
    }
    Numbers part(count());
    run<Scatter>(node, Place{part.data(), bytes()}, sources(parts), root);
    EXPECT_EQ(part, numbers_of(rank, count(), 5));

    parts.clear();
    for (int other = 0; other < ranks(); ++other) parts.push_back(numbers_of(rank, count(), other));
    run<ReduceScatter>(node, Place{part.data(), bytes()}, sources(parts), Type::kInt32, Op::kSum);
    EXPECT_EQ(part, sum_of(ranks(), count(), rank));
  });
}

TEST_P(ShmCollectives, AllToAllTakesPartsOfAnyLength) {
  on_all([](NodeGroup& node) {
    const int rank = node.exchange().rank();
    // Longer from and to higher ranks, and nothing between some.
    const auto length = [](int from, int to) {
      return (from + to) % 3 == 0
                 ? 0
                 : count() * static_cast<std::size_t>(from + 1) / static_cast<std::size_t>(to + 1);
    };
    std::vector<Numbers> sent;
    std::vector<Numbers> received;
    std::vector<Source> out;
    std::vector<Place> in;
    for (int other = 0; other < ranks(); ++other) {
      sent.push_back(numbers_of(rank, length(rank, other), other));
      received.emplace_back(length(other, rank));
    }
    for (Numbers& part : sent) out.push_back({part.data(), part.size() * 4});
    for (Numbers& part : received) in.push_back({part.data(), part.size() * 4});
    run<AllToAll>(node, out, in);
    for (int other = 0; other < ranks(); ++other) {
      EXPECT_EQ(received[static_cast<std::size_t>(other)],
                numbers_of(other, length(other, rank), rank));
    }
  });
}

TEST_P(ShmCollectives, SeveralInFlightEndInAnyOrderOfWaiting) {
  on_all([](NodeGroup& node) {
    std::vector<Numbers> numbers;
    std::vector<std::shared_ptr<CollectiveTask>> tasks;
    for (int i = 0; i < 6; ++i) {
      numbers.push_back(numbers_of(node.exchange().rank(), count(), i));
    }
    for (Numbers& some : numbers) {
      tasks.push_back(post<Reduction>(node, Clock::time_point::max(), some.data(), count(),
                                      Type::kInt32, Op::kSum));
    }
    for (int i = 5; i >= 0; --i) {
      node.queue().wait(*tasks[static_cast<std::size_t>(i)]);
      EXPECT_EQ(numbers[static_cast<std::size_t>(i)], sum_of(ranks(), count(), i));
    }
  });
}

// Nobody waits for it, and it is done all the same.
TEST_P(ShmCollectives, WhatNobodyWaitsForIsDoneBeside) {
  on_all([](NodeGroup& node) {
    Numbers numbers = numbers_of(node.exchange().rank(), count());
    const auto task = post<Reduction>(node, Clock::time_point::max(), numbers.data(), count(),
                                      Type::kInt32, Op::kSum);
    const auto until = Clock::now() + 20s;
    while (!node.queue().is_over(*task) && Clock::now() < until) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(node.queue().is_over(*task));
    EXPECT_EQ(numbers, sum_of(ranks(), count()));
    run<Barrier>(node);
  });
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "nothing was thrown";
}

TEST(ShmMismatch, EveryRankHearsWhoMakesWhichCall) {
  on_threads(3, kTiny, [](NodeGroup& node) {
    Numbers numbers(100);
    const std::size_t count = node.exchange().rank() == 2 ? 99 : 100;
    const auto call = [&] { run<Reduction>(node, numbers.data(), count, Type::kInt32, Op::kSum); };
    const auto said = AllOf(HasSubstr("rank 0 makes all_reduce SUM of 100 int32 (number 1)"),
                            HasSubstr("rank 2 makes all_reduce SUM of 99 int32 (number 1)"));
    EXPECT_THAT(error_of(call), said);
    EXPECT_THAT(error_of(call), said) << "and the group is of no further use";
  });
  on_threads(2, kTiny, [](NodeGroup& node) {
    Numbers numbers(100);
    const auto call = [&] {
      if (node.exchange().rank() == 0) run<Barrier>(node);
      run<Broadcast>(node, numbers.data(), 400, 0);
    };
    EXPECT_THAT(error_of(call), HasSubstr("rank 0 makes barrier (number 1), rank 1 makes broadcast "
                                          "of 400 bytes with the root 0 (number 1)"));
  });
  on_threads(2, kTiny, [](NodeGroup& node) {
    char bytes[16] = {};
    const std::uint64_t expected = node.exchange().rank() == 0 ? 9 : 8;
    const auto call = [&] {
      run<AllToAll>(node, std::vector<Source>{{bytes, 8}, {bytes, 8}},
                    std::vector<Place>{{bytes, expected}, {bytes, expected}});
    };
    EXPECT_THAT(error_of(call), HasSubstr("sends 8 bytes to rank 0, which expects 9"));
  });
}

TEST(ShmMismatch, TypesOperationsAndRootsAreComparedToo) {
  struct Side {
    Type type;
    Op op;
    int root;
    const char* said;
  };
  const Side usual{Type::kInt32, Op::kSum, Reduction::kAll, "all_reduce SUM of 100 int32"};
  const Side others[] = {{Type::kFloat32, Op::kSum, Reduction::kAll, "of 100 float32"},
                         {Type::kInt32, Op::kMaximum, Reduction::kAll, "all_reduce MAX of 100"},
                         {Type::kInt32, Op::kSum, 1, "reduce SUM of 100 int32 with the root 1"}};
  for (const Side& other : others) {
    on_threads(2, kTiny, [&](NodeGroup& node) {
      Numbers numbers(100);
      const Side& side = node.exchange().rank() == 0 ? usual : other;
      const auto call = [&] {
        run<Reduction>(node, numbers.data(), numbers.size(), side.type, side.op, side.root);
      };
      EXPECT_THAT(error_of(call), AllOf(HasSubstr(std::string("rank 0 makes ") + usual.said),
                                        HasSubstr("rank 1 makes "), HasSubstr(other.said)));
    });
  }
}

std::chrono::nanoseconds processor_time() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Of all ranks together, which are threads of one process: one waits while the others sleep.
TEST(ShmWait, CostsNoProcessorTimeWhenItIsLong) {
  constexpr auto kLong = 400ms;
  std::chrono::nanoseconds spent{0};
  on_threads(3, kTiny, [&](NodeGroup& node) {
    run<Barrier>(node);
    if (node.exchange().rank() == 0) {
      const auto before = processor_time();
      run<Barrier>(node);
      spent = processor_time() - before;
    } else {
      std::this_thread::sleep_for(kLong);
      run<Barrier>(node);
    }
  });
  EXPECT_GT(spent, 0ns);
  EXPECT_LT(spent, kLong / 20);
}

TEST(ShmTimeLimit, NamesTheRankThatDidNotCome) {
  std::atomic<int> failed = 0;
  on_threads(3, kTiny, [&](NodeGroup& node) {
    if (node.exchange().rank() == 1) {  // elsewhere until the others have given up
      while (failed < 2) std::this_thread::sleep_for(1ms);
      run<Barrier>(node);  // for which the others had come
      EXPECT_THAT(error_of([&] { run<Barrier>(node); }),
                  HasSubstr("has given up waiting for rank 1"));
      return;
    }
    const auto task = post<Barrier>(node, Clock::now() + 50ms);
    node.queue().wait(*task);
    EXPECT_THAT(
        error_of([&] { task->rethrow(); }),
        testing::AnyOf(HasSubstr("barrier (number 1) timed out: rank 1 did not come within"),
                       HasSubstr("has given up waiting for rank 1")));
    ++failed;
  });
}

TEST(ShmLoss, WhoLeavesIsMissedOnlyByThoseWhoStillNeedIt) {
  on_threads(2, kTiny, [](NodeGroup& node) {
    run<Barrier>(node);  // one may be through, and gone, before the other has looked
    if (node.exchange().rank() == 1) return;
    EXPECT_THAT(error_of([&] { run<Barrier>(node); }), HasSubstr("rank 1 has left the group"));
  });
}

TEST(ShmLoss, ClosingEndsAWaitOfItsOwn) {
  on_threads(2, kTiny, [](NodeGroup& node) {
    if (node.exchange().rank() == 1) {
      while (!node.exchange().is_lost(0)) std::this_thread::sleep_for(1ms);
      return;
    }
    const auto task = post<Barrier>(node, Clock::time_point::max());
    std::thread closing([&] { node.close(); });
    node.queue().wait(*task);
    closing.join();
    EXPECT_THAT(error_of([&] { task->rethrow(); }), HasSubstr("rank 0 has left the group"));
  });
}

// Children say here what became of them.
struct Notes {
  std::atomic<std::int64_t> seen_at_ns;
  std::atomic<std::int64_t> rounds;
};
struct Shared {
  Notes notes[8];
};

std::int64_t now_ns() { return Clock::now().time_since_epoch().count(); }

class SharedNotes {
 public:
  SharedNotes()
      : memory_(::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                       -1, 0)) {}
  ~SharedNotes() { ::munmap(memory_, sizeof(Shared)); }
  Notes& of(int rank) { return static_cast<Shared*>(memory_)->notes[rank]; }

 private:
  void* memory_;
};

constexpr int kWrongResult = 3;
constexpr int kNamedTheDead = 4;
constexpr int kNamedAnother = 5;

// Collectives drawn from a seed, the same on all ranks, each with its result checked, until one
// throws; ends the process with what came of it.
[[noreturn]] void communicate(NodeGroup& node, unsigned seed, int victim, Notes& notes) {
  const int ranks = node.exchange().size();
  const int rank = node.exchange().rank();
  std::mt19937 random(seed);
  try {
    for (int salt = 0;; ++salt) {
      const unsigned kind = random() % 4;
      const std::size_t count = random() % 2 ? random() % 100 : random() % 30000;
      const int root = static_cast<int>(random() % static_cast<unsigned>(ranks));
      Numbers numbers = numbers_of(rank, count, salt);
      if (kind == 0) {
        run<Broadcast>(node, numbers.data(), count * 4, root);
        if (numbers != numbers_of(root, count, salt)) ::_exit(kWrongResult);
      } else if (kind == 1) {
        std::vector<Numbers> all(static_cast<std::size_t>(ranks), Numbers(count));
        std::vector<void*> places;
        for (Numbers& one : all) places.push_back(one.data());
        run<Gather>(node, numbers.data(), count * 4, places);
        for (int other = 0; other < ranks; ++other) {
          if (all[static_cast<std::size_t>(other)] != numbers_of(other, count, salt)) {
            ::_exit(kWrongResult);
          }
        }
      } else {
        const auto task = post<Reduction>(node, Clock::now() + 60s, numbers.data(), count,
                                          Type::kInt32, Op::kSum);
        node.queue().wait(*task);
        task->rethrow();
        if (numbers != sum_of(ranks, count, salt)) ::_exit(kWrongResult);
      }
      ++notes.rounds;
    }
  } catch (const Failure& failure) {
    notes.seen_at_ns = now_ns();
    const std::string_view text = failure.what();
    // Who gave up first says for whom.
    const std::string name = "rank " + std::to_string(victim);
    const bool is_named = text.find(name + " (process") != std::string_view::npos ||
                          text.find("waiting for " + name) != std::string_view::npos;
    if (!is_named) std::fprintf(stderr, "rank %d: %s\n", rank, failure.what());
    ::_exit(is_named ? kNamedTheDead : kNamedAnother);
  }
}

TEST(ShmDeath, EveryOtherRankNamesWhoWasKilledAndNobodyGetsAWrongSum) {
  const char* const full = std::getenv("DDPRUN_TEST_FULL");
  const int kills = full != nullptr && std::string_view(full) == "1" ? 1000 : 40;
  std::mt19937 random(7);
  std::vector<double> delays_ms;
  for (int kill = 0; kill < kills; ++kill) {
    SCOPED_TRACE("kill " + std::to_string(kill));
    const int ranks = 2 + static_cast<int>(random() % 7);
    const int victim = static_cast<int>(random() % static_cast<unsigned>(ranks));
    const unsigned seed = random();
    const auto after_rounds = static_cast<std::int64_t>(1 + random() % 30);
    const auto after = std::chrono::microseconds(random() % 300);
    SharedNotes notes;
    Children children(ranks, random() % 2 ? kTiny : 512 << 10, [&](NodeGroup& node) {
      communicate(node, seed, victim, notes.of(node.exchange().rank()));
    });
    // From the first one on, which all have joined then.
    const auto until = Clock::now() + 20s;
    while (notes.of(victim).rounds < after_rounds && Clock::now() < until) {
      std::this_thread::sleep_for(100us);
    }
    std::this_thread::sleep_for(after);
    ::kill(children.pid(victim), SIGKILL);
    const std::int64_t killed_at = now_ns();
    for (int rank = 0; rank < ranks; ++rank) {
      const int status = children.wait(rank);
      if (rank == victim) continue;
      ASSERT_TRUE(WIFEXITED(status));
      ASSERT_EQ(WEXITSTATUS(status), kNamedTheDead) << "rank " << rank << " of " << ranks;
      delays_ms.push_back(static_cast<double>(notes.of(rank).seen_at_ns - killed_at) / 1e6);
    }
  }
  std::sort(delays_ms.begin(), delays_ms.end());
  const double median = delays_ms[delays_ms.size() / 2];
  RecordProperty("median_ms", std::to_string(median));
  std::printf("%d kills: seen by the others after %.2f ms (median), %.2f ms (last)\n", kills,
              median, delays_ms.back());
  EXPECT_LT(median, 10);
}

}  // namespace
}  // namespace ddprun::shm::test
