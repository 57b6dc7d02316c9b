#include "launcher/machine/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_tree.h"

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
  EXPECT_EQ(count_cpus({tree.path(), "", {}}), 8);
  const TemporaryTree empty;
  EXPECT_GE(count_cpus({empty.path(), "", {}}), 1);
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
  const std::vector<Gpu> gpus = find_gpus({tree.path(), "", {}});
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].uuid, "GPU-aaaa0");
  EXPECT_EQ(gpus[1].uuid, "GPU-aaaa2");
}

TEST(Placement, CountsDeviceNodesWhereProcTellsNothing) {
  const TemporaryTree tree;
  for (const char* const name : {"nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"}) {
    tree.write(std::string("dev/") + name, "");
  }
  EXPECT_EQ(find_gpus({tree.path(), "", {}}).size(), 3u);
}

TEST(Placement, NoDriverMeansNoGpu) {
  const TemporaryTree tree;
  EXPECT_TRUE(find_gpus({tree.path(), "libno-such-nvml.so.1", {}}).empty());
}

TEST(Placement, GpusInProcTellWhereTheyArePluggedIn) {
  const TemporaryTree tree;
  add_gpu(tree, 1, "GPU-aaaa");
  tree.write("dev/nvidia1", "");
  EXPECT_EQ(find_gpus({tree.path(), "", {}}).at(0).pci_address, "0000:01:00.0");
}

TEST(Placement, AsksTheDriversLibraryFirst) {
  const TemporaryTree tree;
  tree.write("dev/nvidia0", "");
  const std::vector<Gpu> gpus = find_gpus({tree.path(), DDPRUN_FAKE_NVML, {}});
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].uuid, "GPU-fake0");
  EXPECT_EQ(gpus[0].pci_address, "0000:3a:00.0");
  EXPECT_EQ(gpus[1].uuid, "") << "a GPU that does not tell its UUID is a GPU all the same";
  EXPECT_EQ(gpus[1].pci_address, "0000:3b:00.0");
}

TEST(Placement, VisibleDevicesFollowCudasRules) {
  const std::vector<Gpu> gpus = {
      {"GPU-aaaa1", ""}, {"GPU-aaaa2", ""}, {"GPU-bbbb1", ""}, {"GPU-cccc1", ""}};
  using Indices = std::vector<int>;
  EXPECT_EQ(visible_gpus(nullptr, gpus), (Indices{0, 1, 2, 3}));
  const std::vector<std::pair<std::string, Indices>> cases = {
      {"", {}},
      {"-1", {}},
      {"none", {}},
      {"0", {0}},
      {"3,2", {3, 2}},
      {" 2 , 3 ", {2, 3}},
      {"0,-1,1", {0}},
      {"0,4,1", {0}},  // the list ends at the first that is not there
      {"4,5,6,7", {}},
      {"1,1", {}},  // twice the same: CUDA shows none
      {"0,x,1", {0}},
      {"GPU-bbbb1", {2}},
      {"GPU-b,GPU-c", {2, 3}},
      {"GPU-aaaa", {}},  // two begin so
      {"GPU-aaaa1,GPU-zzzz,GPU-bbbb1", {0}},
      {"GPU-b,GPU-b", {}},
      {"MIG-1234", {kSomeMigInstance}},
      {"MIG-1234,MIG-5678", {kSomeMigInstance}},
  };
  for (const auto& [value, indices] : cases) {
    EXPECT_EQ(visible_gpus(&value, gpus), indices) << "'" << value << "'";
  }
  const std::string mig = "MIG-1234";
  EXPECT_EQ(visible_gpus(&mig, {}), Indices{});
  EXPECT_EQ(visible_gpus(&mig, {{"GPU-aaaa1", ""}}), Indices{0})
      << "there is only one it can be on";
}

