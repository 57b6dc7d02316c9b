// With the driver library of tests/support/fake_nvml.cpp.
#include "agent/gpu/nvml.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "tests/support/temporary_tree.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

class NvmlTest : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("DDPRUN_FAKE_NVML", (tree + "/nvml").c_str(), 1); }
  void TearDown() override { ::unsetenv("DDPRUN_FAKE_NVML"); }

  TemporaryTree folder_;
  const std::string tree = folder_.path();
};

TEST_F(NvmlTest, TellsWhatAGpuSays) {
  folder_.write("nvml",
                "gpu used=1024 total=4096 util=98 temp=61 ecc=2\n"
                "process 0 4711 512\nprocess 0 1 256\n"
                "gpu lost\n"
                "gpu used=1 total=2\n");
  const auto nvml = Nvml::load(DDPRUN_FAKE_NVML);
  ASSERT_TRUE(nvml);
  const std::vector<GpuSample> samples = nvml->samples();
  ASSERT_EQ(samples.size(), 3U);
  EXPECT_EQ(samples[0].gpu, (Gpu{"GPU-fake0", "0000:3a:00.0"}));
  EXPECT_EQ(samples[0].memory_used, 1024U);
  EXPECT_EQ(samples[0].memory_total, 4096U);
  EXPECT_EQ(samples[0].utilization, 98);
  EXPECT_EQ(samples[0].temperature, 61);
  EXPECT_EQ(samples[0].ecc, 2U);
  ASSERT_EQ(samples[0].processes.size(), 2U);
  EXPECT_EQ(samples[0].processes[0].pid, 4711);
  EXPECT_EQ(samples[0].processes[0].bytes, 512U);
  EXPECT_NE(samples[0].processes[1].name, "");
  EXPECT_NE(samples[1].trouble, "") << "it is lost";
  EXPECT_EQ(samples[1].memory_used, std::nullopt);
  EXPECT_EQ(samples[2].ecc, std::nullopt) << "it has no ECC";
}

TEST_F(NvmlTest, WaitsForXids) {
  folder_.write("nvml", "gpu used=1 total=2\ngpu used=1 total=2\nxid 1 79\n");
  const auto nvml = Nvml::load(DDPRUN_FAKE_NVML);
  ASSERT_TRUE(nvml);
  EXPECT_NE(nvml->await_xid(0ms).trouble, "") << "it has not subscribed";
  ASSERT_TRUE(nvml->subscribe_to_xids());
  EXPECT_EQ(nvml->await_xid(1s).xid, (GpuXid{1, 79}));
  const Nvml::XidAnswer answer = nvml->await_xid(1ms);
  EXPECT_EQ(answer.xid, std::nullopt);
  EXPECT_EQ(answer.trouble, "") << "there may be more";
}

TEST_F(NvmlTest, AnXidOfALostGpuIsTold) {
  folder_.write("nvml", "gpu used=1 total=2\ngpu used=1 total=2\n");
  const auto nvml = Nvml::load(DDPRUN_FAKE_NVML);
  ASSERT_TRUE(nvml);
  ASSERT_TRUE(nvml->subscribe_to_xids());
  folder_.write("nvml", "gpu used=1 total=2\ngpu lost\nxid 0 1\nxid 1 2\nxid 1 79\n");
  const GpuXid lost{1, 79};
  for (int waits = 0; waits < 3; ++waits) {
    if (nvml->await_xid(1s).xid == lost) return;
  }
  FAIL() << "the driver does not tell the index of a GPU that is lost";
}

TEST_F(NvmlTest, AfterAnErrorItSubscribesAnew) {
  folder_.write("nvml", "gpu used=1 total=2\nevents fail 1\n");
  const auto nvml = Nvml::load(DDPRUN_FAKE_NVML);
  ASSERT_TRUE(nvml);
  ASSERT_TRUE(nvml->subscribe_to_xids());
  EXPECT_EQ(nvml->await_xid(1s).trouble, "nvmlEventSetWait_v2 answers 15");
  ASSERT_TRUE(nvml->subscribe_to_xids());
  EXPECT_EQ(nvml->await_xid(1ms).trouble, "");
}

TEST(Nvml, IsNotThereWithoutADriver) {
  EXPECT_EQ(Nvml::load("libno-such-driver.so.1"), nullptr);
  EXPECT_EQ(Nvml::load(""), nullptr);
}

}  // namespace
}  // namespace ddprun::agent
