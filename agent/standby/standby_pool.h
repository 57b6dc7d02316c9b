// The standbys of this node: performs what standby::Core decides. A blank standby is forked by the zygote, and waits for any
// rank. One for a rank is a worker process of that rank in the round that runs, with a link of its own: it has made the
// program's set-up without the others and waits for link::TakePlace; what it prints before that is kept. Owned by the
// Workers; event loop only. No error here stops the job: a worker for whom there is no standby is started by exec.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/standby_core.h"
#include "agent/job.h"
#include "agent/process/process.h"
#include "agent/process/worker_link.h"
#include "agent/standby/channel.h"
#include "agent/standby/loaded_files.h"
#include "agent/status/node_status.h"
#include "rendezvous/common/loop/blocking_calls.h"
#include "rendezvous/common/loop/run_to_completion.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

class StandbyPool {
 public:
  // A worker of some rank that is not started yet, without its streams.
  struct Blueprint {
    ProcessSpec spec;
    std::shared_ptr<WorkerLink> link;
    std::string error_file;
  };
  struct Hooks {
    // The keeper's slots, from 0; null: there is no keeper.
    std::function<std::atomic<pid_t>*(std::size_t)> keeper_slot;
    std::function<rdzv::UniqueFd()> next_control_group;  // as ChildReaper's
    // As every worker gets them; null: none does.
    std::function<void(ProcessSpec&, ChildEnvironment&)> add_python_hooks;
    std::function<bool()> are_workers_starting;  // as standby::ZygoteTimer has it
    // A worker whose program has said that it can be a zygote; 0: there is none.
    std::function<pid_t()> worker_like_a_zygote;

    // For a rank.
    std::function<Result<Blueprint>(int local_rank)> blueprint;
    std::function<Result<std::unique_ptr<WorkerProcess>>(const ProcessSpec&, WorkerProcess::OnEnd,
                                                         WorkerProcess::OnStarted)>
        start;
    std::function<pid_t(int local_rank)> worker;               // that it may replace; 0: none
    std::function<void(const std::string& path)> remove_file;  // without waiting for it
    std::function<bool()> is_replacing;                        // as standby::RankTimer has it
    std::function<std::vector<link::GpuUse>()> gpus;           // likewise

    std::function<void()> reaped;  // a child of this object was reaped
    std::function<void(std::string_view sentence, bool is_warning)> tell;
  };

  StandbyPool(boost::asio::io_context& io, const Job& job, std::string agent_id, Hooks hooks);

  // How many slots of the keeper they need.
  static std::size_t slots(const Job& job);

  // ---- a round
  // Before its workers are started: calls `ready`, at once or later, when those that are to come from standbys can. One at a
  // time.
  void round_begins(std::function<void()> ready);
  void do_not_begin() { ready_ = nullptr; }
  void round_runs() { post(standby::RoundRuns{}); }
  void all_can_recover() { post(standby::AllCanRecover{}); }
  void worker_cannot(const std::string& why, bool nor_later) {
    post(standby::WorkerCannot{why, nor_later});
  }
  void round_is_over() { post(standby::RoundOver{}); }
  void job_is_over();

  // ---- blank ones
  // For the first worker of a round, before take(): where its hooks for Python tell how long its imports took.
  void add_imports_file(ProcessSpec& spec) const;
  // The worker that `spec` describes, in a process that has waited for it; null: none waits. Its
  // path and arguments are those of the job, and one that waits for a debugger is started by exec.
  std::unique_ptr<WorkerProcess> take(const ProcessSpec& spec, WorkerProcess::OnEnd on_end);
  std::optional<StandbyStatus> status() const;  // none: the user has not asked for any

  // ---- those for ranks
  bool prepares() const { return core_.prepares() && !core_.are_ranks_given_up(); }
  bool waits_for(int local_rank) const { return find(local_rank) != nullptr; }
  bool is_unprepared(int local_rank) const { return core_.is_unprepared(local_rank); }
  // The one that waits for this rank, if its link takes the message.
  struct Taken {
    std::unique_ptr<WorkerProcess> process;
    std::shared_ptr<WorkerLink> link;
    std::string error_file;
  };
  std::optional<Taken> take_place(int local_rank, int rank, std::uint32_t generation, int stdout_fd,
                                  int stderr_fd, WorkerLink& before, WorkerProcess::OnEnd on_end);
  bool are_all_for_ranks_gone() const;
  void signal_all_for_ranks(int signal);                 // SIGSTOP or SIGCONT
  std::optional<ReplacementStatus> replacement() const;  // none: the user has not asked for them

