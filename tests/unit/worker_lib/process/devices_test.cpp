#include "ddprun/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddprun/error.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Devices, AreDescribedAsTheDriverSays) {
  const auto gpus = list_gpus(DDPRUN_FAKE_CUDA);
  ASSERT_EQ(gpus.size(), 2U);
  EXPECT_EQ(gpus[0].to_string(), "GPU 0: Fake 100, 80.0 GiB, compute capability 9.0");
  EXPECT_EQ(gpus[1].to_string(), "GPU 1: Fake 101, 81.0 GiB, compute capability 9.1");
  EXPECT_EQ(count_gpus(DDPRUN_FAKE_CUDA), 2);
  EXPECT_EQ(cuda_of_driver(DDPRUN_FAKE_CUDA), 12040);
}

TEST(Devices, AreNoneWithoutADriverOrWithOneThatIsSomethingElse) {
  EXPECT_EQ(count_gpus("libno-such-driver.so.1"), 0);
  EXPECT_EQ(cuda_of_driver("libno-such-driver.so.1"), 0);
  EXPECT_TRUE(list_gpus("libz.so.1").empty());
}

TEST(Devices, AWorkerTakesTheGpuOfItsLocalRank) {
  EXPECT_EQ(gpu_of_worker({.local_rank = 1, .local_world_size = 2}, 2), 1);
  EXPECT_THAT([] { gpu_of_worker({.local_rank = 2, .local_world_size = 3}, 2); },
              ThrowsMessage<UsageError>(HasSubstr("local rank 2 has no GPU of its own")));
  EXPECT_THROW(gpu_of_worker({}, 0), UsageError);
}

TEST(Devices, ATaskOfSlurmMaySeeItsOwnAlone) {
  Environment task{.local_rank = 3, .local_world_size = 4};
  task.is_slurm_step = true;
  EXPECT_EQ(gpu_of_worker(task, 1), 0);
  EXPECT_EQ(gpu_of_worker(task, 4), 3);
  EXPECT_THROW(gpu_of_worker(task, 2), UsageError) << "which of them would be another task's too";
  EXPECT_THROW(gpu_of_worker(task, 0), UsageError);
}

}  // namespace
}  // namespace ddprun
