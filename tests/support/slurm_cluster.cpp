#include "tests/support/slurm_cluster.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string_view>
#include <utility>

namespace ddprun::test {
namespace {

namespace fs = std::filesystem;

constexpr std::array kDaemons{"munged", "slurmctld", "slurmscriptd", "slurmd", "slurmstepd"};

// Debian installs the daemons in a folder that only root's PATH contains.
std::string daemon_path(const std::string& name) { return "/usr/sbin/" + name; }

// {folder} is replaced by the cluster's folder. Requeued jobs wait for the lifetime of a
// credential.
constexpr std::string_view kConfiguration = R"(ClusterName=test
SlurmctldHost=node0
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MailProg=/bin/true
MpiDefault=none
ReturnToService=2
GresTypes=gpu
NodeName=node[0-1] CPUs=8 Gres=gpu:3
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
)";

std::string configuration(const std::string& folder) {
  constexpr std::string_view kFolder = "{folder}";
  std::string text(kConfiguration);
  for (auto at = text.find(kFolder); at != std::string::npos; at = text.find(kFolder, at)) {
    text.replace(at, kFolder.size(), folder);
  }
  return text;
}

std::string random_key() {
  std::random_device random;
  std::string key(128, '\0');
  for (char& byte : key) byte = static_cast<char>(random());
  return key;
}

}  // namespace

const std::optional<std::string>& SlurmCluster::obstacle() {
  static const std::optional<std::string> found = []() -> std::optional<std::string> {
    for (const char* const name : {"munged", "slurmctld", "slurmd"}) {
      if (access(daemon_path(name).c_str(), X_OK) == 0) continue;
      return "no program '" + std::string(name) +
             "' here: scripts/setup installs slurm-wlm and munge";
    }
    return Network::obstacle();
  }();
  return found;
}

SlurmCluster::SlurmCluster() {
  write_file(folder_ / "key", random_key(), 0600);
  write_file(folder_ / "slurm.conf", configuration(folder_.path()));
  for (const std::string& name : {std::string("state"), std::string("munge"), host(0), host(1)}) {
    fs::create_directory(folder_ / name);
  }
  // Slurm uses these files as GPUs.
  for (const std::string name : {"gpu0", "gpu1", "gpu2"}) write_file(folder_ / name, "");
  write_file(folder_ / "gres.conf", "Name=gpu File=" + (folder_ / "gpu[0-2]") + "\n");
  for (const int node : {0, 1}) {
    guard(node);
    mount_munge(node);
  }
  // --force: accept folders that only their owner can read.
  start(0, {daemon_path("munged"), "--foreground", "--force", "--key-file=" + (folder_ / "key"),
            "--socket=/run/munge/munge.socket.2", "--pid-file=" + (folder_ / "munged.pid"),
            "--seed-file=" + (folder_ / "munged.seed"), "--log-file=" + (folder_ / "munged.log")});
  eventually([this] { return fs::exists(folder_ / "munge/munge.socket.2"); });
  start(0, {daemon_path("slurmctld"), "-D"});
  for (const int node : {0, 1}) start(node, {daemon_path("slurmd"), "-D", "-N", host(node)});
}

// Processes that slurmd starts survive it, and so also the end of a killed test. The guard is
// killed with the test; it has a child that is not, and that child ends all processes on the same
// node.
void SlurmCluster::guard(int node) {
  constexpr const char* kScript =
      "(tail --pid=$0 -f /dev/null; for process in /proc/[0-9]*; do "
      "[ $process != /proc/$BASHPID ] && [ $process/ns/net -ef /proc/self/ns/net ] && "
      "kill -KILL ${process#/proc/}; done) & wait";
  guards_.push_back(std::make_unique<Job>(Command{"bash", "-c", kScript, std::to_string(getpid())},
                                          network_.on(node)));
}

// Its usual place, which libmunge looks in; both nodes have the same one.
void SlurmCluster::mount_munge(int node) {
  Job(
      Command{
          "sh", "-c",
          "mount -t tmpfs tmpfs /run && mkdir /run/munge && exec mount --bind \"$0\" /run/munge",
          folder_ / "munge"},
      network_.on(node))
      .wait();
}

