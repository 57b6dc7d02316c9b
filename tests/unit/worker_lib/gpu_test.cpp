// Collectives on a GPU: a world of one over NCCL, and two ranks that share the GPU over Gloo.
// Skipped, not passed, where there is none. More GPUs: the example gpu_smoke. And, without one, when
// CUDA is loaded and what is said where it cannot be used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "ddprun/context.h"
#include "gpu.h"
#include "group_of_threads.h"
#include "temp_folder.h"

namespace ddprun::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void use_every_collective(Context& context) {
  const int n = context.size();
  const auto on_gpu = torch::dtype(torch::kFloat32).device(context.device());
  const torch::Tensor mine = torch::full({2 * n, 3}, context.rank() + 1, on_gpu);
  torch::Tensor sum = mine.clone();
  context.all_reduce(sum);
  EXPECT_EQ(sum[0][0].item<int>(), n * (n + 1) / 2);
  torch::Tensor mean = mine.clone();
  context.all_reduce(mean, ReduceOp::AVG);
  EXPECT_EQ(mean[0][0].item<float>(), static_cast<float>(n + 1) / 2);
  torch::Tensor last = mine.clone();
  context.broadcast(last, n - 1);
  EXPECT_EQ(last[0][0].item<int>(), n);
  EXPECT_EQ(context.all_gather(mine).back()[0][0].item<int>(), n);
  EXPECT_EQ(context.all_gather_uneven(mine.narrow(0, 0, context.rank() + 1)).back().size(0), n);
  torch::Tensor transposed = mine.narrow(0, 0, 2).clone().t();
  context.all_reduce(transposed);
  EXPECT_EQ(transposed[2][0].item<int>(), n * (n + 1) / 2);
  const torch::Tensor halves = torch::full({2, 3}, context.rank(), on_gpu.dtype(torch::kInt16));
  EXPECT_EQ(context.all_gather(halves).back()[0][0].item<int>(), n - 1);
  if (n > 1) {
    torch::Tensor came = torch::zeros({2}, on_gpu);
    auto sent = context.send_async(mine[0].narrow(0, 0, 2), (context.rank() + 1) % n);
    const int before = (context.rank() + n - 1) % n;
    context.receive(came, before);
    sent.wait();
    EXPECT_EQ(came[0].item<int>(), before + 1);
  }
  EXPECT_EQ(context.all_reduce(1), n) << "on the CPU beside it";
  context.barrier();
}

TEST(Gpu, AWorldOfOneThroughNccl) {
  if (!test::has_gpu()) GTEST_SKIP() << "no GPU here";
  Context context(Environment{}, {.backend = Backend::kNccl});
  EXPECT_TRUE(context.device().is_cuda());
  use_every_collective(context);
  EXPECT_EQ(context.reduce_scatter(torch::ones({4}, context.device())).numel(), 4);
  EXPECT_EQ(context.all_to_all(torch::ones({4}, context.device())).numel(), 4);
  context.leave();
}

TEST(Gpu, TwoRanksShareItThroughGloo) {
  if (!test::has_gpu()) GTEST_SKIP() << "no GPU here";
  run_ranks(2, use_every_collective, [](int) { return Environment{}; },
            {.backend = Backend::kGloo, .device = torch::Device(torch::kCUDA, 0)});
}

TEST(Cuda, IsLoadedEarlyWhereAGpuMayBeSeen) {
  const TempFolder folder;
  EXPECT_FALSE(may_see_gpus(folder.path().c_str(), nullptr));
  std::ofstream(folder.path() + "/nvidiactl") << "";
  EXPECT_TRUE(may_see_gpus(folder.path().c_str(), nullptr));
  EXPECT_TRUE(may_see_gpus(folder.path().c_str(), "0,2"));
  EXPECT_FALSE(may_see_gpus(folder.path().c_str(), ""));
  EXPECT_FALSE(may_see_gpus(folder.path().c_str(), "-1"));
}

// Here LibTorch has answered that there is no CUDA, as it does when it was asked too early.
TEST(Cuda, ThatCannotBeUsedIsSaid) {
  if (has_gpu()) GTEST_SKIP() << "it can be used here";
  torch::manual_seed(1);
  try {
    require_cuda(2);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("the driver shows 2 GPUs, but LibTorch can use none"),
                                    HasSubstr("before libtorch_cuda was loaded")));
  }
}

}  // namespace
}  // namespace ddprun::test
