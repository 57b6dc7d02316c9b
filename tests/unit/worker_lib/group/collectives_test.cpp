// Every collective, on groups of one to four ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <future>
#include <limits>
#include <sstream>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddprun/context.h"
#include "tests/unit/worker_lib/group_of_threads.h"

namespace ddprun::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using torch::equal;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

// Two rows per rank, all numbers different.
Tensor rows_of(int rank, std::int64_t rows = 2) {
  return torch::arange(rows * 3, torch::kInt64).view({rows, 3}) + 100 * rank;
}

class Collectives : public testing::TestWithParam<int> {
 protected:
  static void on_all(const std::function<void(Context&)>& body) { run_ranks(GetParam(), body); }
};
INSTANTIATE_TEST_SUITE_P(WorldOf, Collectives, testing::Values(1, 2, 4));

bool has_shared_memory() {
  std::ostringstream mapped;
  mapped << std::ifstream("/proc/self/maps").rdbuf();
  return mapped.str().find("/memfd:ddprun") != std::string::npos;
}

TEST_P(Collectives, SharedMemoryIsTakenOnlyWhereThereIsSomebodyToShareItWith) {
  run_ranks(
      GetParam(), [](Context& context) { EXPECT_EQ(has_shared_memory(), context.size() > 1); },
      [](int) { return Environment{}; }, {.backend = Backend::kShm});
}

TEST_P(Collectives, BroadcastGivesEverybodyTheRootsTensor) {
  on_all([](Context& context) {
    for (int root = 0; root < context.size(); ++root) {
      Tensor tensor = rows_of(context.rank());
      context.broadcast(tensor, root);
      EXPECT_TRUE(equal(tensor, rows_of(root)));
    }
  });
}

TEST_P(Collectives, AllReduceReducesInPlaceOnAllRanks) {
  on_all([](Context& context) {
    const int n = context.size();
    const auto reduced = [&](ReduceOp op) {
      Tensor tensor = torch::full({3}, context.rank() + 1, torch::kFloat64);
      context.all_reduce(tensor, op);
      EXPECT_EQ(tensor[0].item<double>(), tensor[2].item<double>());
      return tensor[0].item<double>();
    };
    EXPECT_EQ(reduced(ReduceOp::SUM), n * (n + 1) / 2);
    EXPECT_EQ(reduced(ReduceOp::MIN), 1);
    EXPECT_EQ(reduced(ReduceOp::MAX), n);
    EXPECT_EQ(reduced(ReduceOp::AVG), (n + 1) / 2.0) << "which Gloo itself cannot do";
    Tensor whole = torch::full({1}, context.rank() == 0 ? 7 : 0, torch::kInt64);
    context.all_reduce(whole, ReduceOp::AVG);
    EXPECT_EQ(whole.item<std::int64_t>(), 7 / n);
  });
}

TEST_P(Collectives, ReduceGivesTheRootTheSum) {
  on_all([](Context& context) {
    const int n = context.size();
    const int root = n - 1;
    Tensor tensor = torch::full({5}, context.rank() + 1, torch::kFloat32);
    context.reduce(tensor, root);
    if (context.rank() == root) {
      EXPECT_EQ(tensor[4].item<float>(), n * (n + 1) / 2);
    }
    Tensor mean = torch::full({5}, context.rank() + 1, torch::kFloat32);
    context.reduce(mean, root, ReduceOp::AVG);
    if (context.rank() == root) {
      EXPECT_EQ(mean[0].item<float>(), (n + 1) / 2.0F);
    }
  });
}

TEST_P(Collectives, GatherGivesTheRootEveryTensorInOrder) {
  on_all([](Context& context) {
    const int root = context.size() - 1;
    const Tensors all = context.gather(rows_of(context.rank()), root);
    ASSERT_EQ(all.size(), static_cast<std::size_t>(context.rank() == root ? context.size() : 0));
    for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
      EXPECT_TRUE(equal(all[static_cast<std::size_t>(rank)], rows_of(rank)));
    }
  });
}

