// --health-check=auto: trees of files as nodes have them, read as facts, and the findings that follow. The NVML of the trees
// is fake_health_nvml.cpp, whose GPUs are as a variable says.
#include "launcher/health/node_health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <vector>

#include "agent/health/health_facts.h"
#include "tests/support/temporary_tree.h"

namespace ddprun::cli {
namespace {

using agent::HealthFacts;
using agent::HealthQuestion;
using agent::health::Finding;
using agent::health::Severity;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kAgent = 100;
const std::string kOldRecord = "6,41,1000,-;NVRM: Xid (PCI:0000:3a:00): 79, it was before\n";

auto unfit(const std::string& part) {
  return AllOf(Field(&Finding::severity, Severity::kUnfit),
               Field(&Finding::sentence, HasSubstr(part)));
}
auto warning(const std::string& part) {
  return AllOf(Field(&Finding::severity, Severity::kWarning),
               Field(&Finding::sentence, HasSubstr(part)));
}

class NodeHealthTest : public ::testing::Test {
 protected:
  void SetUp() override { gpus_are("fine fine"); }
  void TearDown() override { ::unsetenv("DDPRUN_FAKE_GPUS"); }

  // A word for each GPU: fine, lost, unknown, ecc, or used-by-PID.
  static void gpus_are(const std::string& words) { ::setenv("DDPRUN_FAKE_GPUS", words.c_str(), 1); }
  void use_nvml() { machine_.nvml_library = DDPRUN_FAKE_HEALTH_NVML; }
  void log(const std::string& records) { tree_.write("dev/kmsg", records); }
  void counter(const std::string& name, const std::string& value) {
    tree_.write("sys/class/infiniband/mlx5_0/ports/1/counters/" + name, value);
  }
  void process(int pid, int parent, const std::string& name) {
    const std::string folder = "proc/" + std::to_string(pid);
    tree_.write(folder + "/comm", name + "\n");
    tree_.write(folder + "/status", "Name:\t" + name + "\nPPid:\t" + std::to_string(parent) + "\n");
  }

  // One more check, through JSON as between the two processes.
  std::vector<Finding> check() {
    HealthQuestion question{kAgent, folders_, before_ ? before_->last_record : std::nullopt};
    question = agent::read_health_question(agent::to_json(question)).value();
    const HealthFacts read =
        read_node_health(question, machine_, environment_,
                         [this](std::string_view what) { looked_at_.emplace_back(what); });
    HealthFacts facts = agent::read_health_facts(agent::to_json(read)).value();
    if (!first_) first_ = facts;
    auto findings = agent::findings_of(facts, *first_, before_ ? &*before_ : nullptr);
    before_ = std::move(facts);
    return findings;
  }

