// What the other ranks hear when one fails, leaves, does not come or does something else. Ranks are
// threads, each with a connection of its own to a store that the first one serves, as between
// processes; dying without a report is in tests/integration/endings_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <latch>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "ddprun/leave.h"
#include "ddprun/run.h"
#include "rendezvous/net/listener.h"
#include "tests/unit/worker_lib/group_of_threads.h"
#include "tests/unit/worker_lib/temp_folder.h"
#include "worker_lib/c10d/process_group.h"
#include "worker_lib/group/context_access.h"
#include "worker_lib/group/failure_diagnosis.h"
#include "worker_lib/process/parse_environment.h"

namespace ddprun::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using torch::Tensor;

// What each rank's body threw; "" where nothing was thrown.
std::vector<std::string> thrown_by_ranks(int world_size, std::chrono::milliseconds timeout,
                                         const std::function<void(Context&)>& body,
                                         bool checks = false) {
  switch_flight_recorder_off();
  const rdzv::Listener port = rdzv::reserve_port({}).value();
  std::vector<std::string> thrown(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      Environment environment;
      environment.rank = environment.local_rank = rank;
      environment.world_size = environment.local_world_size = world_size;
      environment.master_addr = "127.0.0.1";
      environment.master_port = port.bound.port;
      ContextOptions options{.backend = Backend::kGloo};
      options.join_timeout = 20s;
      options.timeout = timeout;
      options.check_collectives = checks;
      try {
        Context context(environment, options);
        try {
          body(context);
          leave(context);
        } catch (...) {
          leave_failed(context);
        }
      } catch (const std::exception& error) {
        thrown[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

TEST(Endings, TheOthersHearWhichRankFailedAndWhy) {
  const auto thrown = thrown_by_ranks(3, 20s, [](Context& context) {
    context.barrier();
    if (context.rank() == 1) throw UsageError("cannot read the labels");
    context.all_reduce(torch::ones({3}));
  });
  EXPECT_EQ(thrown[1], "cannot read the labels");
  EXPECT_THAT(thrown[0], HasSubstr("rank 1 failed: cannot read the labels"));
  EXPECT_THAT(thrown[2], HasSubstr("rank 1 failed: cannot read the labels"));
}

// With it the store ends in which the others look for the reason.
TEST(Endings, TheRankThatServesTheStoreMayFailToo) {
  const auto thrown = thrown_by_ranks(3, 20s, [](Context& context) {
    context.barrier();
    if (context.rank() == 0) throw std::runtime_error("out of memory");
    context.all_reduce(torch::ones({3}));
  });
  EXPECT_THAT(thrown[1], HasSubstr("rank 0 failed: out of memory"));
  EXPECT_THAT(thrown[2], HasSubstr("rank 0 failed: out of memory"));
}

TEST(Endings, ARankThatLeftEarlyIsNamed) {
  const auto thrown = thrown_by_ranks(3, 20s, [](Context& context) {
    context.barrier();
    if (context.rank() == 2) return;
    context.all_reduce(torch::ones({3}));
  });
  EXPECT_EQ(thrown[2], "");
  EXPECT_THAT(thrown[0], AllOf(HasSubstr("all_reduce of Float[3] (call 2) failed on rank 0"),
                               HasSubstr("rank 2 had left in good order")));
  EXPECT_THAT(thrown[1], HasSubstr("rank 2 had left in good order"));
}

TEST(Endings, ARankThatIsBusyElsewhereIsNamedAfterTheTimeLimit) {
  std::latch others_failed(2);
  const auto thrown = thrown_by_ranks(3, 500ms, [&](Context& context) {
    context.all_reduce(torch::ones({4}));
    if (context.rank() == 1) return others_failed.wait();
    try {
      context.barrier();
    } catch (...) {
      others_failed.count_down();
      throw;
    }
    others_failed.count_down();
  });
  for (const int rank : {0, 2}) {
    EXPECT_THAT(thrown[static_cast<std::size_t>(rank)],
                AllOf(HasSubstr("barrier (call 2) failed on rank " + std::to_string(rank)),
                      HasSubstr("rank 1 is alive but not in this call"),
                      HasSubstr("since all_reduce of Float[4] (call 1)")));
  }
}

TEST(Endings, RanksThatWaitInDifferentCallsAreTold) {
  const auto thrown = thrown_by_ranks(2, 500ms, [](Context& context) {
    if (context.rank() == 0) {
      context.barrier();
    } else {
      context.all_reduce(torch::ones({2}));
    }
  });
  EXPECT_THAT(thrown[0], HasSubstr("rank 1 is alive but not in this call: rank 1 has been in "
                                   "all_reduce of Float[2] (call 1)"));
  EXPECT_THAT(thrown[1], HasSubstr("rank 0 has been in barrier (call 1)"));
}

TEST(Endings, AStrayExceptionOfAConnectionIsExplainedByFail) {
  const auto thrown = thrown_by_ranks(2, 500ms, [](Context& context) {
    if (context.rank() == 1) return context.barrier();
    std::vector<Tensor> tensors{torch::ones({2})};  // as the Reducer does, past the Group
    context.process_group()->allreduce(tensors)->wait();
    context.process_group()->allreduce(tensors)->wait();
  });
  EXPECT_THAT(thrown[0], HasSubstr("communication failed on rank 0"));
  EXPECT_THAT(thrown[1], HasSubstr("rank 0 is alive but not in this call"));
}

std::string explain_abort(const Context& context, const std::string& error) {
  return detail::ContextAccess::diagnosis(context)->explain_abort(
      c10::DistBackendError({__func__, __FILE__, __LINE__}, error));
}

// As on a thread of NCCL, which nobody can catch.
TEST(Endings, AnAbortIsExplainedByTheRankThatIsMissing) {
  std::string text;
  const auto thrown = thrown_by_ranks(3, 20s, [&](Context& context) {
    context.barrier();
    if (context.rank() == 1) throw UsageError("cannot read the labels");
    if (context.rank() == 2) return;
    try {
      context.all_reduce(torch::ones({3}));
    } catch (...) {  // rank 1 has failed by now
    }
    std::thread watchdog([&] {
      text = explain_abort(context, "Watchdog caught a collective operation's time-out");
    });
    watchdog.join();
  });
  EXPECT_EQ(thrown[1], "cannot read the labels");
  EXPECT_THAT(text, AllOf(HasSubstr("rank 1 failed: cannot read the labels"),
                          HasSubstr("Watchdog caught a collective operation's time-out")));
}

TEST(Endings, AnAbortIsExplainedWhileTheMainThreadWaitsInTheStore) {
  constexpr auto kWait = 20s;
  std::latch is_explained(1);
  std::chrono::steady_clock::duration taken{};
  const auto thrown = thrown_by_ranks(2, kWait, [&](Context& context) {
    context.barrier();
    const auto store = context.process_group()->getStore();
    if (context.rank() == 1) {
      is_explained.wait();
      return store->set("explained", std::vector<std::uint8_t>{1});
    }
    std::thread watchdog([&] {
      std::this_thread::sleep_for(50ms);  // for the main thread to be in its wait, as a rule
      const auto begun = std::chrono::steady_clock::now();
      explain_abort(context, "time-out");
      taken = std::chrono::steady_clock::now() - begun;
      is_explained.count_down();
    });
    store->wait({"explained"}, kWait);
    watchdog.join();
  });
  EXPECT_LT(taken, kWait / 2);
  EXPECT_EQ(thrown[0], "");
}

TEST(Endings, AfterAllLeftInOrderNobodyComplains) {
  for (int repetition = 0; repetition < 5; ++repetition) {
    EXPECT_THAT(thrown_by_ranks(3, 20s, [](Context& context) { context.barrier(); }), Each(""));
  }
}

class AtEndOfGroup : public c10d::Backend {
 public:
  explicit AtEndOfGroup(std::function<void()> f) : Backend(0, 1), f_(std::move(f)) {}
  ~AtEndOfGroup() override { f_(); }

 private:
  std::function<void()> f_;
};

// NCCL may take as long as a time limit to end a group that has failed.
TEST(Endings, AFailureIsReportedBeforeTheContextEnds) {
  const TempFolder folder;
  const std::string error_file = folder.path() + "/error.json";
  ::setenv("TORCHELASTIC_ERROR_FILE", error_file.c_str(), 1);
  bool was_there = false;
  const int code = run(0, nullptr,
                       [&](Context& context) {
                         context.process_group()->setBackend(
                             c10::DeviceType::Meta, c10d::ProcessGroup::BackendType::CUSTOM,
                             c10::make_intrusive<AtEndOfGroup>(
                                 [&] { was_there = std::filesystem::exists(error_file); }));
                         throw std::runtime_error("the disk is full");
                       },
                       {.backend = Backend::kGloo});
  ::unsetenv("TORCHELASTIC_ERROR_FILE");
  EXPECT_EQ(code, 1);
  EXPECT_TRUE(was_there);
}

class EndCounter : public c10d::Backend {
 public:
  EndCounter() : Backend(0, 1) {}
  void shutdown() override { ++ends; }
  int ends = 0;
};

// In one store, as under a launcher: the second group finds nothing of the first.
TEST(Endings, AnotherContextMayFollowInTheSameStore) {
  for (const Backend backend : {Backend::kGloo, Backend::kShm}) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::string> failures(3);
    run_rank_threads(3, [&](const Environment& environment) {
      for (int number = 1; number <= 3; ++number) {
        Context context(environment, store,
                        {.backend = backend, .join_timeout = 20s, .timeout = 2s});
        EXPECT_EQ(context.all_reduce(number), 3 * number);
        if (number < 3) {
          leave(context);
          continue;
        }
        // Nobody has left this one: the first ones' reports say nothing about it.
        if (context.rank() == 2) continue;
        try {
          std::ignore = context.all_reduce(1);
        } catch (const Failure& failure) {
          failures[static_cast<std::size_t>(context.rank())] = failure.what();
        }
      }
    });
    for (const std::size_t rank : {0, 1}) {
      EXPECT_THAT(failures[rank], AllOf(HasSubstr("did not come"), Not(HasSubstr("good order"))));
    }
  }
}

TEST(Endings, AGroupInGoodOrderShutsDownWhatServesTheGpuAlone) {
  using c10d::ProcessGroup;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto group = c10::make_intrusive<ProcessGroup>(store, 0, 1);
  const auto on_cpu = c10::make_intrusive<EndCounter>();
  const auto on_gpu = c10::make_intrusive<EndCounter>();
  group->setBackend(c10::DeviceType::CPU, ProcessGroup::BackendType::GLOO,
                    c10::intrusive_ptr<c10d::Backend>(on_cpu));
  group->setBackend(c10::DeviceType::CUDA, ProcessGroup::BackendType::NCCL,
                    c10::intrusive_ptr<c10d::Backend>(on_gpu));
  shut_down(*group);
  EXPECT_EQ(on_cpu->ends, 0);
  EXPECT_EQ(on_gpu->ends, 1);
}

TEST(CheckedCollectives, TensorsThatDifferAreNamedBeforeAnythingIsSent) {
  const auto thrown = thrown_by_ranks(
      3, 20s,
      [](Context& context) {
        context.all_reduce(torch::ones({2}));
        std::ignore = context.all_gather_uneven(torch::ones({context.rank(), 2}));
        context.all_reduce(torch::ones({context.rank() == 2 ? 3 : 2}));
      },
      /*checks=*/true);
  EXPECT_THAT(thrown, Each("the ranks make different calls: rank 0 makes all_reduce SUM of "
                           "Float[2], rank 2 makes all_reduce SUM of Float[3]"));
}

TEST(CheckedCollectives, CallsThatDifferAreNamed) {
  const auto thrown = thrown_by_ranks(
      2, 20s,
      [](Context& context) {
        if (context.rank() == 0) return context.barrier();
        context.broadcast(torch::ones({2}, torch::kInt64), 1);
      },
      /*checks=*/true);
  EXPECT_THAT(thrown, Each("the ranks make different calls: rank 0 makes barrier, rank 1 makes "
                           "broadcast of Long[2] with the root 1"));
}

TEST(Joining, ARankThatDoesNotComeIsNamed) {
  switch_flight_recorder_off();
  Environment environment;
  environment.world_size = environment.local_world_size = 3;
  environment.master_addr = "127.0.0.1";
  const rdzv::Listener port = rdzv::reserve_port({}).value();
  environment.master_port = port.bound.port;
  ContextOptions options{.backend = Backend::kGloo};
  options.join_timeout = 1s;
  std::vector<std::string> thrown(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Environment own = environment;
      own.rank = rank;
      try {
        Context context(own, options);
      } catch (const Failure& failure) {
        thrown[static_cast<std::size_t>(rank)] = failure.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(thrown[0], HasSubstr("rank 2 did not come to 127.0.0.1:"));
}

TEST(Joining, AFileWillDo) {
  switch_flight_recorder_off();
  const TempFolder folder;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      ContextOptions options{.backend = Backend::kGloo};
      options.timeout = options.join_timeout = 20s;
      options.init_method = {"file://" + folder.path() + "/store", rank, 3};
      const auto environment =
          parse_environment([](const char*) { return std::nullopt; }, options.init_method);
      Context context(environment, options);
      EXPECT_EQ(context.all_reduce(rank), 3);
      leave(context);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Backends, AreNamedAsInPyTorch) {
  EXPECT_EQ(backend_from("cpu:gloo,cuda:nccl"), Backend::kNccl);
  EXPECT_EQ(backend_from("cuda:nccl,cpu:gloo"), Backend::kNccl);
  EXPECT_EQ(backend_from("gloo"), Backend::kGloo);
  EXPECT_THAT([] { backend_from("mpi"); },
              testing::ThrowsMessage<UsageError>(HasSubstr("there is no backend 'mpi'")));
}

}  // namespace
}  // namespace ddprun::test