TEST_P(Collectives, AllGatherGivesEverybodyEveryTensor) {
  on_all([](Context& context) {
    const Tensors all = context.all_gather(rows_of(context.rank()));
    ASSERT_EQ(all.size(), static_cast<std::size_t>(context.size()));
    for (int rank = 0; rank < context.size(); ++rank) {
      EXPECT_TRUE(equal(all[static_cast<std::size_t>(rank)], rows_of(rank)));
    }
    const Tensors numbers = context.all_gather(torch::tensor(context.rank()));
    EXPECT_EQ(numbers.back().dim(), 0);
    EXPECT_EQ(numbers.back().item<int>(), context.size() - 1);
  });
}

TEST_P(Collectives, AllGatherUnevenTakesRowsOfAnyNumberAndNone) {
  on_all([](Context& context) {
    const auto rows = [&](int rank) { return (rank + 1) % context.size(); };  // the last has none
    const Tensors all = context.all_gather_uneven(rows_of(context.rank(), rows(context.rank())));
    ASSERT_EQ(all.size(), static_cast<std::size_t>(context.size()));
    for (int rank = 0; rank < context.size(); ++rank) {
      EXPECT_TRUE(equal(all[static_cast<std::size_t>(rank)], rows_of(rank, rows(rank))));
    }
  });
}

TEST_P(Collectives, ScatterGivesEachRankItsPart) {
  on_all([](Context& context) {
    const int root = context.size() - 1;
    Tensors parts;
    for (int rank = 0; rank < context.size() && context.rank() == root; ++rank) {
      parts.push_back(rows_of(rank));
    }
    Tensor into = torch::zeros({2, 3}, torch::kInt64);
    context.scatter(into, parts, root);
    EXPECT_TRUE(equal(into, rows_of(context.rank())));
  });
}

TEST_P(Collectives, ReduceScatterGivesEachRankItsShareOfTheSum) {
  on_all([](Context& context) {
    const int n = context.size();
    const Tensor tensor = torch::arange(n * 2, torch::kFloat32).view({n * 2, 1}).expand({n * 2, 3});
    const Tensor own = tensor.narrow(0, context.rank() * 2, 2);
    EXPECT_TRUE(equal(context.reduce_scatter(tensor), own * n));
    EXPECT_TRUE(equal(context.reduce_scatter(tensor, ReduceOp::AVG), own));
    EXPECT_TRUE(equal(context.reduce_scatter(tensor, ReduceOp::MAX), own));
  });
}

TEST_P(Collectives, AllToAllTransposesWhoHasWhat) {
  on_all([](Context& context) {
    const int n = context.size();
    const int rank = context.rank();
    const Tensor mine = torch::arange(n, torch::kInt16) + 10 * rank;  // a type that Gloo lacks
    const Tensor came = context.all_to_all(mine);
    for (int from = 0; from < n; ++from) {
      EXPECT_EQ(came[from].item<int>(), 10 * from + rank);
    }
  });
}

TEST_P(Collectives, AllToAllOfPartsTakesAnyLengths) {
  on_all([](Context& context) {
    const int n = context.size();
    const int rank = context.rank();
    const auto length = [](int from, int to) { return (from + 2 * to) % 3; };
    Tensors parts;
    for (int to = 0; to < n; ++to) parts.push_back(rows_of(10 * rank + to, length(rank, to)));
    const Tensors came = context.all_to_all(parts);
    ASSERT_EQ(came.size(), static_cast<std::size_t>(n));
    for (int from = 0; from < n; ++from) {
      EXPECT_TRUE(equal(came[static_cast<std::size_t>(from)],
                        rows_of(10 * from + rank, length(from, rank))));
    }
  });
}

TEST_P(Collectives, MessagesGoRoundARing) {
  on_all([](Context& context) {
    const int n = context.size();
    if (n == 1) return;
    const int next = (context.rank() + 1) % n;
    const int before = (context.rank() + n - 1) % n;
    Tensor came = torch::zeros({2, 3}, torch::kInt64);
    auto sent = context.send_async(rows_of(context.rank()), next, /*tag=*/5);
    context.recv(came, before, /*tag=*/5);
    sent.wait();
    EXPECT_TRUE(equal(came, rows_of(before)));
    if (context.rank() == 0) {
      std::vector<bool> seen(static_cast<std::size_t>(n));
      for (int i = 1; i < n; ++i) {
        Tensor from = torch::zeros({1}, torch::kInt32);
        const int who = context.recv_from_any(from);
        EXPECT_EQ(from.item<int>(), who);
        EXPECT_FALSE(seen[static_cast<std::size_t>(who)]);
        seen[static_cast<std::size_t>(who)] = true;
      }
    } else {
      context.send(torch::tensor({context.rank()}, torch::kInt32), 0);
    }
  });
}

