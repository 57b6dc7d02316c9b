// What a CI job on a machine with GPUs runs to see that everything works there: lists the GPUs, adds
// up a tensor over NCCL on one worker per GPU and checks the sum, and makes one training step with
// DistributedDataParallel on each, after which all ranks must have the same weights.
//
//   scripts/gpu_smoke                                       # one worker per GPU
//   ddprun --nproc-per-node=2 build/bin/gpu_smoke           # a number of your own
//   ddprun --nproc-per-node=2 build/bin/gpu_smoke --one-gpu # all workers on the first GPU
//   build/bin/gpu_smoke --count                             # prints how many GPUs there are
//
// NCCL refuses two ranks of one host on one GPU. With --one-gpu each rank tells it another host, and they
// talk through the network: slow, but the same calls as between GPUs, for machines that have one.
//
// Its last line is
//
//   gpu smoke test passed on 2 GPUs
//
// Exit code: 0; 77, after a line that begins with "skipped:", where there is no GPU (what automake
// and CTest's SKIP_RETURN_CODE take for "not run"); anything else is a failure.
#include <torch/nn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "ddprun/ddp.h"
#include "ddprun/devices.h"
#include "ddprun/optim.h"
#include "ddprun/run.h"

namespace {

using Tensor = torch::Tensor;

constexpr int kSkipped = 77;
constexpr int kFailed = 1;

// Tensors of a size that NCCL cuts into pieces, every element known beforehand.
bool sum_is_right(ddprun::Context& context) {
  constexpr std::int64_t kElements = 4 << 20;
  const auto on_gpu = torch::dtype(torch::kFloat32).device(context.device());
  const Tensor places = torch::arange(kElements, on_gpu).remainder(1024);
  Tensor tensor = places + context.rank();
  context.all_reduce(tensor);
  const int size = context.size();
  const Tensor expected = places * size + size * (size - 1) / 2;
  return tensor.equal(expected);
}

// The sum of all weights after a step on data that differs between the ranks.
double weights_after_a_step(ddprun::Context& context) {
  torch::manual_seed(1);
  auto net = std::make_shared<torch::nn::SequentialImpl>(
      torch::nn::Linear(64, 256), torch::nn::ReLU(), torch::nn::Linear(256, 10));
  net->to(context.device());
  ddprun::DistributedDataParallel model(net, context);
  ddprun::optim::SGD optimizer(model.parameters(), 0.1);
  torch::manual_seed(2 + static_cast<std::uint64_t>(context.rank()));
  const Tensor inputs = torch::randn({32, 64}).to(context.device());
  const Tensor targets = torch::randint(10, {32}, torch::kInt64).to(context.device());
  optimizer.zero_grad();
  torch::nn::functional::cross_entropy(model(inputs), targets).backward();
  optimizer.step();
  double sum = 0;
  for (const Tensor& parameter : model.parameters()) {
    sum += parameter.detach().to(torch::kFloat64).abs().sum().item<double>();
  }
  return sum;
}

int smoke(ddprun::Context& context) {
  const auto gpus = context.all_gather(
      ddprun::list_gpus()[static_cast<std::size_t>(context.device().index())].to_string());
  for (int rank = 0; rank < context.size() && context.is_main_process(); ++rank) {
    std::printf("rank %d: %s\n", rank, gpus[static_cast<std::size_t>(rank)].c_str());
  }
  const bool is_sum_right = sum_is_right(context);
  std::printf("rank %d: NCCL all-reduce %s\n", context.rank(), is_sum_right ? "right" : "WRONG");
  const double mine = weights_after_a_step(context);
  const auto all = context.all_gather(mine);
  const bool is_step_right =
      std::isfinite(mine) && mine > 0 && std::count(all.begin(), all.end(), mine) == context.size();
  std::printf("rank %d: training step %s\n", context.rank(), is_step_right ? "right" : "WRONG");
  std::fflush(stdout);
  if (!context.all_of(is_sum_right && is_step_right)) return kFailed;
  if (context.is_main_process()) {
    std::printf("gpu smoke test passed on %d GPU%s\n", context.size(),
                context.size() == 1 ? "" : "s");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int gpus = ddprun::count_gpus();
  if (argc > 1 && std::strcmp(argv[1], "--count") == 0) {
    std::printf("%d\n", gpus);
    return 0;
  }
  if (gpus == 0) {
    std::printf("skipped: there is no GPU (no NVIDIA driver, or CUDA_VISIBLE_DEVICES hides all)\n");
    return kSkipped;
  }
  ddprun::ContextOptions options{.backend = ddprun::Backend::kNccl};
  if (argc > 1 && std::strcmp(argv[1], "--one-gpu") == 0) {
    options.device = torch::Device(torch::kCUDA, 0);
    const char* const rank = std::getenv("RANK");
    ::setenv("NCCL_HOSTID", rank == nullptr ? "0" : rank, 1);
  }
  return ddprun::run(argc, argv, smoke, options);
}
