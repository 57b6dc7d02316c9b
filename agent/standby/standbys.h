// The standbys of this node: performs what standby::Core decides. Makes the zygote, has it fork, and
// gives ranks to the processes that wait. Owned by the WorkerGroup; event loop only. No error here
// stops the job: a worker for whom there is no standby is started by exec.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <cstddef>
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
#include "agent/standby/channel.h"
#include "agent/standby/loaded_files.h"
#include "agent/status/node_status.h"
#include "rendezvous/common/loop/blocking_calls.h"
#include "rendezvous/common/loop/run_to_completion.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

class Standbys {
 public:
  struct Hooks {
    // Of the keeper, from 0; null: there is no keeper.
    std::function<std::atomic<pid_t>*(std::size_t)> keeper_slot;
    std::function<rdzv::UniqueFd()> next_control_group;  // as ChildReaper's
    // As every worker gets them; null: none does.
    std::function<void(ProcessSpec&, ChildEnvironment&)> add_python_hooks;
    std::function<bool()> are_workers_starting;  // as standby::TimerFired has it
    // A worker whose program has said that it can be a zygote; 0: there is none.
    std::function<pid_t()> worker_like_a_zygote;
    std::function<void()> reaped;  // a child of this object was reaped
    std::function<void(std::string_view sentence, bool is_bad)> tell;
  };

  Standbys(boost::asio::io_context& io, const Job& job, std::string agent_id, Hooks hooks);
  ~Standbys();

  // How many slots of the keeper they need, prepared ones included.
  static std::size_t slots(const Job& job);

  // For the first worker of a round, before take(): where its hooks for Python tell how long its imports took.
  void add_imports_file(ProcessSpec& spec) const;
  // The worker that `spec` describes, in a process that has waited for it; null: none waits. Its
  // path and arguments are those of the job, and one that waits for a debugger is started by exec.
  std::unique_ptr<WorkerProcess> take(const ProcessSpec& spec, WorkerProcess::OnEnd on_end);

  // Before the workers of a round are started: calls `ready`, at once or later, when those that are to come
  // from standbys can. One at a time.
  void round_begins(std::function<void()> ready);
  void do_not_begin() { ready_ = nullptr; }
  void round_runs() { post(standby::RoundRuns{}); }
  void workers_step() { post(standby::WorkersStep{}); }
  void job_is_over();

  // Of the keeper, for a prepared standby, too; null: none is free, or there is no keeper.
  std::atomic<pid_t>* free_slot() const;
  bool is_one_coming() const { return core_.is_one_coming(); }
  bool owns(pid_t child) const;
  std::optional<StandbyStatus> status() const;  // none: nobody has asked for any

 private:
  // A process whose end may get another meaning.
  struct Child {
    std::unique_ptr<WorkerProcess> process;
    std::shared_ptr<WorkerProcess::OnEnd> on_end = std::make_shared<WorkerProcess::OnEnd>();
    WorkerProcess::OnEnd teller() const {
      return [on_end = on_end](ExitStatus status) { (*on_end)(status); };
    }
  };
  struct Standby {
    enum class State { kComing, kWaiting, kWorker };
    State state = State::kComing;
    std::unique_ptr<Channel> channel;
    Child child;  // of one that waits
  };

  void perform(const standby::ArmTimer& action);
  void perform(const standby::DisarmTimer&) { timer_.cancel(); }
  void perform(const standby::StartTrial&) { start_zygote(/*is_trial=*/true); }
  void perform(const standby::StartZygote&) { start_zygote(/*is_trial=*/false); }
  void perform(const standby::LoadModules& action);
  void perform(const standby::ForkStandby&);
  void perform(const standby::EndZygote&);
  void perform(const standby::EndStandbys&);
  void perform(const standby::Tell& action) { hooks_.tell(action.sentence, action.is_bad); }
  void post(standby::Event event);
  void step(const standby::Event& event);
  void start_when_ready();
  void on_timer(const std::string& why_program_is_none);

  void start_zygote(bool is_trial);
  Result<void> try_to_start_zygote();
  Result<void> hold_python(ProcessSpec& spec, ChildEnvironment& environment);
  void on_ready(std::vector<std::string> lines);
  void on_zygote_end(standby::Event how);
  void on_message_of_zygote(const zygote::Header& header, std::string_view text);
  Result<void> ask_for_standby();
  void on_message_of(Standby& standby, const zygote::Header& header, std::string_view text);
  Result<void> on_hello_of(Standby& standby, const zygote::Header& header);
  void on_closed(Standby& standby);
  void lose(Standby& standby);
  std::vector<ImportTime> repeated_imports() const;
  void look_at_program();
  std::function<std::string()> why_program_is_none() const;
  bool become(Standby& standby, const ProcessSpec& spec);
  void forget(const Standby& standby);
  void kill(Child child);

  boost::asio::io_context& io_;
  const Job& job_;
  const std::string agent_id_;
  const Hooks hooks_;
  standby::Core core_;
  Timer timer_;
  rdzv::UniqueFd archive_;
  rdzv::UniqueFd imports_file_;               // the first worker writes it
  std::vector<std::string> loaded_packages_;  // by the zygote
  std::function<void()> ready_;               // round_begins() was given it

  RunToCompletion<standby::Event> events_;

  std::unique_ptr<Channel> zygote_channel_;
  Child zygote_;
  bool is_trial_ = false;
  LoadedFiles loaded_;       // what a program that is its own zygote has loaded
  bool is_looking_ = false;  // whether it has changed, before a round
  BlockingCalls calls_;      // these files may be on a file server
  // Also those that have become workers, as long as they may have something to say.
  std::list<Standby> standbys_;
  std::list<std::unique_ptr<WorkerProcess>> ending_;  // killed, until they are reaped
};

}  // namespace ddprun::agent