TEST_P(Collectives, NobodyPassesTheBarrierBeforeTheLastHasCome) {
  std::atomic<int> arrived = 0;
  on_all([&](Context& context) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      context.barrier();
      EXPECT_GE(arrived, round * context.size());
    }
  });
}

TEST_P(Collectives, AsynchronousOnesGiveTheSameAndKeepTheirTensorsAlive) {
  on_all([](Context& context) {
    const int n = context.size();
    auto gathered = context.all_gather_async(rows_of(context.rank()));  // of a temporary
    Tensor sum = torch::ones({1000}, torch::kFloat64);
    auto reduced = context.all_reduce_async(sum);
    auto average = context.all_reduce_async(torch::ones({7}), ReduceOp::AVG);
    auto shares = context.reduce_scatter_async(torch::ones({n, 2}));
    auto passed = context.barrier_async();
    passed.wait();
    EXPECT_TRUE(equal(gathered.wait().back(), rows_of(n - 1)));
    EXPECT_TRUE(equal(gathered.wait().back(), rows_of(n - 1))) << "again";
    reduced.wait();
    average.wait();
    average.wait();
    EXPECT_TRUE(reduced.is_done());
    EXPECT_EQ(sum[999].item<double>(), n);
    EXPECT_TRUE(equal(shares.wait(), torch::full({1, 2}, n, torch::kFloat32)));
  });
}

TEST_P(Collectives, AnyTypeAndLayoutIsMoved) {
  on_all([](Context& context) {
    for (const auto type : {torch::kInt16, torch::kComplexFloat, torch::kBFloat16, torch::kBool}) {
      const Tensor tensor = torch::ones({2, 3}).to(type).t();  // not contiguous
      const Tensors all = context.all_gather(tensor);
      EXPECT_TRUE(equal(all.back(), tensor)) << type;
      Tensor transposed = torch::zeros({3, 2}).to(type);
      if (context.rank() == 0) transposed.copy_(tensor);
      context.broadcast(transposed);
      EXPECT_TRUE(equal(transposed, tensor)) << type;
    }
    EXPECT_EQ(context.all_gather(torch::empty({0, 4})).back().sizes(), (std::vector<long>{0, 4}));
    Tensor needs_gradient = torch::ones({2}, torch::requires_grad());
    context.all_reduce(needs_gradient);
    EXPECT_EQ(needs_gradient[0].item<float>(), context.size());
  });
}

TEST_P(Collectives, PlainValuesAndStrings) {
  on_all([](Context& context) {
    const int n = context.size();
    const int rank = context.rank();
    EXPECT_EQ(context.all_reduce(rank + 1), n * (n + 1) / 2);
    EXPECT_EQ(context.all_reduce(rank + 0.5, ReduceOp::MAX), n - 0.5);
    EXPECT_EQ(context.all_reduce(1.5F), 1.5F * static_cast<float>(n));
    EXPECT_EQ(context.all_reduce(std::int64_t{1} << 60, ReduceOp::MIN), std::int64_t{1} << 60);
    const auto most = std::numeric_limits<std::uint64_t>::max();
    EXPECT_EQ(context.all_reduce(rank == 0 ? most : 1, ReduceOp::MAX), most);
    EXPECT_EQ(context.all_reduce(most, ReduceOp::MIN), most);
    EXPECT_EQ(context.all_reduce(rank == 0 ? std::uint64_t{1} << 63 : 0), std::uint64_t{1} << 63);
    EXPECT_TRUE(context.all_of(true));
    EXPECT_EQ(context.all_of(rank == 0), n == 1);
    EXPECT_TRUE(context.any_of(rank == 0));
    EXPECT_FALSE(context.any_of(false));

    const int root = n - 1;
    EXPECT_EQ(context.broadcast(rank * 1.25, root), root * 1.25);
    EXPECT_EQ(context.broadcast(rank == root, root), true);
    EXPECT_EQ(context.broadcast(std::string("from ") + std::to_string(rank), root),
              "from " + std::to_string(root));
    EXPECT_EQ(context.broadcast(rank == root ? "" : "ignored", root), "");

    std::vector<int> ranks;
    std::vector<std::string> texts;
    for (int other = 0; other < n; ++other) {
      ranks.push_back(other);
      texts.push_back(std::string(static_cast<std::size_t>(other), 'x'));
    }
    const std::string text(static_cast<std::size_t>(rank), 'x');
    EXPECT_EQ(context.all_gather(rank), ranks);
    EXPECT_EQ(context.all_gather(text), texts);
    EXPECT_EQ(context.gather(rank, root), rank == root ? ranks : std::vector<int>());
    EXPECT_EQ(context.gather(text, root), rank == root ? texts : std::vector<std::string>());
    EXPECT_EQ(context.all_gather(true), std::vector<bool>(static_cast<std::size_t>(n), true));
  });
}

