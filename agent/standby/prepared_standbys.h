// The prepared standbys of this node: performs what prepared::Core decides. Each is a worker process of
// one rank in the round that runs, with a link of its own; it has made the program's set-up without the
// others and waits for link::TakePlace. Nobody sees what it prints before that. Owned by the
// WorkerGroup; event loop only. No error here stops the job.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "agent/core/prepared_core.h"
#include "agent/process/process.h"
#include "agent/process/worker_link.h"
#include "agent/status/node_status.h"
#include "rendezvous/common/loop/blocking_calls.h"
#include "rendezvous/common/loop/run_to_completion.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

class PreparedStandbys {
 public:
  // A worker of that rank that is not started yet, without its streams.
  struct Blueprint {
    ProcessSpec spec;
    std::shared_ptr<WorkerLink> link;
    std::string error_file;
  };
  struct Hooks {
    std::function<Result<Blueprint>(int local_rank)> blueprint;
    std::function<Result<std::unique_ptr<WorkerProcess>>(const ProcessSpec&, WorkerProcess::OnEnd,
                                                         WorkerProcess::OnStarted)>
        start;
    std::function<pid_t(int local_rank)> worker;               // that it may replace; 0: none
    std::function<void(const std::string& path)> remove_file;  // without waiting for it
    std::function<bool()> is_replacing;                        // as prepared::TimerFired has it
    std::function<bool()> is_blank_coming;                     // likewise
    std::function<void()> reaped;                              // a child of this object was reaped
    std::function<void(std::string_view sentence)> tell;
  };
  PreparedStandbys(boost::asio::io_context& io, bool are_wanted, int local_world_size, Hooks hooks);

  void round_runs() { post(prepared::RoundRuns{}); }
  void all_can_recover() { post(prepared::AllCanRecover{}); }
  void worker_cannot(const std::string& why, bool nor_later) {
    post(prepared::WorkerCannot{why, nor_later});
  }
  bool are_wanted() const { return core_.is_wanted() && !core_.is_given_up(); }
  void round_is_over() { post(prepared::RoundOver{}); }
  void job_is_over() { post(prepared::JobOver{}); }

  bool waits(int local_rank) const { return find(local_rank) != nullptr; }
  // The one that waits for this rank, if its link takes the message.
  struct Taken {
    std::unique_ptr<WorkerProcess> process;
    std::shared_ptr<WorkerLink> link;
    std::string error_file;
  };
  std::optional<Taken> take(int local_rank, int rank, std::uint32_t generation, int stdout_fd,
                            int stderr_fd, WorkerLink& before, WorkerProcess::OnEnd on_end);

  bool owns(pid_t child) const;
  bool are_all_gone() const { return standbys_.empty() && ending_.empty(); }
  void signal_all(int signal);                      // SIGSTOP or SIGCONT
  std::optional<ReplacementStatus> status() const;  // none: nobody has asked for them

 private:
  struct Standby {
    int local_rank = 0;
    bool waits = false;
    std::unique_ptr<WorkerProcess> process;
    std::shared_ptr<WorkerProcess::OnEnd> on_end = std::make_shared<WorkerProcess::OnEnd>();
    std::shared_ptr<WorkerLink> link;
    std::string error_file;
    rdzv::UniqueFd stdout_file;  // in memory
    rdzv::UniqueFd stderr_file;
  };

  void perform(const prepared::ArmTimer& action);
  void perform(const prepared::DisarmTimer&) { timer_.cancel(); }
  void perform(const prepared::Make& action);
  void perform(const prepared::EndAll&);
  void perform(const prepared::Tell& action) { hooks_.tell(action.sentence); }
  void post(prepared::Event event) { events_.post(std::move(event)); }
  void step(const prepared::Event& event);

  Result<void> make(int local_rank);
  void on_hello(const Standby& standby);
  void on_looked(pid_t pid, bool runs_the_same);
  void on_end(Standby& standby, ExitStatus status);
  void forget(const Standby& standby);
  const Standby* find(int local_rank) const;

  boost::asio::io_context& io_;
  const Hooks hooks_;
  prepared::Core core_;
  Timer timer_;
  RunToCompletion<prepared::Event> events_;
  BlockingCalls calls_;  // the programs that processes run
  std::list<Standby> standbys_;
  std::list<std::unique_ptr<WorkerProcess>> ending_;  // killed, until they are reaped
};

}  // namespace ddprun::agent
