// Slurm: the variables that srun, sbatch and salloc set. launcher/README.md has a table of what is
// taken from which; those of the step go before those of the job, because a step may be smaller.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "launcher/settings/settings.h"
#include "launcher/settings/site_maker.h"
#include "launcher/settings/values.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/common/slurm.h"
#include "rendezvous/common/text/lists.h"

namespace ddprun::cli {
namespace {

const std::string kLaunch = "write srun --ntasks-per-node=1 ddprun ...";
// The signal in the examples of --signal in sbatch's manual.
constexpr const char* kPreemptSignal = "SIGUSR1";
// Slurm sends SIGKILL KillWait (30 s) after SIGTERM. Before that there must be time for the stacks
// and the report of workers that had to be killed.
constexpr const char* kSecondsOfStep = "20";

class Slurm : private SiteMaker {
 public:
  explicit Slurm(const Environment& environment) : SiteMaker(environment, "Slurm", kLaunch) {}

  std::optional<Site> site() {
    const auto job = first_of({"SLURM_JOB_ID"});
    if (!job) return std::nullopt;
    if (const auto step = this_step()) {
      describe_step(*job, *step);
    } else {
      describe_shell(*job);
    }
    return std::move(site_);
  }

  bool is_step() const { return first_of({"SLURM_JOB_ID"}) && this_step(); }

 private:
  // --- ddprun was started by srun

  std::optional<std::uint64_t> this_step() const {
    const auto step = first_of({"SLURM_STEP_ID"});
    if (!step || !first_of({"SLURM_PROCID"})) return std::nullopt;
    return slurm_step(step->text);
  }

