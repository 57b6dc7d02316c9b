#include "launcher/machine/accelerators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/support/accelerator_tree.h"

namespace ddprun::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Accelerators, AnAmdGpuIsANodeOfKfdThatComputesAndHasADeviceFile) {
  const TemporaryTree tree;
  const Machine machine{tree.path(), "", {}};
  EXPECT_THAT(find_amd_gpus(machine), IsEmpty());
  add_amd_node(tree, 0, {.simds = 0});
  for (int node = 1; node <= 3; ++node) {
    add_amd_node(tree, node,
                 {.unique_id = 0xab0 + static_cast<unsigned>(node), .minor = 127 + node});
  }
  add_amd_node(tree, 10, {.unique_id = 0, .minor = 140});
  EXPECT_THAT(find_amd_gpus(machine), ElementsAre("GPU-0000000000000ab1", "GPU-0000000000000ab2",
                                                  "GPU-0000000000000ab3", ""));
  // A container was given one of them.
  std::filesystem::remove(tree / "dev/dri/renderD128");
  std::filesystem::remove(tree / "dev/dri/renderD130");
  std::filesystem::remove(tree / "dev/dri/renderD140");
  EXPECT_THAT(find_amd_gpus(machine), ElementsAre("GPU-0000000000000ab2"));
  std::filesystem::remove(tree / "dev/kfd");
  EXPECT_THAT(find_amd_gpus(machine), IsEmpty());
}

TEST(Accelerators, VisibleAmdGpusAreThoseThatAllVariablesLeave) {
  const std::vector<std::string> gpus{"GPU-0a", "GPU-0b", "GPU-0c", "GPU-0d"};
  EXPECT_EQ(count_visible_amd_gpus(gpus, {}), 4);
  EXPECT_EQ(count_visible_amd_gpus(gpus, {{"ROCR_VISIBLE_DEVICES", "GPU-0b, 3,GPU-0a"}}), 3);
  EXPECT_EQ(count_visible_amd_gpus(gpus, {{"ROCR_VISIBLE_DEVICES", "1,7,0"}}), 1);
  EXPECT_EQ(count_visible_amd_gpus(gpus, {{"ROCR_VISIBLE_DEVICES", ""}}), 0);
  EXPECT_EQ(count_visible_amd_gpus(gpus, {{"HIP_VISIBLE_DEVICES", "2,0"}}), 2);
  EXPECT_EQ(count_visible_amd_gpus(gpus, {{"CUDA_VISIBLE_DEVICES", "2"}}), 1);
  EXPECT_EQ(
      count_visible_amd_gpus(gpus, {{"HIP_VISIBLE_DEVICES", "0,1"}, {"CUDA_VISIBLE_DEVICES", "2"}}),
      2);
  // Indices of the second variable are among those that the first one leaves.
  EXPECT_EQ(count_visible_amd_gpus(
                gpus, {{"ROCR_VISIBLE_DEVICES", "2,3"}, {"HIP_VISIBLE_DEVICES", "0,1,2"}}),
            2);
}

TEST(Accelerators, OthersAreNamed) {
  const TemporaryTree tree;
  const Machine machine{tree.path(), "", {}};
  EXPECT_EQ(find_other_accelerator(machine), "");
  add_intel_gpu(tree, {.driver = "i915", .connector = "card0-eDP-1"});
  EXPECT_EQ(find_other_accelerator(machine), "") << "a laptop's";
  std::filesystem::remove_all(tree / "sys/class/drm/card0-eDP-1");
  EXPECT_EQ(find_other_accelerator(machine), "an Intel GPU (i915, /dev/dri/renderD128)");
  std::filesystem::remove_all(tree.path());
  add_intel_gpu(tree, {.driver = "xe", .connector = "card0-DP-1"});
  EXPECT_THAT(find_other_accelerator(machine), HasSubstr("xe"));
  std::filesystem::remove(tree / "dev/dri/renderD128");
  EXPECT_EQ(find_other_accelerator(machine), "") << "the container was not given it";
  tree.write("dev/accel/accel0", "");
  EXPECT_EQ(find_other_accelerator(machine), "/dev/accel/accel0");
}

TEST(Accelerators, NamesTheVariablesThatHideThem) {
  EXPECT_EQ(hides_accelerators({}), "");
  EXPECT_EQ(hides_accelerators({{"ZE_AFFINITY_MASK", "1"}, {"HIP_VISIBLE_DEVICES", ""}}),
            "HIP_VISIBLE_DEVICES is set to '', ZE_AFFINITY_MASK is set to '1'");
}

}  // namespace
}  // namespace ddprun::agent
