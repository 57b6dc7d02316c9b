#include "agent/supervisor/worker_blueprints.h"

#include <sys/mman.h>

#include "agent/core/worker_environment.h"
#include "agent/process/orphans.h"
#include "agent/process/search_path.h"
#include "agent/python/python_archives.h"
#include "agent/supervisor/minute.h"

namespace ddprun::agent {

StandbyPool::Blueprint WorkerBlueprints::make(int local_rank, const std::string& error_file,
                                              const Around& around) {
  ChildEnvironment environment = worker_environment(parts_.job, round_, local_rank, error_file);
  environment.set(kAgentVariable, parts_.agent_id);
  StandbyPool::Blueprint made;
  made.link = make_link(environment);
  if (around.may_be_replaced) environment.set(link::kReplacesVariable, "1");
  made.error_file = error_file;
  ProcessSpec& spec = made.spec;
  spec.preempt_signal = parts_.job.preempt_signal.value_or(0);
  spec.path = parts_.job.program.path;
  spec.argv = worker_arguments(parts_.job.program, local_rank);
  if (wants_python_hooks(parts_.job)) add_python_hooks(spec, environment);
  spec.environment = environment.lines();
  spec.control_group = around.control_group;
  if (!parts_.job.cpus_of.empty())
    spec.cpus = parts_.job.cpus_of.at(static_cast<std::size_t>(local_rank));
  if (made.link) {
    spec.link_socket_fd = made.link->worker_socket();
    spec.link_page_fd = made.link->worker_page();
    spec.link_record_fd = made.link->worker_record();
    if (snapshot_) spec.link_snapshot_fd = snapshot_.get();
  }
  return made;
}

// A worker can run without its link, so an error (a limit, a seccomp filter) does not stop the job.
std::shared_ptr<WorkerLink> WorkerBlueprints::make_link(ChildEnvironment& environment) {
  // The agent's own, if it is itself a worker.
  for (const char* const name :
       {link::kSocketVariable, link::kPageVariable, record::kVariable, link::kSnapshotVariable,
        link::kMirrorVariable, link::kPreparedVariable, link::kReplacesVariable,
        link::kStandbyGpuVariable}) {
    environment.unset(name);
  }
  auto made = WorkerLink::make(parts_.io.get_executor());
  if (!made) {
    const bool is_missed = parts_.job.hangs.timeout.limit({}).has_value();
    if (!is_missed || !std::exchange(has_told_no_link_, true)) {
      parts_.log.write(is_missed ? Log::Level::kWarning : Log::Level::kDebug,
                       "a worker starts without its link, so it is not noticed if it hangs: " +
                           made.error().to_string());
    }
    return nullptr;
  }
  environment.set(link::kSocketVariable, std::to_string((*made)->worker_socket()));
  environment.set(link::kPageVariable, std::to_string((*made)->worker_page()));
  environment.set(record::kVariable, std::to_string((*made)->worker_record()));
  // It is for the next round, if one can follow.
  const bool may_restart = parts_.job.restarts.max_restarts > 0 || !parts_.job.nodes.is_alone();
  if (!snapshot_ && may_restart) {
    snapshot_.reset(::memfd_create(link::kSnapshotName, MFD_CLOEXEC));
  }
  if (snapshot_) environment.set(link::kSnapshotVariable, std::to_string(snapshot_.get()));
  return std::move(*made);
}

// Without them the program runs the same.
void WorkerBlueprints::add_python_hooks(ProcessSpec& spec, ChildEnvironment& environment) {
  if (!python_hooks_) {
    auto made = file_in_memory("ddprun-hooks", kHooksArchive);
    if (!made) return parts_.log.debug("no hooks for Python: " + made.error().to_string());
    python_hooks_ = std::move(*made);
  }
  if (parts_.job.hangs.timeout.limit({})) environment.set("DDPRUN_NCCL_RECORD", "1");
  // Six times a minute the hooks write when the process came to its calls over Gloo.
  const std::chrono::milliseconds every = minute_of(parts_.job.environment) / 6;
  environment.unset("DDPRUN_ARRIVALS_EVERY_MS");
  if (parts_.job.finds_slow_ranks) {
    environment.set("DDPRUN_ARRIVALS_EVERY_MS", std::to_string(every.count()));
  }
  put_first_on_python_path(environment, python_hooks_.get());
  spec.inherited_fds.push_back(python_hooks_.get());
}

namespace {

// Without this, gdb reports the SIGSTOP that stopped the worker as a new one, and the worker stays
// stopped after "detach". So gdb sends SIGCONT after it has attached, which does not make the
// worker run, and ignores both signals.
std::string gdb_line(const std::string& attach, const std::string& kill) {
  return "  gdb " + attach + " -ex 'handle SIGSTOP SIGCONT nostop noprint nopass' -ex 'shell " +
         kill + "'\n";
}

}  // namespace

std::string waits_for_debugger_text(int rank, pid_t pid, const std::string& host,
                                    const Environment& environment) {
  const std::string path = value_or_empty(environment, "PATH");
  const std::string number = std::to_string(pid);
  const std::string go_on = "kill -CONT " + number;
  std::string text = "ddprun: rank " + std::to_string(rank) + " (pid " + number +
                     ") waits before its first instruction; to debug it, or to let it go on:\n" +
                     gdb_line("-p " + number, go_on);
  if (!find_in_path(path, "gdbserver").empty()) {
    text += gdb_line("-ex 'target remote | ssh " + host + " gdbserver --attach - " + number + "'",
                     "ssh " + host + " " + go_on);
  }
  return text + "  " + go_on + "\n";
}

}  // namespace ddprun::agent