using Scores = std::map<std::string, std::vector<double>>;

TEST_P(Collectives, ObjectsWithTensorsToo) {
  on_all([](Context& context) {
    const int n = context.size();
    const int root = n - 1;
    const auto scores = [](int rank) { return Scores{{"f1", {0.5, 1.0 * rank}}}; };
    EXPECT_EQ(context.broadcast_object(scores(context.rank()), root), scores(root));
    EXPECT_EQ(context.all_gather_object(scores(context.rank())).back(), scores(n - 1));
    const auto gathered = context.gather_object(scores(context.rank()), root);
    EXPECT_EQ(gathered.size(), static_cast<std::size_t>(context.rank() == root ? n : 0));

    using Batch = std::pair<std::string, Tensor>;
    const Batch batch = context.broadcast_object(
        context.rank() == 0 ? Batch{"images", rows_of(7).t()} : Batch{}, 0);
    EXPECT_EQ(batch.first, "images");
    EXPECT_TRUE(equal(batch.second, rows_of(7).t()));
    EXPECT_FALSE(context.broadcast_object(Tensor()).defined());
  });
}

TEST_P(Collectives, RunOnGivesItsValueToEverybody) {
  on_all([](Context& context) {
    const int last = context.size() - 1;
    std::atomic<int> calls = 0;
    const auto value = context.run_on(last, [&] {
      ++calls;
      return std::string("from the last");
    });
    EXPECT_EQ(value, "from the last");
    EXPECT_EQ(calls, context.rank() == last ? 1 : 0);
    EXPECT_EQ(context.run_on(std::nullopt, [&] { return context.rank(); }), context.rank());
    bool is_called = false;
    context.run_on(0, [&] { is_called = true; });
    EXPECT_EQ(is_called, context.rank() == 0);
  });
}

TEST_P(Collectives, WhatIsThrownInRunOnIsThrownOnAllRanks) {
  on_all([](Context& context) {
    const int last = context.size() - 1;
    const auto fails = [&] {
      if (context.rank() == last) throw UsageError("the disk is full");
    };
    for (const std::optional<int> where : {std::optional<int>(last), std::optional<int>()}) {
      if (context.rank() == last) {
        EXPECT_THAT([&] { context.run_on(where, fails); },
                    ThrowsMessage<UsageError>("the disk is full"));
      } else {
        EXPECT_THAT([&] { context.run_on(where, fails); },
                    ThrowsMessage<UsageError>("run_on failed on rank " + std::to_string(last) +
                                              ": the disk is full"));
      }
    }
    EXPECT_EQ(context.all_reduce(1), context.size()) << "the group goes on";
  });
}

TEST_P(Collectives, TheMainProcessGoesFirst) {
  std::atomic<int> order = 0;
  on_all([&](Context& context) {
    const int mine = context.main_process_first([&] { return order++; });
    EXPECT_EQ(mine == 0, context.is_main_process());
    if (context.size() == 1) return;
    // On its own node every rank of the thread group has the local rank that is its rank.
    EXPECT_THAT(
        [&] {
          context.main_process_first(
              [&] {
                EXPECT_TRUE(context.is_main_process()) << "the others are not to begin";
                throw Failure(ErrorCode::kNotFound, "no such host");
              },
              Context::First::kOfNode);
        },
        ThrowsMessage<Failure>(HasSubstr("no such host")));
    EXPECT_EQ(context.all_reduce(1), context.size());
  });
}

