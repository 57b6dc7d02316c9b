// One worker process of Boost.Process v2: started by clone3 as vfork would, watched through its pidfd
// in the event loop, signalled as a process group.
//
// The leader of the group is reaped only after what is left of the group was killed: as long as the
// leader is a zombie nobody else can be given its number, so the kill cannot hit anybody else.
//
// Owner and only caller: the agent's event loop thread (PR_SET_PDEATHSIG is bound to the thread
// that starts a worker, so that thread must be the one that lives longest).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/common/exit_status.h"
#include "rendezvous/common/result.h"

namespace ddprun::agent {

struct ProcessSpec {
  std::string path;  // for execve
  std::vector<std::string> argv;
  std::vector<std::string> environment;  // "NAME=value"
  int stdout_fd = -1;                    // becomes the worker's fd 1; -1: the agent's own
  int stderr_fd = -1;                    // likewise fd 2
  std::atomic<pid_t>* keeper_slot =
      nullptr;            // where the worker enters its group; cleared at its end
  std::vector<int> cpus;  // it may run on these alone; empty: wherever the agent may
  // Its ends of the link (agent/process/worker_link.h), which it inherits under the same numbers; -1: none.
  int link_socket_fd = -1;
  int link_page_fd = -1;
  int preempt_signal = 0;  // told to the worker over its link; 0: none
  int control_group = -1;  // folder of the control group that it starts in; -1: the agent's
  // It is stopped before its first instruction, until a debugger or SIGCONT lets it go on.
  bool waits_for_debugger = false;
};

class WorkerProcess {
 public:
  // Called once from the event loop, when the worker has ended and its process group is gone.
  using OnEnd = std::function<void(ExitStatus)>;

  static Result<std::unique_ptr<WorkerProcess>> start(boost::asio::io_context& io,
                                                      const ProcessSpec& spec, OnEnd on_end);
  virtual ~WorkerProcess() = default;

  virtual pid_t pid() const = 0;                 // also the id of its process group and session
  virtual bool is_in_control_group() const = 0;  // false: none was given, or it takes nobody

  // To the whole process group, or to the worker alone. Nothing happens when it has ended.
  virtual void signal_group(int signal) = 0;
  virtual void signal_worker(int signal) = 0;

  // Job control: SIGSTOP and SIGCONT to the group, but one that still waits for its debugger is left
  // to wait.
  virtual void pause() = 0;
  virtual void resume() = 0;

  // Gives up on a process that SIGKILL did not end: it is no longer watched.
  virtual void abandon() = 0;
};

// Remembers the signal mask and the disposition of SIGPIPE that the agent was started with, and
// ignores SIGPIPE from then on. To be called once, before anything changes a signal.
void adopt_signal_state();

// Remembers the soft limit on open files that the agent was started with, which its workers get, and
// raises its own to the hard limit: every worker has connections to the store. To be called once.
void adopt_descriptor_limit();

}  // namespace ddprun::agent
