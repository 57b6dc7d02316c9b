// One worker process (Boost.Process v2): made with clone3, watched through its pidfd (or by SIGCHLD where the kernel or a
// filter gives none), signalled as a process group. start() returns before the program is executed, because a file server
// may hold execve for ever. The rest of the group is killed before its leader is reaped: as long as that is a zombie, its
// number cannot be reused. Event loop thread only: PR_SET_PDEATHSIG acts when the thread that started the worker ends.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/common/exit_status.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/worker_abi/worker_progress.h"

namespace ddprun::agent {

struct ProcessSpec {
  std::string path;  // for execve
  std::vector<std::string> argv;
  std::vector<std::string> environment;  // "NAME=value"
  int stdin_fd = -1;                     // becomes the worker's fd 0; -1: inherits the agent's
  int stdout_fd = -1;                    // likewise fd 1
  int stderr_fd = -1;                    // likewise fd 2
  std::atomic<pid_t>* keeper_slot =
      nullptr;            // the worker stores its process group here; cleared at its end
  std::vector<int> cpus;  // CPU affinity; empty: as the agent
  // The worker's ends of the link (worker_link.h), inherited under the same numbers; -1: none.
  int link_socket_fd = -1;
  int link_page_fd = -1;
  int link_record_fd = -1;
  int link_snapshot_fd = -1;
  int link_mirror_fd = -1;  // of a prepared standby: the mirror of the worker that it may replace
  // Written to the link's page for the worker, as link::Header has them. SIGUSR1 and SIGUSR2, which schedulers send to all
  // processes of a job, are ignored by a worker that does not handle them, unless its command names a shell, whose `trap`
  // could not take them then.
  int preempt_signal = 0;
  StepKind wanted_kind = StepKind::kProgram;
  std::int64_t wanted_step = 0;
  std::vector<int> inherited_fds;  // under the same numbers, beside 0, 1, 2 and the link
  int control_group = -1;          // descriptor of the control group to start in; -1: the agent's
  // The worker is stopped before its first instruction until a debugger or SIGCONT continues it.
  bool waits_for_debugger = false;
};

class WorkerProcess {
 public:
  // Called once from the event loop, when the worker has ended and its process group was killed.
  using OnEnd = std::function<void(ExitStatus)>;

  // Called at most once from the event loop, before OnEnd: the program is executed, or an error says why it cannot be.
  // OnEnd follows after an error, too.
  using OnStarted = std::function<void(Result<void>)>;

  static Result<std::unique_ptr<WorkerProcess>> start(boost::asio::io_context& io,
                                                      const ProcessSpec& spec, OnEnd on_end,
                                                      OnStarted on_started = {});
  // The same for a child that another process has made, with a session of its own. Fails if it has
  // been reaped, or is no child of this process; it is not signalled then.
  static Result<std::unique_ptr<WorkerProcess>> adopt(boost::asio::io_context& io, pid_t pid,
                                                      bool is_in_control_group,
                                                      std::atomic<pid_t>* keeper_slot,
                                                      OnEnd on_end);
  virtual ~WorkerProcess() = default;

  virtual pid_t pid() const = 0;                 // also the id of its process group and session
  virtual bool is_in_control_group() const = 0;  // false: none was given, or it cannot be used
  virtual bool has_pidfd() const = 0;            // false: SIGCHLD tells of its end

  // To the whole process group, or to the worker alone. No effect after the worker has ended.
  virtual void signal_group(int signal) = 0;
  virtual void signal_worker(int signal) = 0;

  // The signal of a preemption, to the worker if it handles or blocks it; to a shell's descendants that do, else. False: there
  // is no such process, and none was signalled.
  virtual bool give_notice(int signal) = 0;

  // The signal that asks the worker to end. A worker that handles it gets it alone: its children (loaders of data) serve
  // it until it has ended. Else, and for a shell, whose child may be the program that saves, the whole group gets it. A
  // shell that dies of it has ended only when its descendants that handle it have ended, too, or have got SIGKILL.
  virtual void stop(int signal) = 0;

  // Job control: SIGSTOP and SIGCONT to the group, unless the worker waits for its debugger.
  virtual void pause() = 0;
  virtual void resume() = 0;

  // Until let_end() a worker that ends is not reaped, and its end is not told: the kernel reaps a process in a loop that
  // spins until its last thread has left /proc, and one that dies behind all others may be late. `after`: how long it may
  // still need.
  virtual void hold_end() = 0;
  virtual void let_end(std::chrono::milliseconds after) = 0;

  // When the worker has succeeded, the rest of its group has a moment to end by itself (multiprocessing's resource
  // tracker does) before it is killed; then `tell` gets the names of what is killed. Null: the rest is killed at once.
  virtual void tell_of_rest(std::function<void(const std::string&)> tell) = 0;
};

// Enters the worker in the page of its link and in its record, as the agent `agent`. System calls only.
void write_link_page(const ProcessSpec& spec, pid_t worker, pid_t agent);

// Saves the inherited signal mask, and what happens at SIGPIPE and SIGXFSZ, for the workers; then
// ignores these two.
void adopt_signal_state();

// The workers that are started from now on do not inherit that these signals are blocked.
void unblock_signals_in_workers(const std::vector<int>& signals);

// Saves the inherited soft limit on open files for the workers, and raises the agent's to the hard
// limit, because every worker has connections to the store. To be called once.
void adopt_descriptor_limit();

}  // namespace ddprun::agent
