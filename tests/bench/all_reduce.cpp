// Times all_reduce of float32 tensors of several sizes, as a program of worker_lib calls it, and the
// joining of the group, from the moment when the last rank wanted to join to the one when the last had
// joined. Run under a launcher, on one machine; rank 0 prints one line of JSON:
//   {"backend": "shm", "ranks": 2, "join_ms": 3.1, "median_us": {"1000": 2.4, …}}
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "ddprun/context.h"
#include "ddprun/leave.h"

namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point begun) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begun).count();
}

double milliseconds_between(Clock::time_point begun, Clock::time_point ended) {
  return std::chrono::duration<double, std::milli>(ended - begun).count();
}

// Of all ranks; they have one clock.
Clock::time_point greatest(ddprun::Context& context, Clock::time_point own) {
  const auto all = context.all_gather(own.time_since_epoch().count());
  return Clock::time_point(Clock::duration(*std::max_element(all.begin(), all.end())));
}

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double measure(ddprun::Context& context, std::int64_t count, int repetitions) {
  const torch::Tensor tensor = torch::full({count}, 1.0F);
  std::vector<double> times;
  for (int i = -repetitions / 10; i < repetitions; ++i) {
    const auto begun = Clock::now();
    context.all_reduce(tensor, ddprun::ReduceOp::MAX);
    if (i >= 0) times.push_back(microseconds_since(begun));
  }
  if (tensor[count / 2].item<float>() != 1) std::abort();
  return median_of(times);
}

}  // namespace

int main(int argc, char** argv) {
  std::string backend = "shm";
  double share = 1;
  CLI::App app("Times all_reduce and joining.");
  app.add_option("--backend", backend, "gloo or shm");
  app.add_option("--share", share, "of the usual number of repetitions")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);

  const auto begun = Clock::now();
  ddprun::Context context({.backend = ddprun::backend_from(backend), .ignore_sigpipe = true});
  const auto joined = Clock::now();
  const double join_ms = milliseconds_between(greatest(context, begun), greatest(context, joined));
  std::string medians;
  for (const auto& [count, repetitions] : std::vector<std::pair<std::int64_t, int>>{
           {1000, 2000}, {55000, 1000}, {250000, 400}, {2800000, 60}}) {
    const double median =
        measure(context, count, std::max(10, static_cast<int>(repetitions * share)));
    medians +=
        (medians.empty() ? "\"" : ", \"") + std::to_string(count) + "\": " + std::to_string(median);
  }
  if (context.is_main_process()) {
    std::printf("{\"backend\": \"%s\", \"ranks\": %d, \"join_ms\": %.3f, \"median_us\": {%s}}\n",
                backend.c_str(), context.size(), join_ms, medians.c_str());
  }
  ddprun::leave(context);
}
