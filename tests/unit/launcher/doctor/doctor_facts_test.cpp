#include "launcher/doctor/doctor_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_tree.h"

namespace ddprun::cli::doctor {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DoctorFacts, ReadsTheRangeOfPortsAndWhatIsKeptOutOfIt) {
  const TemporaryTree tree;
  tree.write("proc/sys/net/ipv4/ip_local_port_range", "1024\t65535\n");
  tree.write("proc/sys/net/ipv4/ip_local_reserved_ports", "8080,29490-29510\n");
  const PortFacts facts = read_ports(tree.path());
  EXPECT_EQ(facts.first_ephemeral, 1024);
  EXPECT_EQ(facts.last_ephemeral, 65535);
  EXPECT_THAT(facts.reserved, ElementsAre(29500));
  EXPECT_THAT(facts.listen_error, IsEmpty());
}

TEST(DoctorFacts, KnowsOwnAddresses) {
  EXPECT_THAT(own_addresses(), Contains("127.0.0.1"));
  EXPECT_THAT(name_of_address("no address"), IsEmpty());
}

TEST(DoctorFacts, SeesAStepOfTheWallClock) {
  std::int64_t begin = wall_ahead_ns();
  EXPECT_LT(std::abs(read_clock(begin).stepped_by.count()), 1000);
  begin -= 60'000'000'000;
  EXPECT_NEAR(static_cast<double>(read_clock(begin).stepped_by.count()), 60'000, 1000);
  EXPECT_FALSE(read_clock(begin).went_backwards);
}

TEST(DoctorFacts, FindsGpusWithoutAskingTheDriver) {
  const TemporaryTree tree;
  tree.write("proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n"
             "GCC version:  gcc version 12.2.0\n");
  tree.write("proc/driver/nvidia/gpus/0000:3b:00.0/information", "Device Minor: \t 0\n");
  tree.write("sys/bus/pci/devices/0000:3b:00.0/vendor", "0x10de\n");
  tree.write("sys/bus/pci/devices/0000:3b:00.0/class", "0x030200\n");
  tree.write("sys/bus/pci/devices/0000:3b:00.1/vendor", "0x10de\n");
  tree.write("sys/bus/pci/devices/0000:3b:00.1/class", "0x040300\n");  // its sound
  tree.write("dev/nvidia0", "", 0666);
  tree.write("dev/nvidiactl", "", 0666);
  const agent::Machine machine{tree.path(), "", std::vector<int>{0}};
  const GpuFacts facts = read_gpus(machine, {{"CUDA_VISIBLE_DEVICES", "0"}});
  EXPECT_EQ(facts.driver, "550.54.15");
  EXPECT_EQ(facts.on_the_bus, 1);
  EXPECT_EQ(facts.driven, 1);
  EXPECT_EQ(facts.devices, 1);
  EXPECT_TRUE(facts.has_control);
  EXPECT_FALSE(facts.has_uvm);
  EXPECT_TRUE(facts.may_open);
  EXPECT_EQ(facts.visible_count, 1);
  EXPECT_EQ(read_gpus({TemporaryTree().path(), "", {}}, {}).devices, 0);
}

TEST(DoctorFacts, TakesTheTightestLimitOnTheWayToTheRoot) {
  const TemporaryTree tree;
  tree.write("proc/self/cgroup", "0::/user.slice/job\n");
  const std::string group = "sys/fs/cgroup/user.slice/";
  tree.write(group + "job/memory.max", "max\n");
  tree.write(group + "job/memory.current", "1000\n");
  tree.write(group + "memory.max", "5000\n");
  tree.write(group + "memory.current", "3000\n");
  tree.write(group + "memory.stat", "anon 2500\ninactive_file 500\n");
  tree.write(group + "job/pids.max", "300\n");
  tree.write(group + "job/pids.current", "7\n");
  const UseFacts memory = read_memory_use(tree.path());
  EXPECT_EQ(memory.limit, 5000u);
  EXPECT_EQ(memory.used, 2500u);
  const UseFacts tasks = read_task_use(tree.path());
  EXPECT_EQ(tasks.limit, 300u);
  EXPECT_EQ(tasks.used, 7u);
}

TEST(DoctorFacts, ReadsControllersOfVersionOne) {
  const TemporaryTree tree;
  tree.write("proc/self/cgroup", "5:memory:/docker/abc\n3:pids:/docker/abc\n");
  tree.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  tree.write("sys/fs/cgroup/pids/pids.max", "512\n");
  tree.write("sys/fs/cgroup/pids/pids.current", "12\n");
  EXPECT_EQ(read_memory_use(tree.path()).limit, std::nullopt);
  EXPECT_EQ(read_task_use(tree.path()).limit, 512u);
}

TEST(DoctorFacts, ReadsWhatTheMachineHasLeft) {
  const TemporaryTree tree;
  tree.write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable:     500 kB\n");
  EXPECT_EQ(available_memory(tree.path()), 500u * 1024);
  EXPECT_FALSE(read_shared_memory(tree / "nothing").is_there);
  EXPECT_TRUE(read_shared_memory(tree.path()).is_there);
}

TEST(DoctorFacts, AStoreAnswers) {
  const StoreFacts facts = try_store();
  EXPECT_THAT(facts.error, IsEmpty());
  EXPECT_GT(facts.median_us, 0);
}

}  // namespace
}  // namespace ddprun::cli::doctor
