// How long an asynchronous checkpoint blocks a step, beside one memcpy of as many bytes into memory
// that is equally warm. They take turns; before each the one before is on the disk. Rank 0 prints
// one line of JSON: {"bytes": 100023296, "block_ms": 14.1, "memcpy_ms": 13.5, "written_ms": 310.2}
// (medians; "written_ms" is until it is on the disk).
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "ddprun/checkpoint.h"
#include "ddprun/run.h"
#include "tests/bench/timing.h"

namespace {

using ddprun::bench::median;
using ddprun::bench::milliseconds;

struct Settings {
  std::string folder;
  int megabytes = 100;
  int repetitions = 15;
};

// Layers of 4 MB, as a transformer of middle size has.
torch::nn::Sequential make_model(int megabytes) {
  torch::nn::Sequential model;
  for (int i = 0; i < megabytes / 4; ++i) model->push_back(torch::nn::Linear(1000, 1000));
  return model;
}

void measure(const Settings& settings, ddprun::Context& context) {
  const auto model = make_model(settings.megabytes);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  ddprun::Checkpointer checkpoints(context, settings.folder, {.async_save = true});
  std::size_t bytes = 0;
  for (const torch::Tensor& parameter : model->parameters()) bytes += parameter.nbytes();
  const std::vector<char> source(bytes, 1);
  std::vector<char> copy(bytes, 0);

  std::vector<double> block;
  std::vector<double> plain;
  std::vector<double> written;
  for (int i = 0; i <= settings.repetitions; ++i) {
    context.barrier();
    const double in_memcpy = milliseconds([&] { std::memcpy(copy.data(), source.data(), bytes); });
    context.barrier();
    const double in_save = milliseconds([&] { checkpoints.save(model, optimizer, {.step = i}); });
    const double in_wait = milliseconds([&] { checkpoints.wait(); });
    if (i == 0) continue;  // touches the buffer's pages for the first time
    plain.push_back(in_memcpy);
    block.push_back(in_save);
    written.push_back(in_save + in_wait);
  }
  if (!context.is_main_process()) return;
  std::printf("{\"bytes\": %zu, \"block_ms\": %.3f, \"memcpy_ms\": %.3f, \"written_ms\": %.1f}\n",
              bytes, median(block), median(plain), median(written));
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Times how long an asynchronous checkpoint blocks a step.");
  app.add_option("--folder", settings.folder, "where the checkpoints go")->required();
  app.add_option("--megabytes", settings.megabytes, "size of the model")
      ->check(CLI::Range(4, 4000));
  app.add_option("--repetitions", settings.repetitions, "counted")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  return ddprun::run(argc, argv, [&](ddprun::Context& context) { measure(settings, context); },
                     {.backend = ddprun::Backend::kGloo});
}
