// What a worker pays to record a collective: started by ddprun, it opens its record, enters and leaves
// calls, and prints the nanoseconds of CPU time of one, and of two readings of the clock, which are
// part of it. The best of many blocks: what others do on the machine is not its cost.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <limits>

#include "worker_lib/process/collective_record.h"

namespace {

constexpr int kBlocks = 200;
constexpr int kCallsPerBlock = 10'000;

double ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

template <typename Call>
double best_ns(const Call& call) {
  double best = std::numeric_limits<double>::max();
  for (int block = 0; block < kBlocks; ++block) {
    const double begin = ns(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < kCallsPerBlock; ++i) call(i);
    best = std::min(best, (ns(CLOCK_THREAD_CPUTIME_ID) - begin) / kCallsPerBlock);
  }
  return best;
}

}  // namespace

int main() {
  auto record = ddprun::CollectiveRecord::of_this_process();
  if (!record) {
    std::fputs("record_call: there is no record; start it with ddprun\n", stderr);
    return 1;
  }
  ddprun::GroupRecord group(std::move(record), "bench", 0, 2);
  const double call = best_ns([&](int i) {
    group.leave(group.enter({.operation = ddprun::record::Operation::kAllReduce,
                             .elements = static_cast<std::uint64_t>(i)}));
  });
  volatile double sink = 0;
  const double clock = best_ns([&](int) {
    sink = ns(CLOCK_MONOTONIC);
    sink = ns(CLOCK_MONOTONIC);
  });
  std::printf("{\"call_ns\": %.2f, \"clock_ns\": %.2f}\n", call, clock);
}
