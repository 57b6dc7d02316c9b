// What the kernel shows of AMD's and Intel's GPUs, in a folder of a test.
#pragma once

#include <filesystem>
#include <string>

#include "tests/support/temporary_tree.h"

namespace ddprun {

struct AmdNode {
  int simds = 304;
  unsigned long long unique_id = 1;
  int minor = 128;  // the number in /dev/dri/renderD…
};
inline void add_amd_node(const TemporaryTree& tree, int number, const AmdNode& node) {
  tree.write("dev/kfd", "");
  tree.write("sys/class/kfd/kfd/topology/nodes/" + std::to_string(number) + "/properties",
             "cpu_cores_count 0\nsimd_count " + std::to_string(node.simds) +
                 "\nsimd_id_base 2147487744\n" + "drm_render_minor " +
                 std::to_string(node.simds > 0 ? node.minor : 0) + "\nunique_id " +
                 std::to_string(node.unique_id) + "\n");
  if (node.simds > 0) tree.write("dev/dri/renderD" + std::to_string(node.minor), "");
}

struct IntelGpu {
  std::string driver;
  std::string connector = "";  // "card0-eDP-1"; empty: it has no display
};
inline void add_intel_gpu(const TemporaryTree& tree, const IntelGpu& gpu) {
  tree.write("dev/dri/renderD128", "");
  const std::string device = tree / "sys/devices/pci0000:00/0000:00:02.0";
  std::filesystem::create_directories(device + "/drm/card0");
  std::filesystem::create_directories(tree / ("sys/bus/pci/drivers/" + gpu.driver));
  std::filesystem::create_directory_symlink(tree / ("sys/bus/pci/drivers/" + gpu.driver),
                                            device + "/driver");
  std::filesystem::create_directories(tree / "sys/class/drm/renderD128");
  std::filesystem::create_directory_symlink(device, tree / "sys/class/drm/renderD128/device");
  if (!gpu.connector.empty()) {
    std::filesystem::create_directories(tree / ("sys/class/drm/" + gpu.connector));
  }
}

}  // namespace ddprun