TEST(Placement, WritesCpuListsAsTheKernelDoes) {
  EXPECT_EQ(to_cpu_list({}), "");
  EXPECT_EQ(to_cpu_list({3}), "3");
  EXPECT_EQ(to_cpu_list({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
}

TEST(Placement, OurOwnAffinityIsNeverEmpty) {
  EXPECT_FALSE(allowed_cpus({}).empty());
  EXPECT_EQ(allowed_cpus({"", "", Cpus{4, 6}}), (Cpus{4, 6}));
}

// Quota files below a fake root, and how many of 8 allowed CPUs they leave.
TEST(Placement, QuotaOfTheTightestCgroupOnTheWayUpCounts) {
  struct Case {
    const char* what;
    const char* membership;
    std::vector<std::pair<std::string, std::string>> files;
    std::optional<double> quota;
    int usable;
  };
  const std::string v1 = "sys/fs/cgroup/cpu/";
  const std::vector<Case> cases = {
      {"none", "0::/\n", {}, {}, 8},
      {"v2 without limit", "0::/job\n", {{"sys/fs/cgroup/job/cpu.max", "max 100000\n"}}, {}, 8},
      {"v2", "0::/job\n", {{"sys/fs/cgroup/job/cpu.max", "150000 100000\n"}}, 1.5, 2},
      {"v2, parent is tighter",
       "0::/a/b\n",
       {{"sys/fs/cgroup/a/b/cpu.max", "400000 100000\n"},
        {"sys/fs/cgroup/a/cpu.max", "300000 100000\n"}},
       3,
       3},
      {"v2 in a container that sees the host's path",
       "0::/docker/0123\n",
       {{"sys/fs/cgroup/cpu.max", "50000 100000\n"}},
       0.5,
       1},
      {"v1",
       "12:memory:/x\n4:cpu,cpuacct:/job\n",
       {{v1 + "job/cpu.cfs_quota_us", "200000\n"}, {v1 + "job/cpu.cfs_period_us", "100000\n"}},
       2,
       2},
      {"v1 without limit",
       "4:cpu,cpuacct:/job\n",
       {{v1 + "job/cpu.cfs_quota_us", "-1\n"}, {v1 + "job/cpu.cfs_period_us", "100000\n"}},
       {},
       8},
      {"more than there is", "0::/\n", {{"sys/fs/cgroup/cpu.max", "9900000 100000\n"}}, 99, 8},
      {"nonsense", "0:\n::\nx\n0::relative\n", {{"sys/fs/cgroup/cpu.max", "x y z\n"}}, {}, 8},
  };
  for (const Case& c : cases) {
    const TemporaryTree tree;
    tree.write("proc/self/cgroup", c.membership);
    for (const auto& [file, text] : c.files) tree.write(file, text);
    const Machine machine{tree.path(), "", Cpus{0, 1, 2, 3, 4, 5, 6, 7}};
    EXPECT_EQ(cpu_quota(machine), c.quota) << c.what;
    EXPECT_EQ(count_usable_cpus(machine), c.usable) << c.what;
  }
}

// Two sockets with two NUMA nodes each; a node has three cores of two hardware threads: cores of
// node n are 3n, 3n+1, 3n+2, their second threads 12 higher. The last cache is shared by the first
// two cores of a node; the third has one of its own. GPUs 0 and 1 are on node 1, GPU 2 on node 2,
// GPU 3 on node 1.
class NumaBinding : public testing::Test {
 protected:
  NumaBinding() {
    for (int node = 0; node < 4; ++node) {
      const int first = 3 * node;
      const std::string cpus = to_cpu_list({first, first + 1, first + 2}) + "," +
                               to_cpu_list({first + 12, first + 13, first + 14});
      tree_.write("sys/devices/system/node/node" + std::to_string(node) + "/cpulist", cpus + "\n");
      for (int core = first; core < first + 3; ++core) {
        const bool has_own_cache = core == first + 2;
        const Cpus sharers =
            has_own_cache ? Cpus{core, core + 12} : Cpus{first, first + 1, first + 12, first + 13};
        add_cpu(core, core, node / 2, sharers);
        add_cpu(core + 12, core, node / 2, sharers);
      }
    }
    tree_.write("sys/devices/system/node/online", "0-3\n");
    const std::vector<std::string> node_of_gpu = {"1", "1", "2", "1"};
    for (std::size_t i = 0; i < node_of_gpu.size(); ++i) {
      gpus_.push_back({"", "0000:0" + std::to_string(i) + ":00.0"});
      tree_.write("sys/bus/pci/devices/" + gpus_.back().pci_address + "/numa_node",
                  node_of_gpu[i] + "\n");
    }
    for (int cpu = 0; cpu < 24; ++cpu) allowed_.push_back(cpu);
  }

  void add_cpu(int cpu, int core, int socket, const Cpus& sharers) {
    const std::string directory = "sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/";
    const std::string threads = to_cpu_list({core, core + 12}) + "\n";
    tree_.write(directory + "topology/thread_siblings_list", threads);
    tree_.write(directory + "topology/physical_package_id", std::to_string(socket) + "\n");
    add_cache(directory + "cache/index0/", "1", "Data", threads);
    add_cache(directory + "cache/index1/", "2", "Unified", to_cpu_list(sharers) + "\n");
  }
  void add_cache(const std::string& directory, const std::string& level, const std::string& type,
                 const std::string& cpus) {
    tree_.write(directory + "level", level + "\n");
    tree_.write(directory + "type", type + "\n");
    tree_.write(directory + "shared_cpu_list", cpus);
  }

  Result<std::vector<Cpus>> bind(NumaMode mode, const std::vector<int>& visible, int workers) {
    return numa_binding(mode, {tree_.path(), "", allowed_}, gpus_, visible, workers);
  }
  // The CPU lists of all workers, "0-3 | 4-7".
  std::string bound(NumaMode mode, const std::vector<int>& visible, int workers) {
    const auto cpus_of = bind(mode, visible, workers);
    if (!cpus_of) return cpus_of.error().to_string();
    std::string text;
    for (const Cpus& cpus : *cpus_of) text += (text.empty() ? "" : " | ") + to_cpu_list(cpus);
    return text;
  }

  TemporaryTree tree_;
  std::vector<Gpu> gpus_;
  Cpus allowed_;
};

TEST_F(NumaBinding, NodeIsThatOfTheWorkersGpu) {
  EXPECT_EQ(bound(NumaMode::kNode, {0, 1, 2, 3}, 4),
            "3-5,15-17 | 3-5,15-17 | 6-8,18-20 | 3-5,15-17");
  EXPECT_EQ(bound(NumaMode::kNode, {2, 0}, 2), "6-8,18-20 | 3-5,15-17") << "in the visible order";
  EXPECT_EQ(bound(NumaMode::kNode, {0, 1, 2, 3}, 1), "3-5,15-17");
}

TEST_F(NumaBinding, SocketHasAllItsNodes) {
  EXPECT_EQ(bound(NumaMode::kSocket, {0, 2}, 2), "0-5,12-17 | 6-11,18-23");
}

TEST_F(NumaBinding, ExclusiveSharesTheCoresAmongTheNodesVisibleGpus) {
  EXPECT_EQ(bound(NumaMode::kExclusive, {0, 1, 2, 3}, 4), "3,15 | 4,16 | 6-8,18-20 | 5,17");
  // Two GPUs for three cores: the first has one more. A GPU that no worker uses has its share too.
  EXPECT_EQ(bound(NumaMode::kExclusive, {0, 3}, 2), "3-4,15-16 | 5,17");
  EXPECT_EQ(bound(NumaMode::kExclusive, {0, 3}, 1), "3-4,15-16");
  allowed_ = {3, 4};
  EXPECT_THAT(bound(NumaMode::kExclusive, {0, 1, 3}, 3),
              testing::HasSubstr("2 usable cores cannot be shared by the 3 GPUs"));
}

TEST_F(NumaBinding, CoreComplexesAreTakenInTurnLargestFirst) {
  EXPECT_EQ(bound(NumaMode::kCoreComplex, {0, 1, 2, 3}, 4),
            "3-4,15-16 | 5,17 | 6-7,18-19 | 3-4,15-16");
}

TEST_F(NumaBinding, CachesForInstructionsDoNotCount) {
  for (const int cpu : {3, 4, 5, 15, 16, 17}) {
    add_cache("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache/index2/", "3",
              "Instruction", "3-5,15-17\n");
  }
  EXPECT_EQ(bound(NumaMode::kCoreComplex, {0, 1}, 2), "3-4,15-16 | 5,17");
}

TEST_F(NumaBinding, StaysWithinTheAllowedCpus) {
  allowed_ = {4, 5, 7, 16};
  EXPECT_EQ(bound(NumaMode::kNode, {0, 2}, 2), "4-5,16 | 7");
  EXPECT_EQ(bound(NumaMode::kSocket, {0}, 1), "4-5,16");
  EXPECT_EQ(bound(NumaMode::kExclusive, {0, 1}, 2), "4,16 | 5");
  allowed_ = {0};
  EXPECT_THAT(bound(NumaMode::kNode, {0}, 1),
              testing::HasSubstr("none of the CPUs of NUMA node 1 (3-5,15-17)"));
}

TEST_F(NumaBinding, AGpuWithoutANodeIsOnNodeZero) {
  tree_.write("sys/bus/pci/devices/0000:00:00.0/numa_node", "-1\n");
  EXPECT_EQ(bound(NumaMode::kNode, {0}, 1), "0-2,12-14");
}

TEST_F(NumaBinding, SaysWhatCannotBeTold) {
  EXPECT_THAT(bound(NumaMode::kNode, {0}, 2), testing::HasSubstr("2 workers need as many"));
  EXPECT_THAT(bound(NumaMode::kNode, {kSomeMigInstance}, 1), testing::HasSubstr("MIG"));
  gpus_[0].pci_address = "";
  EXPECT_THAT(bound(NumaMode::kNode, {0}, 1), testing::HasSubstr("where a GPU is plugged in"));
  gpus_[0].pci_address = "0000:99:00.0";
  EXPECT_THAT(bound(NumaMode::kNode, {0}, 1), testing::HasSubstr("0000:99:00.0/numa_node"));
}

}  // namespace
}  // namespace ddprun::agent
