// What a resume needs besides the state itself. Saves, or resumes in processes of its own, a model and the
// state of Adam, which is twice as large; rank 0 prints one line of JSON after a resume:
//   {"state_bytes": 1006633024, "extra_bytes": 18087936, "seconds": 1.31, "sum": -23}
// `extra_bytes`: by how much the most memory that a rank had in the resume (VmHWM) exceeds what it had before and
// what the state of the optimizer takes; the largest of all ranks. `sum`: of the bits of all that was resumed
// or saved, as integers.
#include <torch/nn.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <tuple>

#include "ddprun/checkpoint.h"
#include "ddprun/optim.h"
#include "ddprun/run.h"

namespace {

constexpr int kWidth = 1024;  // a layer of 4 MB

struct Settings {
  std::string folder;
  int megabytes = 1000;  // of model and optimizer
  bool save = false;
};

// "VmRSS:", "VmHWM:", in bytes.
std::int64_t memory(const std::string& what) {
  std::ifstream status("/proc/self/status");
  std::string word;
  std::int64_t kib = 0;
  while (status >> word) {
    if (word == what && status >> kib) break;
  }
  return kib * 1024;
}

void run(const Settings& settings, ddprun::Context& context) {
  torch::nn::Sequential model;
  for (int i = 0; i < settings.megabytes / (3 * 4); ++i) {
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  }
  ddprun::optim::Adam optimizer(model->parameters(), ddprun::optim::AdamOptions().fused(true));
  ddprun::Checkpointer checkpoints(context, settings.folder);
  std::int64_t weights = 0;
  std::int64_t sum = 0;
  for (torch::Tensor& weight : model->parameters()) {
    weights += static_cast<std::int64_t>(weight.nbytes());
    if (settings.save) weight.mutable_grad() = torch::rand_like(weight);
  }
  std::int64_t extra = 0;
  double seconds = 0;
  if (settings.save) {
    optimizer.step();
    checkpoints.save(model, optimizer, {.step = 1});
  } else {
    context.barrier();
    std::ofstream("/proc/self/clear_refs") << 5;  // VmHWM begins anew
    const std::int64_t before = memory("VmRSS:");
    const auto begun = std::chrono::steady_clock::now();
    std::ignore = checkpoints.resume(model, optimizer);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    extra = memory("VmHWM:") - before - 2 * weights;
  }
  for (const torch::Tensor& weight : model->parameters()) {
    const auto& state = static_cast<ddprun::optim::AdamParamState&>(
        *optimizer.state().at(weight.unsafeGetTensorImpl()));
    for (const torch::Tensor& each : {weight, state.exp_avg(), state.exp_avg_sq()}) {
      sum += each.detach().view(torch::kInt32).sum().item<std::int64_t>();
    }
  }
  const auto extras = context.all_gather_object(extra);
  const auto sums = context.all_gather_object(sum);
  if (std::any_of(sums.begin(), sums.end(), [&](std::int64_t each) { return each != sum; })) {
    throw std::runtime_error("the ranks have resumed different states");
  }
  if (!context.is_main_process()) return;
  std::printf("{\"state_bytes\": %lld, \"extra_bytes\": %lld, \"seconds\": %.3f, \"sum\": %lld}\n",
              3 * static_cast<long long>(weights),
              static_cast<long long>(*std::max_element(extras.begin(), extras.end())), seconds,
              static_cast<long long>(sum));
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Measures what a resume needs besides the state itself.");
  app.add_option("--folder", settings.folder, "of the checkpoint")->required();
  app.add_option("--megabytes", settings.megabytes, "of model and optimizer")
      ->check(CLI::Range(12, 100000));
  app.add_flag("--save", settings.save, "writes the checkpoint, instead of resuming from it");
  CLI11_PARSE(app, argc, argv);
  return ddprun::run(argc, argv, [&](ddprun::Context& context) { run(settings, context); },
                     {.device = torch::kCPU});
}
