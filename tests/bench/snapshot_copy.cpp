// What a snapshot in memory costs: how long keep() blocks the step, beside a memcpy of a rank's share, and how long
// resume() takes to read one back, beside a memcpy of all of it; into memory that is equally warm. Run it under a
// ddprun that may restart. Rank 0 prints one line of JSON: {"bytes": 300023296, "keep_ms": 25.1, "share_ms": 24.8,
// "resume_ms": 61.0, "whole_ms": 59.3, "first_ms": 80.2} (medians; "first_ms": the first one, whose pages are new).
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "ddprun/checkpoint.h"
#include "ddprun/run.h"
#include "tests/bench/timing.h"

namespace {

using ddprun::bench::median;
using ddprun::bench::milliseconds;

struct Settings {
  std::string folder;
  int tensors = 75;
  int elements = 1'000'000;  // of each
  int repetitions = 11;
};

struct Model : torch::nn::Module {
  Model(int tensors, int elements) {
    for (int i = 0; i < tensors; ++i) {
      register_parameter("layer_" + std::to_string(i),
                         torch::full({elements}, static_cast<float>(i)));
    }
  }
};

void measure(const Settings& settings, ddprun::Context& context) {
  const auto model = std::make_shared<Model>(settings.tensors, settings.elements);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  ddprun::Checkpointer checkpoints(context, settings.folder, {.memory_every = 1});
  std::size_t bytes = 0;
  for (const torch::Tensor& parameter : model->parameters()) bytes += parameter.nbytes();
  const std::vector<char> source(bytes, 1);
  std::vector<char> copy(bytes, 0);
  const std::size_t share = bytes / static_cast<std::size_t>(context.world_size());

  double first = 0;
  std::vector<double> keep;
  std::vector<double> of_share;
  std::vector<double> resume;
  std::vector<double> of_whole;
  for (int i = 0; i < settings.repetitions + 2; ++i) {
    const auto timed = [&](std::vector<double>& times, const std::function<void()>& work) {
      context.barrier();
      const double taken = milliseconds(work);
      if (i >= 2) times.push_back(taken);  // before, pages of a slot are touched for the first time
      return taken;
    };
    timed(of_share, [&] { std::memcpy(copy.data(), source.data(), share); });
    const double taken = timed(keep, [&] { checkpoints.keep(model, optimizer, {.step = i}); });
    if (i == 0) first = taken;
    timed(of_whole, [&] { std::memcpy(copy.data(), source.data(), bytes); });
    timed(resume, [&] {
      const auto position = checkpoints.resume(model, optimizer);
      if (!position || position->step != i) std::abort();
    });
  }
  if (!context.is_main_process()) return;
  std::printf(
      "{\"bytes\": %zu, \"keep_ms\": %.3f, \"share_ms\": %.3f, \"resume_ms\": %.3f, "
      "\"whole_ms\": %.3f, \"first_ms\": %.3f}\n",
      bytes, median(keep), median(of_share), median(resume), median(of_whole), first);
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Times snapshots in memory.");
  app.add_option("--folder", settings.folder, "of the checkpoints, of which there are none")
      ->required();
  app.add_option("--tensors", settings.tensors, "of the model")->check(CLI::PositiveNumber);
  app.add_option("--elements", settings.elements, "of each tensor")->check(CLI::PositiveNumber);
  app.add_option("--repetitions", settings.repetitions, "counted")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  return ddprun::run(argc, argv, [&](ddprun::Context& context) { measure(settings, context); },
                     {.backend = ddprun::Backend::kShm});
}
