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
  EXPECT_EQ(nvml->await_xid(0ms), std::nullopt);
  nvml->subscribe_to_xids();
  ASSERT_TRUE(nvml->tells_xids());
  EXPECT_EQ(nvml->await_xid(1s), (GpuXid{1, 79}));
  EXPECT_EQ(nvml->await_xid(1ms), std::nullopt);
  EXPECT_TRUE(nvml->tells_xids()) << "there may be more";
}

TEST(Nvml, IsNotThereWithoutADriver) {
  EXPECT_EQ(Nvml::load("libno-such-driver.so.1"), nullptr);
  EXPECT_EQ(Nvml::load(""), nullptr);
}

}  // namespace
}  // namespace ddprun::agent