TEST_P(Collectives, ReductionsTakeEveryNumberType) {
  on_all([](Context& context) {
    const int n = context.size();
    for (const auto type :
         {torch::kUInt8, torch::kInt8, torch::kInt16, torch::kUInt16, torch::kInt32, torch::kUInt32,
          torch::kInt64, torch::kHalf, torch::kBFloat16, torch::kFloat32, torch::kFloat64}) {
      Tensor sum = torch::full({2 * n}, context.rank() + 1, torch::kInt64).to(type);
      EXPECT_EQ(context.reduce_scatter(sum)[0].item<int>(), n * (n + 1) / 2) << type;
      context.all_reduce(sum);
      EXPECT_EQ(sum[n].item<int>(), n * (n + 1) / 2) << type;
      context.reduce(sum, 0, ReduceOp::AVG);
      if (context.rank() == 0) {
        EXPECT_EQ(sum[0].item<int>(), n * (n + 1) / 2) << type;
      }
    }
    Tensor complex = torch::full({2}, context.rank() + 1.0, torch::kComplexFloat);
    context.all_reduce(complex, ReduceOp::AVG);
    EXPECT_EQ(torch::real(complex)[0].item<float>(), static_cast<float>(n + 1) / 2);
    EXPECT_THROW(context.all_reduce(torch::ones({2}, torch::kBool), ReduceOp::AVG), Failure);
  });
}

TEST_P(Collectives, ASparseTensorIsAddedUpWhereItIs) {
  on_all([](Context& context) {
    Tensor sum =
        torch::zeros({4, 2}).index_put_({context.rank()}, context.rank() + 1.0).to_sparse();
    context.all_reduce(sum);
    for (int rank = 0; rank < context.size(); ++rank) {
      EXPECT_EQ(sum.to_dense()[rank][1].item<int>(), rank + 1);
    }
    EXPECT_THAT([&] { context.broadcast(sum); }, ThrowsMessage<Failure>(HasSubstr("to_dense()")));
    EXPECT_THAT([&] { std::ignore = context.all_gather(sum); },
                ThrowsMessage<Failure>(HasSubstr("to_dense()")));
    EXPECT_THAT(
        [&] {
          std::ignore = context.all_to_all(Tensors(static_cast<std::size_t>(context.size())));
        },
        ThrowsMessage<Failure>(HasSubstr("not defined")));
  });
}

TEST_P(Collectives, UnsignedNumbersOf64BitsHaveTheirOrder) {
  on_all([](Context& context) {
    const auto check = [&](auto greatest) {
      using Number = decltype(greatest);
      const Number mine = context.rank() == 0 ? greatest : 1;
      EXPECT_EQ(context.all_reduce(mine, ReduceOp::MAX), greatest);
      EXPECT_EQ(context.all_reduce(mine, ReduceOp::MIN), context.size() == 1 ? greatest : 1u);
      const Number high = context.rank() == 0 ? Number{1} << 63 : 0;
      EXPECT_EQ(context.all_reduce(high, ReduceOp::AVG),
                (Number{1} << 63) / static_cast<Number>(context.size()));
    };
    check(~0UL);
    check(~0ULL);
  });
}

TEST_P(Collectives, TensorsTravelAsObjectsWhateverTheirLayout) {
  on_all([](Context& context) {
    const Tensor eye = torch::eye(3);
    const Tensor complex = torch::complex(eye, eye);
    const std::pair<Tensor, Tensor> cases[] = {
        {torch::ones({3, 0}), torch::ones({3, 0})},
        {torch::ones({0, 3}), torch::ones({0, 3})},
        {eye.to_sparse(), eye},
        {eye.to_sparse_csr(), eye},
        {complex.conj(), torch::complex(eye, -eye)},
        {eye.slice(0, 0, 3, 2).t(), eye.slice(0, 0, 3, 2).t()}};
    for (const auto& [sent, expected] : cases) {
      EXPECT_TRUE(equal(context.all_gather_object(sent).back(), expected)) << expected;
    }
  });
}

