#include "agent/placement.h"

#include <gtest/gtest.h>

#include "tests/unit/launcher/temporary_tree.h"

namespace ddprun::agent {
namespace {

using Cpus = std::vector<int>;

TEST(Placement, ReadsTheKernelsCpuLists) {
  EXPECT_EQ(parse_cpu_list("0-3,8\n"), (Cpus{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cpu_list("5"), (Cpus{5}));
  EXPECT_EQ(parse_cpu_list("4,0-1,1"), (Cpus{0, 1, 4}));
  EXPECT_EQ(parse_cpu_list("\n"), Cpus{});
  for (const char* const bad : {"a", "1-", "-1", "3-1", "1,,2", "0-99999999", "1 2"}) {
    EXPECT_EQ(parse_cpu_list(bad), std::nullopt) << bad;
  }
}

TEST(Placement, CountsTheCpusThatAreOnline) {
  const TemporaryTree tree;
  tree.write("sys/devices/system/cpu/online", "0-5,8-9\n");
  EXPECT_EQ(count_cpus({tree.path(), ""}), 8);
  const TemporaryTree empty;
  EXPECT_GE(count_cpus({empty.path(), ""}), 1);
}

void add_gpu(const TemporaryTree& tree, int number, const std::string& uuid) {
  tree.write("proc/driver/nvidia/gpus/0000:0" + std::to_string(number) + ":00.0/information",
             "Model: \t\t NVIDIA H200\nIRQ:   \t\t 91\nGPU UUID: \t " + uuid +
                 "\nDevice Minor: \t " + std::to_string(number) + "\n");
}

TEST(Placement, FindsGpusInProcThatHaveADeviceNode) {
  const TemporaryTree tree;
  for (int i = 0; i < 3; ++i) add_gpu(tree, i, "GPU-aaaa" + std::to_string(i));
  tree.write("dev/nvidia0", "");
  tree.write("dev/nvidia2", "");
  const std::vector<Gpu> gpus = find_gpus({tree.path(), ""});
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].uuid, "GPU-aaaa0");
  EXPECT_EQ(gpus[1].uuid, "GPU-aaaa2");
}

TEST(Placement, CountsDeviceNodesWhereProcTellsNothing) {
  const TemporaryTree tree;
  for (const char* const name : {"nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"}) {
    tree.write(std::string("dev/") + name, "");
  }
  EXPECT_EQ(find_gpus({tree.path(), ""}).size(), 3u);
}

TEST(Placement, NoDriverMeansNoGpu) {
  const TemporaryTree tree;
  EXPECT_TRUE(find_gpus({tree.path(), "libno-such-nvml.so.1"}).empty());
}

TEST(Placement, VisibleDevicesFollowCudasRules) {
  const std::vector<Gpu> gpus = {{"GPU-aaaa1"}, {"GPU-aaaa2"}, {"GPU-bbbb1"}, {"GPU-cccc1"}};
  EXPECT_EQ(count_visible_gpus(nullptr, gpus), 4);
  const std::vector<std::pair<std::string, int>> cases = {
      {"", 0},
      {"-1", 0},
      {"none", 0},
      {"0", 1},
      {"2,3", 2},
      {" 2 , 3 ", 2},
      {"0,-1,1", 1},
      {"0,4,1", 1},  // the list ends at the first that is not there
      {"4,5,6,7", 0},
      {"1,1", 0},  // twice the same: CUDA shows none
      {"0,x,1", 1},
      {"GPU-bbbb1", 1},
      {"GPU-b,GPU-c", 2},
      {"GPU-aaaa", 0},  // two begin so
      {"GPU-aaaa1,GPU-zzzz,GPU-bbbb1", 1},
      {"GPU-b,GPU-b", 0},
      {"MIG-1234", 1},
      {"MIG-1234,MIG-5678", 1},
  };
  for (const auto& [value, count] : cases) {
    EXPECT_EQ(count_visible_gpus(&value, gpus), count) << "'" << value << "'";
  }
  const std::string mig = "MIG-1234";
  EXPECT_EQ(count_visible_gpus(&mig, {}), 0);
}

}  // namespace
}  // namespace ddprun::agent