void SlurmCluster::start(int node, const Command& daemon) {
  daemons_.push_back(std::make_unique<Job>(
      daemon, network_.on(node, {.environment = {{"SLURM_CONF", folder_ / "slurm.conf"}}})));
}

bool SlurmCluster::is_ready() {
  return eventually([this] { return ask({"sinfo", "-h", "-o", "%T %D"}) == "idle 2"; });
}

JobSetup SlurmCluster::setup(JobSetup setup) const {
  setup.environment["SLURM_CONF"] = folder_ / "slurm.conf";
  return network_.on(0, std::move(setup));
}

Command SlurmCluster::srun(const std::vector<std::string>& options, const Command& program) {
  Command command{"srun"};
  command.insert(command.end(), options.begin(), options.end());
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

std::string SlurmCluster::ask(const Command& command, JobSetup setup) const {
  // A script that is submitted outlives this Job, which ends whatever has its variable.
  Command asked{"env", "--unset=DDPRUN_TEST_JOB"};
  asked.insert(asked.end(), command.begin(), command.end());
  Job job(asked, this->setup(std::move(setup)));
  job.wait();
  std::string said = job.out();
  while (said.ends_with('\n')) said.pop_back();
  return said;
}

std::string SlurmCluster::sbatch(const std::vector<std::string>& options,
                                 const std::string& script) {
  const std::string file = folder_ / ("script" + std::to_string(++scripts_));
  write_file(file, "#!/bin/bash\n" + script, 0755);
  Command command{"sbatch", "--parsable"};
  command.insert(command.end(), options.begin(), options.end());
  command.push_back(file);
  return ask(command);
}

std::string SlurmCluster::field_of(const std::string& job, const std::string& field) const {
  const std::string all = " " + ask({"scontrol", "--oneliner", "show", "job", job}) + " ";
  const auto at = all.find(" " + field + "=");
  if (at == std::string::npos) return "";
  const auto begin = at + field.size() + 2;
  return all.substr(begin, all.find(' ', begin) - begin);
}

bool SlurmCluster::completes(const std::string& job, milliseconds deadline) const {
  return eventually([&] { return state_of(job) == "COMPLETED"; }, deadline);
}

// Not at once: for some whole seconds the nodes refuse the job's credential, which was revoked with
// its first run. Slurm sets the start time again after its cleanup, so one attempt may not be
// enough.
bool SlurmCluster::start_soon(const std::string& job) const {
  const auto is_pending = [&] { return state_of(job) == "PENDING"; };
  return eventually([&] {
    ask({"scontrol", "update", "JobId=" + job, "StartTime=now+2"});
    return eventually([&] { return !is_pending(); }, seconds(6));
  });
}

std::vector<std::string> SlurmCluster::clear() {
  ask({"scancel", "--user=root"});
  eventually([this] { return ask({"squeue", "-h"}).empty() && job_processes().empty(); });
  return job_processes();
}

std::vector<std::string> SlurmCluster::job_processes() const {
  std::vector<pid_t> of_guards;
  for (const auto& guard : guards_) {
    of_guards.push_back(guard->pid());
    for (const pid_t pid : guard->processes()) of_guards.push_back(pid);
  }
  std::vector<std::string> found;
  for (const pid_t pid : network_.processes()) {
    if (std::ranges::find(of_guards, pid) != of_guards.end()) continue;
    const auto info = process(pid);
    if (!info || std::ranges::find(kDaemons, info->name) != kDaemons.end()) continue;
    found.push_back(info->name + " (pid " + std::to_string(pid) + ")");
  }
  return found;
}

std::string SlurmCluster::told() const {
  std::string all;
  for (const std::string name : {"munged", "slurmctld", "node0", "node1"}) {
    all += "--- " + name + "\n" + read_file(folder_ / (name + ".log"));
  }
  return all;
}

}  // namespace ddprun::test