TEST(Messages, OverGlooHaveTheLimitOfACollective) {
  using namespace std::chrono_literals;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::promise<void> rank_0_has_given_up;
  run_rank_threads(2, [&](const Environment& environment) {
    Context context(environment, store,
                    {.backend = Backend::kGloo, .join_timeout = 20s, .timeout = 300ms});
    if (context.rank() == 1) return rank_0_has_given_up.get_future().wait();
    const auto begun = std::chrono::steady_clock::now();
    EXPECT_THROW(context.recv(torch::ones({1}), 1), Failure);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, 10s);
    rank_0_has_given_up.set_value();
  });
}

TEST(SmallerGroups, WorkBesideEachOtherAndTheWhole) {
  run_ranks(4, [](Context& context) {
    const auto evens = context.new_group({0, 2});
    const auto odds = context.new_group({1, 3});
    ASSERT_EQ(evens != nullptr, context.rank() % 2 == 0);
    ASSERT_EQ(odds != nullptr, context.rank() % 2 == 1);
    Group& mine = evens ? *evens : *odds;
    EXPECT_EQ(mine.size(), 2);
    EXPECT_EQ(mine.rank(), context.rank() / 2);
    EXPECT_EQ(mine.global_rank(1), context.rank() % 2 + 2);
    EXPECT_EQ(mine.all_reduce(context.rank()), context.rank() % 2 == 0 ? 2 : 4);
    EXPECT_EQ(mine.broadcast(std::to_string(context.rank()), 1),
              std::to_string(context.rank() % 2 + 2));
    EXPECT_EQ(context.all_reduce(1), 4);
    const auto alone = mine.new_group({1});
    EXPECT_EQ(alone != nullptr, mine.rank() == 1);
    if (alone) {
      EXPECT_EQ(alone->all_gather(5), std::vector<int>{5});
    }
  });
}

TEST(SmallerGroups, HaveTheOrderOfTheirList) {
  run_ranks(4, [](Context& context) {
    const auto group = context.new_group({3, 0, 2});
    ASSERT_EQ(group == nullptr, context.rank() == 1);
    if (!group) return;
    EXPECT_EQ(group->all_gather(context.rank()), (std::vector<int>{3, 0, 2}));
    EXPECT_EQ(group->rank(), context.rank() == 3 ? 0 : context.rank() == 0 ? 1 : 2);
    EXPECT_EQ(group->global_rank(0), 3);
    EXPECT_EQ(group->broadcast(context.rank()), 3);
    // Messages, too, go by the ranks of the group.
    torch::Tensor tensor = torch::full({1}, context.rank());
    if (group->rank() == 0) group->send(tensor, 2);
    if (group->rank() == 2) {
      group->recv(tensor, 0);
      EXPECT_EQ(tensor.item<int>(), 3);
    }
    const auto reversed = group->new_group({2, 1, 0});
    EXPECT_EQ(reversed->all_gather(context.rank()), (std::vector<int>{2, 0, 3}));
  });
}

TEST(SmallerGroups, AListThatMakesNoSenseIsRefusedOnAllRanks) {
  run_ranks(2, [](Context& context) {
    const auto refused = [&](std::vector<int> ranks) {
      try {
        std::ignore = context.new_group(ranks);
      } catch (const Failure& failure) {
        return failure.error().message;
      }
      return std::string("accepted");
    };
    EXPECT_THAT(refused({}), HasSubstr("empty"));
    EXPECT_THAT(refused({0, 0}), HasSubstr("twice"));
    EXPECT_THAT(refused({0, 2}), HasSubstr("from 0 to 1"));
    EXPECT_THAT(refused({context.rank()}), HasSubstr("another list of ranks than rank"));
    EXPECT_THAT(refused({context.rank(), 1 - context.rank()}), HasSubstr("another list"));
    EXPECT_EQ(context.all_reduce(1), 2);
  });
}

