// ddprun_waiting_worker BACKEND FAULT: ten steps with an all_reduce each, then an all_reduce and a broadcast. One
// rank, the last if no other is named, does not do what the others do. In the first round, it
//
//   waits       for a signal before the all_reduce, as in a data loader that is stuck
//   waits_always    the same in every round
//   loops       there without end
//   deadlocks   there: each of two threads has the mutex that the other wants
//   stops       itself there by SIGSTOP
//   pauses      so, and all go on for two seconds when it has been continued
//   vforks      there, and the child does not end: the parent waits inside of the kernel
//   skips       the all_reduce
//   swaps       both calls
//   differs     and makes a broadcast instead of the all_reduce
//   shape, type, root    has another one there (root: in the broadcast)
//   dies        by SIGKILL inside of the all_reduce
//   slow        needs five times as long for each step
//   evaluates   rank 0, for DDPRUN_TEST_SECONDS before the all_reduce, and comes then
//   saves       a file, with fsync, as long
//   compiles    as long, in its first step
//   trains      nothing else, for DDPRUN_TEST_SECONDS
//   lags        likewise, and the one rank sleeps for 30 ms before each of its calls
//   overlaps    likewise, but asynchronously, and all compute for DDPRUN_TEST_SECONDS between the two calls
//   cycle       of three ranks: each pair has a group, and each waits in another one
#include <fcntl.h>
#include <sys/prctl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddprun/run.h"
#include "tests/support/end_quickly.h"

namespace {

using Clock = std::chrono::steady_clock;

std::chrono::seconds duration() {
  const char* const seconds = std::getenv("DDPRUN_TEST_SECONDS");
  return std::chrono::seconds(seconds == nullptr ? 3 : std::atoi(seconds));
}

bool is_first_round() {
  const char* const restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return restarts == nullptr || std::string(restarts) == "0";
}

void compute(Clock::duration time) {
  for (const auto end = Clock::now() + time; Clock::now() < end;) {
  }
}

void deadlock() {
  std::mutex mine;
  std::mutex other;
  std::promise<void> has_other;
  mine.lock();
  std::thread thread([&] {
    const std::scoped_lock first(other);
    has_other.set_value();
    const std::scoped_lock second(mine);
  });
  has_other.get_future().wait();
  other.lock();
}

void vfork_without_end() {
  if (::vfork() == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) ::pause();
  }
}

void save(Clock::duration time) {
  char file[] = "/tmp/ddprun_saved_XXXXXX";
  const int fd = ::mkstemp(file);
  ::unlink(file);
  const std::string block(1 << 20, 'x');
  for (const auto end = Clock::now() + time; Clock::now() < end;) {
    if (::pwrite(fd, block.data(), block.size(), 0) < 0 || ::fsync(fd) != 0) std::abort();
  }
  ::close(fd);
}

void do_fault(const std::string& fault) {
  if (fault.starts_with("waits")) {
    for (;;) ::pause();
  }
  for (volatile bool goes_on = true; fault == "loops" && goes_on;) {
  }
  if (fault == "deadlocks") deadlock();
  if (fault == "stops" || fault == "pauses") ::raise(SIGSTOP);
  if (fault == "vforks") vfork_without_end();
  if (fault == "evaluates") compute(duration());
  if (fault == "saves") save(duration());
}

// Each rank has a group with the next one and one with the one before, and is first in the former.
void wait_in_a_cycle(ddprun::Context& context, bool is_async) {
  const int world = context.world_size();
  std::vector<std::unique_ptr<ddprun::Group>> groups;
  std::size_t with_next = 0;
  for (int rank = 0; rank < world; ++rank) {
    const int next = (rank + 1) % world;
    auto group = context.new_group({std::min(rank, next), std::max(rank, next)});
    if (context.rank() == rank) with_next = groups.size();
    if (group) groups.push_back(std::move(group));
  }
  if (is_async) {
    auto with_next_one = groups.at(with_next)->all_reduce_async(torch::ones({1}));
    compute(duration());
    groups.at(1 - with_next)->all_reduce(torch::ones({1}));
    return with_next_one.wait();
  }
  groups.at(with_next)->all_reduce(torch::ones({1}));
  groups.at(1 - with_next)->all_reduce(torch::ones({1}));
}

void train(ddprun::Context& context, const std::string& asked) {
  const std::string fault = is_first_round() || asked == "waits_always" ? asked : "";
  const int culprit = fault == "evaluates" ? 0 : context.world_size() - 1;
  const bool is_culprit = context.rank() == culprit;
  const auto has = [&](const char* name) { return is_culprit && fault == name; };
  for (int step = 1; step <= 10; ++step) {
    if (has("compiles") && step == 1) compute(duration());
    if (fault == "slow") {
      std::this_thread::sleep_for(std::chrono::milliseconds(is_culprit ? 250 : 50));
    }
    context.all_reduce(torch::ones({8}));
    context.progress(step);
  }
  if (fault == "cycle" || fault == "overlaps") return wait_in_a_cycle(context, fault == "overlaps");
  const auto end = Clock::now() + duration();
  for (int step = 11; fault == "trains" || fault == "lags"; ++step) {
    compute(std::chrono::milliseconds(20));
    if (has("lags")) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    const bool is_over = Clock::now() > end;
    if (context.all_reduce(is_over ? 1 : 0) > 0) break;
    context.progress(step);
  }
  if (is_culprit) do_fault(fault);
  std::thread killer;
  if (fault == "dies") {
    if (is_culprit) {
      killer = std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        ::kill(::getpid(), SIGKILL);
      });
    } else if (context.rank() == 0) {
      for (;;) ::pause();  // so that the others wait inside of the call
    }
  }
  const auto values =
      torch::ones({has("shape") ? 12 : 8}, has("type") ? torch::kFloat64 : torch::kFloat32);
  const int root = has("root") ? 1 : 0;
  if (has("swaps") || has("differs")) context.broadcast(values, root);
  if (!has("skips") && !has("differs")) context.all_reduce(values);
  if (!has("swaps")) context.broadcast(torch::ones({8}), root);
  for (int i = 0; fault == "pauses" && i < 40; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    context.all_reduce(values);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string backend = argv[1];
  const std::string fault = argv[2];
  ddprun::ContextOptions options;
  options.backend = backend == "gloo" ? ddprun::Backend::kGloo : ddprun::Backend::kShm;
  const int code = ddprun::run(
      argc, argv, [&](ddprun::Context& context) { train(context, fault); }, options);
  ddprun::test::end_quickly(code);
}