  void describe_step(const Variable& job, std::uint64_t step) {
    read_job_id(job, "." + std::to_string(step));
    read_port(job, step);
    read_workers(/*is_step=*/true);
    propose_ending();
    const auto nodes = count(OptionId::kNnodes,
                             {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"}, 1);
    if (!nodes) return;
    set(OptionId::kNnodes, std::to_string(nodes->number), nodes->from.name);
    read_node_rank(*nodes, {"SLURM_NODEID"});
    read_node_list(*nodes);
    check_tasks(*nodes);
  }

  void read_port(const Variable& job, std::uint64_t step) {
    const auto number = parse_number<std::uint64_t>(job.text);
    if (!number) {
      return refuse(OptionId::kMasterPort, job.said() + ": it should be a whole number; " +
                                               kLaunch + ", or say --master-port");
    }
    const std::uint16_t port = slurm_port(*number, step);
    propose(OptionId::kMasterPort, std::to_string(port), job.name + ", SLURM_STEP_ID");
  }

  // The first node of the list leads.
  void read_node_list(const Count& nodes) {
    const auto list = first_of({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
    if (!list) return;
    const auto hosts = expand_host_list(list->text);
    if (!hosts) {
      return refuse(OptionId::kMasterAddr,
                    list->said() + ": it cannot be read as a list of nodes, " +
                        hosts.error().message +
                        "; say --master-addr, the first node's name, on every node");
    }
    propose(OptionId::kMasterAddr, hosts->front(), "the first of " + list->name);
    if (hosts->size() != static_cast<std::size_t>(nodes.number)) {
      refuse(
          OptionId::kNnodes,
          contradiction(*list, nodes.from,
                        "it names " + counted(static_cast<std::int64_t>(hosts->size()), "node")));
    }
  }

  void check_tasks(const Count& nodes) {
    const auto tasks = count(OptionId::kNnodes, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, 1);
    if (!tasks || tasks->number == nodes.number) return;
    if (tasks->number < nodes.number) {
      return refuse(OptionId::kNnodes,
                    contradiction(tasks->from, nodes.from, "every node of a step has a task"));
    }
    refuse_too_many("srun", *tasks, tasks->from,
                    std::to_string(tasks->number) + " times on " + counted(nodes.number, "node"));
  }

  // --- ddprun was started by a batch script, or in a shell of salloc's

  void describe_shell(const Variable& job) {
    const bool is_on_a_node = first_of({"SLURMD_NODENAME"}).has_value();
    const auto nodes = count(OptionId::kNnodes, {"SLURM_JOB_NUM_NODES", "SLURM_NNODES"}, 1);
    if (is_refused(OptionId::kNnodes)) return;
    if (nodes && nodes->number > 1) {
      refuse(OptionId::kNnodes,
             "this job has " + std::to_string(nodes->number) + " nodes (" + nodes->from.name +
                 "), and ddprun was started " +
                 (is_on_a_node ? "on the first of them only; " : "in a shell on none of them; ") +
                 kLaunch + ", or --nnodes=1 to run " + (is_on_a_node ? "on this node" : "here") +
                 " alone");
    } else if (!is_on_a_node) {
      site_.warnings.push_back("this shell is on no node of Slurm's job " + job.text +
                               ", so the workers will run on this machine; " + kLaunch +
                               ", or say --nnodes=1 if that is what you want");
    }
    if (!is_on_a_node) return;
    if (nodes) site_.values.try_emplace(OptionId::kNnodes, SiteValue{"1", nodes->from.name});
    read_job_id(job, "");
    read_workers(/*is_step=*/false);
    propose_ending();
  }

  // --- both

  void propose_ending() {
    propose(OptionId::kPreemptSignal, kPreemptSignal, "Slurm");
    propose(OptionId::kShutdownTimeout, kSecondsOfStep, "KillWait, usually 30");
  }

  // A requeued job keeps its id; what is stored under the id must not be mixed with the first run.
  void read_job_id(const Variable& job, const std::string& step) {
    std::string id = job.text + step;
    std::string from = job.name + (step.empty() ? "" : ", SLURM_STEP_ID");
    if (const auto restarts = first_of({"SLURM_RESTART_COUNT"});
        restarts && restarts->text != "0") {
      id += "-r" + restarts->text;
      from += ", " + restarts->name;
    }
    propose(OptionId::kRdzvId, std::move(id), std::move(from));
  }

  // As CUDA reads it: what stands behind a name that is none does not count, and an empty list hides all.
  void leave_hidden_gpus_out(Count& gpus) const {
    const auto visible = environment_.find("CUDA_VISIBLE_DEVICES");
    if (visible == environment_.end()) return;
    int number = 0;
    for (const std::string_view name : split(visible->second, ',')) {
      if (name.empty() || name.starts_with('-') || name == "NoDevFiles") break;
      ++number;
    }
    if (number < gpus.number) gpus = {number, {visible->first, visible->second}};
  }

  void read_workers(bool is_step) {
    constexpr OptionId kId = OptionId::kNprocPerNode;
    auto gpus = count(kId, {"SLURM_GPUS_ON_NODE"}, 0);
    if (gpus) leave_hidden_gpus_out(*gpus);
    if (gpus && gpus->number > 0) {
      return propose(kId, std::to_string(gpus->number), gpus->from.name);
    }
    if (is_refused(kId)) return;
    auto cpus = count(kId, {"SLURM_CPUS_ON_NODE"}, 1);
    if (is_refused(kId)) return;
    // In a step, the CPUs of its one task (--cpus-per-task); a batch script has all CPUs of its node.
    const auto own = is_step ? count(kId, {"SLURM_CPUS_PER_TASK"}, 1) : std::nullopt;
    if (own && (!cpus || own->number < cpus->number)) cpus = own;
    if (!cpus || is_refused(kId)) return;
    site_.cpus = cpus->number;
    propose(kId, "auto", cpus->from.name);
  }
};

}  // namespace

std::optional<Site> slurm_site(const Environment& environment, const std::string& /*root*/) {
  return Slurm(environment).site();
}

bool is_slurm_step(const Environment& environment) { return Slurm(environment).is_step(); }

}  // namespace ddprun::cli