TEST(WrongArguments, AreRefusedWithASentence) {
  run_ranks(2, [](Context& context) {
    const auto refused = [](const std::function<void()>& call) {
      try {
        call();
      } catch (const Failure& failure) {
        EXPECT_EQ(failure.error().code, ErrorCode::kInvalidArgument);
        return failure.error().message;
      }
      return std::string("accepted");
    };
    const Tensor tensor = torch::ones({3, 2});
    EXPECT_THAT(refused([&] { context.broadcast(tensor, 2); }),
                HasSubstr("broadcast: there is no rank 2 in a group of 2"));
    EXPECT_THAT(refused([&] { context.broadcast(Tensor()); }), HasSubstr("not defined"));
    EXPECT_THAT(refused([&] { context.all_reduce(tensor.slice(0, 0, 3, 2)); }),
                HasSubstr("cannot be written in place"));
    EXPECT_THAT(refused([&] { std::ignore = context.reduce_scatter(tensor); }),
                HasSubstr("equal parts"));
    EXPECT_THAT(refused([&] { std::ignore = context.all_to_all(tensor); }),
                HasSubstr("equal parts"));
    EXPECT_THAT(refused([&] {
                  context.all_to_all_async(tensor, {1, 1}, {1, 1}).wait();
                }),
                HasSubstr("add up to 3"));
    EXPECT_THAT(refused([&] { std::ignore = context.all_to_all(Tensors{tensor}); }),
                HasSubstr("1 parts"));
    EXPECT_THAT(refused([&] { context.scatter(tensor, {tensor}, 1 - context.rank()); }),
                HasSubstr("only the root"));
    EXPECT_THAT(refused([&] { context.scatter(tensor, {tensor}, context.rank()); }),
                HasSubstr("one part per rank"));
    EXPECT_THAT(refused([&] { context.send(tensor, context.rank()); }), HasSubstr("to itself"));
    EXPECT_THAT(refused([&] { std::ignore = context.all_gather_uneven(torch::tensor(1)); }),
                HasSubstr("0 dimensions"));
    EXPECT_EQ(context.all_reduce(1), 2);
  });
}

// As NCCL's: a blocking call is done where it was queued, and gives nothing to wait for.
class RecordingBackend : public c10d::Backend {
 public:
  RecordingBackend() : Backend(0, 1) {}
  const std::string getBackendName() const override { return "recording"; }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>&,
                                           const c10d::BroadcastOptions& options) override {
    return done("broadcast", options.asyncOp);
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&,
                                           const c10d::AllreduceOptions& options) override {
    return done("all_reduce", options.asyncOp);
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    output.copy_(input);
    return done("all_gather", options.asyncOp);
  }

  std::vector<std::string> calls;

 private:
  class Done : public c10d::Work {
   public:
    bool isCompleted() override { return true; }
    bool wait(std::chrono::milliseconds) override { return true; }
  };
  c10::intrusive_ptr<c10d::Work> done(const std::string& call, bool is_async) {
    calls.push_back(call + (is_async ? " async" : " blocking"));
    if (!is_async) return {};
    return c10::make_intrusive<Done>();
  }
};

TEST(BlockingCalls, SayThatTheyAreToTheBackend) {
  run_ranks(1, [](Context& context) {
    const auto backend = c10::make_intrusive<RecordingBackend>();
    context.process_group()->setBackend(c10::DeviceType::CPU,
                                        c10d::ProcessGroup::BackendType::CUSTOM, backend);
    const Tensor tensor = torch::ones({2, 2});
    context.broadcast(tensor);
    context.broadcast_async(tensor).wait();
    context.all_reduce(tensor.t());
    context.all_reduce_async(tensor).wait();
    EXPECT_TRUE(equal(context.all_gather(tensor).at(0), tensor));
    EXPECT_TRUE(equal(context.all_gather_async(tensor).wait().at(0), tensor));
    EXPECT_THAT(backend->calls, testing::ElementsAre("broadcast blocking", "broadcast async",
                                                     "all_reduce blocking", "all_reduce async",
                                                     "all_gather blocking", "all_gather async"));
  });
}

TEST(WrongArguments, ShapesThatDifferBetweenRanksAreNamedOnBoth) {
  run_ranks(2, [](Context& context) {
    const Tensor tensor = torch::ones({3, context.rank() + 2});
    const auto message =
        AllOf(HasSubstr("rank 0 brings Float[*, 2]"), HasSubstr("rank 1 brings Float[*, 3]"));
    EXPECT_THAT([&] { std::ignore = context.all_gather_uneven(tensor); },
                ThrowsMessage<Failure>(message));
    EXPECT_THAT(
        [&] {
          std::ignore = context.all_to_all(Tensors{tensor, tensor});
        },
        ThrowsMessage<Failure>(message));
  });
}

}  // namespace
}  // namespace ddprun::test