  // ---- both
  // A slot of the keeper; null: none is free, or there is no keeper.
  std::atomic<pid_t>* free_slot() const;
  bool owns(pid_t child) const;

 private:
  // A process whose end may get another meaning.
  struct Child {
    std::unique_ptr<WorkerProcess> process;
    std::shared_ptr<WorkerProcess::OnEnd> on_end = std::make_shared<WorkerProcess::OnEnd>();
    WorkerProcess::OnEnd teller() const {
      return [on_end = on_end](ExitStatus status) { (*on_end)(status); };
    }
    bool is(pid_t pid) const { return process && process->pid() == pid; }
  };
  struct Standby {
    enum class State { kComing, kWaiting, kWorker };
    State state = State::kComing;
    Child child;                       // a blank one that is coming has none
    std::unique_ptr<Channel> channel;  // only a blank one has it
    std::optional<int> local_rank;     // only one for a rank has it, and what follows
    std::shared_ptr<WorkerLink> link = nullptr;
    std::string error_file = {};
    rdzv::UniqueFd stdout_file = {};  // in memory
    rdzv::UniqueFd stderr_file = {};
  };
  // Killed, until it is reaped.
  struct Ending {
    std::unique_ptr<WorkerProcess> process;
    bool is_for_rank = false;
  };

  void perform(const standby::ArmTimer& action);
  void perform(const standby::DisarmTimer& action) { timer(action.timer).cancel(); }
  void perform(const standby::StartTrial&) { start_zygote(/*is_trial=*/true); }
  void perform(const standby::StartZygote&) { start_zygote(/*is_trial=*/false); }
  void perform(const standby::LoadModules& action);
  void perform(const standby::EndZygote&);
  void perform(const standby::ForkBlank&);
  void perform(const standby::EndBlanks&) { end_all(/*are_for_ranks=*/false); }
  void perform(const standby::MakeForRank& action);
  void perform(const standby::EndForRanks&) { end_all(/*are_for_ranks=*/true); }
  void perform(const standby::Tell& action) { hooks_.tell(action.sentence, action.is_warning); }
  void post(standby::Event event);
  void step(const standby::Event& event);
  Timer& timer(standby::TimerOf of) {
    return of == standby::TimerOf::kZygote ? zygote_timer_ : rank_timer_;
  }
  void start_when_ready();
  void on_zygote_timer(const std::string& why_program_is_none);

  void start_zygote(bool is_trial);
  Result<void> try_to_start_zygote();
  Result<void> hold_python(ProcessSpec& spec, ChildEnvironment& environment);
  void on_ready(std::vector<std::string> lines);
  void on_zygote_end(standby::Event how);
  void on_message_of_zygote(const zygote::Header& header, std::string_view text);
  std::vector<ImportTime> repeated_imports() const;
  void look_at_program();
  std::function<std::string()> why_program_is_none() const;

  Result<void> ask_for_blank();
  void on_message_of(Standby& standby, const zygote::Header& header, std::string_view text);
  Result<void> on_hello_of(Standby& standby, const zygote::Header& header);
  void on_closed(Standby& standby);
  void lose(Standby& standby);
  bool become(Standby& standby, const ProcessSpec& spec);

  Result<void> make_for_rank(const standby::MakeForRank& action);
  void on_hello_for_rank(const Standby& standby);
  void on_looked(pid_t pid, bool runs_the_same);
  void on_end_for_rank(Standby& standby, ExitStatus status);
  const Standby* find(int local_rank) const;

  void end_all(bool are_for_ranks);
  void kill(Child child, bool is_for_rank = false, const std::string& error_file = {});
  void forget(const Standby& standby);

  boost::asio::io_context& io_;
  const Job& job_;
  const std::string agent_id_;
  const Hooks hooks_;
  standby::Core core_;
  Timer zygote_timer_;
  Timer rank_timer_;
  RunToCompletion<standby::Event> events_;
  BlockingCalls calls_;  // the files of programs, which may be on a file server

  rdzv::UniqueFd archive_;
  rdzv::UniqueFd imports_file_;               // the first worker writes it
  std::vector<std::string> loaded_packages_;  // by the zygote
  std::unique_ptr<Channel> zygote_channel_;
  Child zygote_;
  bool is_trial_ = false;
  LoadedFiles loaded_;           // what a program that is its own zygote has loaded
  bool is_looking_ = false;      // whether it has changed, before a round
  std::function<void()> ready_;  // round_begins() was given it

  // Also blank ones that have become workers, as long as they may have something to say.
  std::list<Standby> standbys_;
  std::list<Ending> ending_;
};

}  // namespace ddprun::agent