  const TemporaryTree tree_;
  agent::Machine machine_{.root = tree_.path(), .nvml_library = "", .affinity = {}};
  Environment environment_;
  std::vector<agent::FolderHealth> folders_;
  std::vector<std::string> looked_at_;
  std::optional<HealthFacts> first_;
  std::optional<HealthFacts> before_;
};

// ---- nothing is wrong, or cannot be seen

TEST_F(NodeHealthTest, AnEmptyTreeHasNoFindings) {
  folders_ = {{tree_.path()}, {tree_ / "removed"}};
  EXPECT_THAT(check(), IsEmpty());
  EXPECT_THAT(check(), IsEmpty());
  EXPECT_THAT(looked_at_, Contains("the file system of " + tree_.path()));
}

TEST_F(NodeHealthTest, ANodeWhereAllIsWellHasNoFindings) {
  use_nvml();
  log(kOldRecord + "6,42,1001,-;usb 1-1: new device\n");
  counter("symbol_error", "7\n");
  for (int i = 0; i < 2; ++i) EXPECT_THAT(check(), IsEmpty());
  EXPECT_EQ(before_->last_record, 42);
  EXPECT_EQ(before_->gpus.size(), 2U);
}

TEST_F(NodeHealthTest, ALibraryThatIsNoneHasNoFindings) {
  machine_.nvml_library = tree_ / "nothing.so";
  EXPECT_THAT(check(), IsEmpty());
}

TEST_F(NodeHealthTest, AKernelLogThatCannotBeReadHasNoFindings) {
  ::mkdir((tree_ / "dev").c_str(), 0755);
  ::mkdir((tree_ / "dev/kmsg").c_str(), 0755);  // as root, a mode would not keep us out
  EXPECT_THAT(check(), IsEmpty());
  EXPECT_EQ(before_->last_record, std::nullopt);
}

TEST_F(NodeHealthTest, FilesOfGarbageHaveNoFindings) {
  log("garbage\n,;\n6,x,;NVRM: Xid (PCI:\n6,9;NVRM: Xid (PCI:0000:3a:00): \n");
  counter("symbol_error", "many\n");
  tree_.write("sys/class/drm/card0/device/ras/umc_err_count", "ue: none\n");
  EXPECT_THAT(check(), IsEmpty());
  EXPECT_THAT(check(), IsEmpty());
}

// ---- unfit

TEST_F(NodeHealthTest, AGpuThatIsLost) {
  use_nvml();
  EXPECT_THAT(check(), IsEmpty());
  gpus_are("fine lost");
  EXPECT_THAT(check(), ElementsAre(unfit("GPU 1 is lost")));
  gpus_are("unknown fine");
  EXPECT_THAT(check(), ElementsAre(unfit("GPU 0 is lost")));
}

TEST_F(NodeHealthTest, FewerGpusThanAtFirst) {
  use_nvml();
  EXPECT_THAT(check(), IsEmpty());
  gpus_are("fine");
  EXPECT_THAT(check(), ElementsAre(unfit("this node has 1 GPU and had 2 when it joined")));
}

TEST_F(NodeHealthTest, FewerGpusInProcWhereThereIsNoNvml) {
  const std::string gpus = "proc/driver/nvidia/gpus/";
  tree_.write(gpus + "0000:3a:00.0/information", "GPU UUID: GPU-a\n");
  tree_.write(gpus + "0000:3b:00.0/information", "GPU UUID: GPU-b\n");
  EXPECT_THAT(check(), IsEmpty());
  std::filesystem::remove_all(tree_ / (gpus + "0000:3b:00.0"));
  EXPECT_THAT(check(), ElementsAre(unfit("1 GPU and had 2")));
}

TEST_F(NodeHealthTest, AnNvmlThatFailsBecauseOfAGpu) {
  use_nvml();
  EXPECT_THAT(check(), IsEmpty());
  gpus_are("init-999");
  EXPECT_THAT(check(), Contains(unfit("the NVIDIA driver cannot be asked")));
}

TEST_F(NodeHealthTest, UncorrectableMemoryErrors) {
  use_nvml();
  gpus_are("ecc fine");
  EXPECT_THAT(check(), ElementsAre(unfit("GPU 0 (GPU-fake0) has uncorrectable memory errors")));
}

TEST_F(NodeHealthTest, UncorrectableMemoryErrorsOfAnAmdGpu) {
  tree_.write("sys/class/drm/card0/device/ras/umc_err_count", "ue: 0\nce: 5\n");
  tree_.write("sys/class/drm/card1/device/ras/umc_err_count", "ue: 2\nce: 0\n");
  EXPECT_THAT(check(), ElementsAre(unfit("GPU card1 has uncorrectable memory errors")));
}

TEST_F(NodeHealthTest, XidsSinceTheFirstCheck) {
  const std::vector<int> bad{48, 63, 74, 79, 94, 95};
  log(kOldRecord);
  EXPECT_THAT(check(), IsEmpty()) << "what was before is not of this job";
  std::string records = kOldRecord;
  int number = 42;
  for (const int xid : bad) {
    records += "3," + std::to_string(number++) +
               ",2000,-;NVRM: Xid (PCI:0000:c1:00): " + std::to_string(xid) +
               ", pid=7, it says more\n SUBSYSTEM=pci\n";
    log(records);
    EXPECT_THAT(check(), ElementsAre(unfit("Xid " + std::to_string(xid) +
                                           " of the GPU at "
                                           "0000:c1:00")));
    EXPECT_THAT(check(), IsEmpty()) << "it was told";
  }
  // An error of the program: an exception in a kernel, an illegal address.
  log(records + "3,90,3000,-;NVRM: Xid (PCI:0000:c1:00): 13, Graphics Exception\n" +
      "3,91,3000,-;NVRM: Xid (PCI:0000:c1:00): 31, pid=7, MMU Fault\n");
  EXPECT_THAT(check(), IsEmpty());
}

TEST_F(NodeHealthTest, WhereTheWorkersSeeNoGpuXidsAreThoseOfOthers) {
  environment_["CUDA_VISIBLE_DEVICES"] = "";
  log(kOldRecord);
  EXPECT_THAT(check(), IsEmpty());
  log(kOldRecord + "3,42,1,-;NVRM: Xid (PCI:0000:3a:00): 79, x\n");
  EXPECT_THAT(check(), IsEmpty());
}

TEST_F(NodeHealthTest, XidsOfGpusThatTheWorkersDoNotSeeAreThoseOfOthers) {
  use_nvml();  // 0000:3a:00.0 and 0000:3b:00.0
  environment_["CUDA_VISIBLE_DEVICES"] = "1";
  log(kOldRecord);
  EXPECT_THAT(check(), IsEmpty());
  log(kOldRecord + "3,42,1,-;NVRM: Xid (PCI:0000:3a:00): 79, x\n");
  EXPECT_THAT(check(), IsEmpty());
  gpus_are("lost fine");
  EXPECT_THAT(check(), IsEmpty());
  log(kOldRecord + "3,43,1,-;NVRM: Xid (PCI:0000:3b:00): 79, x\n");
  EXPECT_THAT(check(), ElementsAre(unfit("fallen off the bus")));
}

TEST(NodeHealthFindings, AFileSystemThatIsDead) {
  HealthFacts facts;
  facts.folders = {{"/work", 0}, {"/logs\n", ESTALE}, {"/data", ENOTCONN}};
  EXPECT_THAT(agent::findings_of(facts, facts, nullptr),
              ElementsAre(unfit("the file system of /logs\\n cannot be used: Stale file handle"),
                          unfit("/data cannot be used: Transport endpoint is not connected")));
}

// ---- warnings

TEST_F(NodeHealthTest, InfinibandCountersThatGrow) {
  counter("symbol_error", "7\n");
  counter("link_downed", "1\n");
  counter("link_error_recovery", "0\n");
  EXPECT_THAT(check(), IsEmpty()) << "what they count was before";
  EXPECT_THAT(check(), IsEmpty());
  counter("link_downed", "2\n");
  EXPECT_THAT(check(), ElementsAre(warning("InfiniBand mlx5_0 port 1: link_downed grows")));
  EXPECT_THAT(check(), IsEmpty());
  counter("symbol_error", "0\n");
  EXPECT_THAT(check(), IsEmpty()) << "it was reset";
}

TEST(NodeHealthFindings, SharedMemoryThatIsNearlyFull) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  const auto findings = [](std::uint64_t size, std::uint64_t free) {
    HealthFacts facts;
    facts.shared_memory = {size, free};
    return agent::findings_of(facts, facts, nullptr);
  };
  EXPECT_THAT(findings(1024 * kMiB, 512 * kMiB), IsEmpty());
  EXPECT_THAT(findings(1024 * kMiB, 63 * kMiB), ElementsAre(warning("less than 64 MiB")));
  EXPECT_THAT(findings(10240 * kMiB, 511 * kMiB), ElementsAre(warning("less than 5 %")));
  EXPECT_THAT(findings(0, 0), IsEmpty()) << "no file system of its own";
}

TEST_F(NodeHealthTest, ProcessesOfOthersOnTheGpus) {
  use_nvml();
  process(kAgent, 1, "ddprun");
  process(101, kAgent, "python");
  process(102, 101, "loader");
  process(200, 1, "notebook");
  gpus_are("used-by-102 used-by-200");
  EXPECT_THAT(check(), ElementsAre(warning("process 200 (notebook), which is not of this job, "
                                           "uses memory of GPU 1")));
  gpus_are("used-by-300 fine");
  EXPECT_THAT(check(), IsEmpty()) << "a process that cannot be seen from this container";
}

}  // namespace
}  // namespace ddprun::cli
