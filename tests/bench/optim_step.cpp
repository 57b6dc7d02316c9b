// One step of each optimizer of ddprun::optim over 200 parameters, in each of its three ways; optim_step.py
// (tests/compat) is the same program in Python. One line of JSON for each:
//   {"optimizer": "Adam", "way": "foreach", "parameters": 416000, "operators": 12, "median_us": 2730.1,
//    "sum": 12.25}
// `operators` counts those that the step calls itself, not those that operators call. `sum` is of all
// parameters after the last step: equal in both programs, or they did not do the same work.
#include <ATen/record_function.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "ddprun/optim.h"

namespace {

using torch::Tensor;
namespace optim = ddprun::optim;

constexpr int kLayers = 100;  // a matrix and a bias each
constexpr int kWidth = 64;
constexpr int kWarmUp = 20;

std::vector<Tensor> parameters() {
  torch::manual_seed(1);
  std::vector<Tensor> all;
  const auto add = [&](at::IntArrayRef sizes) {
    all.push_back(torch::randn(sizes).requires_grad_());
    all.back().mutable_grad() = torch::randn(sizes);
  };
  for (int i = 0; i < kLayers; ++i) {
    add({kWidth, kWidth});
    add({kWidth});
  }
  return all;
}

template <typename Options>
Options on(Options options, const std::string& way) {
  options.foreach (way == "foreach").fused(way == "fused");
  return options;
}

std::unique_ptr<torch::optim::Optimizer> make(const std::string& name, const std::string& way,
                                              const std::vector<Tensor>& weights) {
  if (name == "SGD") {
    return std::make_unique<optim::SGD>(weights, on(optim::SGDOptions(1e-3).momentum(0.9), way));
  }
  if (name == "Adam") return std::make_unique<optim::Adam>(weights, on(optim::AdamOptions(), way));
  return std::make_unique<optim::AdamW>(weights, on(optim::AdamWOptions(), way));
}

int depth = 0;  // of operators in operators
int operators = 0;

int operators_of(torch::optim::Optimizer& optimizer) {
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
            if (depth++ == 0) ++operators;
            return nullptr;
          },
          [](const at::RecordFunction&, at::ObserverContext*) { --depth; })
          .scopes({at::RecordScope::FUNCTION}));
  operators = 0;
  optimizer.step();
  at::removeCallback(handle);
  return operators;
}

void measure(const std::string& name, const std::string& way, int steps) {
  const auto weights = parameters();
  const auto optimizer = make(name, way, weights);
  for (int i = 0; i < kWarmUp; ++i) optimizer->step();
  const int called = operators_of(*optimizer);
  std::vector<double> times;
  for (int i = 0; i < steps; ++i) {
    const auto begun = std::chrono::steady_clock::now();
    optimizer->step();
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun)
            .count());
  }
  std::nth_element(times.begin(), times.begin() + steps / 2, times.end());
  double sum = 0;
  std::int64_t count = 0;
  for (const Tensor& weight : weights) {
    sum += weight.sum().item<double>();
    count += weight.numel();
  }
  std::printf(
      "{\"optimizer\": \"%s\", \"way\": \"%s\", \"parameters\": %lld, \"operators\": %d, "
      "\"median_us\": %.1f, \"sum\": %.17g}\n",
      name.c_str(), way.c_str(), static_cast<long long>(count), called, times[steps / 2], sum);
}

}  // namespace

int main(int argc, char** argv) {
  int steps = 500;
  CLI::App app("Times the steps of ddprun::optim's optimizers.");
  app.add_option("--steps", steps, "timed, of each")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  for (const char* name : {"SGD", "Adam", "AdamW"}) {
    for (const char* way : {"single", "foreach", "fused"}) measure(name, way, steps);
  }
}
