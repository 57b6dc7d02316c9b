// A simulated agent in virtual time: a process with the production NodeCore, models of its
// surroundings (workers, timers, the round's store), and its Leader, a production shell over a
// virtual transport, connected as the supervisor's LeaderPort does it. The only place in the
// simulator that drives a NodeCore.
//
// Do not make decisions of the NodeCore in here, because the production supervisor would then need
// the same code, untested.
#pragma once

#include <csignal>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "agent/core/node_core.h"
#include "launcher/ctl/core_text.h"
#include "rendezvous/leader/leader.h"
#include "tests/sim/invariants.h"
#include "tests/sim/virtual_job.h"
#include "tests/sim/virtual_workers.h"

namespace ddprun::sim {

using namespace std::chrono_literals;

class VirtualAgent {
 public:
  VirtualAgent(VirtualJob& job, AgentSettings settings, ProcessPtr process)
      : job_(job),
        settings_(std::move(settings)),
        process_(std::move(process)),
        core_(settings_.node),
        workers_(job,
                 {settings_.number, process_, facts_,
                  [this](const agent::NodeEvent& event) { step(event); },
                  [this] { return core_.is_running(); }},
                 settings_.node.local_world_size) {}

  // Creates its leader and joins it.
  void start(const std::function<std::unique_ptr<rdzv::Leader>(rdzv::LeaderEvents)>& make_leader) {
    job_.trace("agent ", number(), " (slot ", slot(), ") starts");
    rdzv::LeaderEvents events;
    events.on_event = [this](rdzv::LeaderEvent event) { hear(std::move(event)); };
    leader_ = make_leader(std::move(events));
    step(agent::LeaderFound{settings_.leads_for_good});
  }

  // SIGTERM or SIGUSR1.
  void signal(bool is_preemption) {
    was_told_to_leave_ = true;
    facts_->is_leaving = true;
    if (is_preemption) return step(agent::PreemptSignal{SIGUSR1});
    step(agent::StopSignal{SIGTERM});
  }
  void say(const rdzv::ToLeader& message) { leader_->tell(message); }  // ddpctl

  // ---- faults

  // Its keeper ends its workers at the same time.
  void kill() {
    died_ = job_.queue.now();
    process_->is_alive = false;
    workers_.kill_all();
    facts_->is_gone = true;
  }
  void let_peers_notice() { workers_.let_peers_notice(); }
  void fail_worker() { workers_.fail_one(); }
  // While stuck, it handles no messages.
  void set_stuck(bool is_stuck) {
    is_stuck_ = is_stuck;
    was_stuck_ |= is_stuck;
    if (!is_stuck) pump();
  }

  int number() const { return settings_.number; }
  int slot() const { return settings_.slot; }
  const ProcessPtr& process() const { return process_; }
  bool is_alive() const { return process_->is_alive; }
  rdzv::Leader& leader() { return *leader_; }
  Round round() const { return core_.round(); }
  int live_workers() const { return facts_->live_workers; }
  const std::optional<rdzv::JobOutcome>& outcome() const { return outcome_; }
  const std::shared_ptr<Invariants::Facts>& facts() const { return facts_; }
  bool was_told_to_leave() const { return was_told_to_leave_; }
  bool was_welcome() const { return was_welcome_; }  // whether a leader has sent it a message
  bool was_stuck() const { return was_stuck_; }
  std::optional<CoreTime> died() const { return died_; }

 private:
  static constexpr auto kFlushLimit = 500ms;    // for its last messages to a remote leader
  static constexpr int kSlowStorePercent = 15;  // as on a busy node

  void hear(rdzv::LeaderEvent event) {
    job_.leader_says(*this, event);
    if (auto* message = std::get_if<rdzv::ToAgent>(&event)) {
      was_welcome_ = true;
      const auto* replace = std::get_if<rdzv::ReplaceWorker>(message);
      if (replace != nullptr && started_ && replace->round == started_->round) {
        started_->restarts = replace->restarts;
      }
      std::visit([&](auto& each) { step(std::move(each)); }, *message);
    } else if (auto* gone = std::get_if<rdzv::LeaderGone>(&event)) {
      if (gone->was_replaced) return step(agent::LeaderReplaced{});
      step(agent::LeaderLost{std::move(gone->sentence), gone->was_reached});
    }
  }

  void step(const agent::NodeEvent& event) {
    events_.push_back(event);
    if (!is_stepping_) pump();
  }

  void step_after(CoreTime::duration delay, const agent::NodeEvent& event) {
    job_.queue.after(delay, process_, [this, event] { step(event); });
  }

  // Events that an action causes are handled after the other actions of the same list, as in the
  // supervisor.
  void pump() {
    is_stepping_ = true;
    while (!events_.empty() && !is_stuck_) {
      const agent::NodeEvent event = std::move(events_.front());
      events_.pop_front();
      job_.trace("agent ", number(), " <- ", [&] { return agent::in_words(event); });
      if (ends_step(event)) may_take_next_step_ = true;
      require(!is_told_late(event), "workers are stopped for a failure that they were not told of");
      for (const agent::NodeAction& action : core_.step(event)) {
        job_.trace("    ", [&] { return agent::in_words(action); });
        std::visit([&](const auto& each) { perform(each); }, action);
      }
    }
    is_stepping_ = false;
  }

  void perform(const agent::OpenRoundStore& action) {
    facts_->store = action.round;
    facts_->store_port = ++job_.last_port;
    const bool is_slow = job_.random.chance(kSlowStorePercent);
    job_.queue.after(is_slow ? job_.random.time(5ms, 400ms) : job_.random.time(200us, 5ms),
                     process_, [this, round = action.round, port = job_.last_port] {
                       const bool is_open = facts_->store == round && facts_->store_port == port;
                       if (is_open) step(agent::StoreResult{round, port, {}});
                     });
  }

  void perform(const agent::CloseStore& action) {
    require(facts_->store == action.round, "an agent closed another store than it has");
    facts_->store.reset();
    // The supervisor opens a store within the action, so no result comes after this.
    std::erase_if(events_, [&](const agent::NodeEvent& event) {
      const auto* result = std::get_if<agent::StoreResult>(&event);
      return result != nullptr && result->round == action.round;
    });
  }

  void perform(const agent::StartWorkers& action) {
    const rdzv::RoundStart& start = action.start;
    require(facts_->live_workers == 0, "an agent started workers while others of its own lived");
    job_.workers_start(*this, start);
    const bool may_count_less = settings_.hello.restart_window.count() > 0;
    require(!started_ || (started_->round < start.round &&
                          (may_count_less || started_->restarts <= start.restarts)),
            "an agent's rounds do not go up, or a restart was forgotten");
    started_ = start;
    undecided_ = 0;
    facts_->generation = 0;
    workers_.start(start);
    step_after(1s, agent::StartIsLate{start.round});
  }

  void perform(const agent::ShowStarting& action) {
    require(!action.local_ranks.empty(), "no worker is late");
    step_after(1s, agent::StartIsLate{action.round});
  }

  void perform(const agent::SignalWorker& action) {
    require(undecided_ == 0, "workers are stopped, and were not told that one of them is dead");
    workers_.signal(action.local_rank, action.signal);
  }

  void perform(const agent::AskToLeave& action) { workers_.ask_to_leave(action.local_rank); }
  void perform(const agent::HoldWorkers& action) {
    using Until = rdzv::HoldSteps::Until;
    if (action.until == Until::kNow) return workers_.go_on();
    action.until == Until::kRoundStop ? workers_.hold_to_stop() : workers_.hold();
  }
  void perform(const agent::ParkWorkers& action) { workers_.park(action.after_step); }
  void perform(const agent::LetWorkersLeave& action) { workers_.let_leave(action.boundary); }

  void perform(const agent::TellGroupBroken& action) {
    require(started_ && action.round == started_->round && action.rank >= 0 &&
                action.rank < started_->world_size,
            "workers are told of a rank that their round does not have");
    told_broken_ = action.round;
    undecided_ = 0;
    workers_.tell_group_broken();
  }

  void perform(const agent::Replace& action) {
    require(started_ && action.round == started_->round && action.rank >= 0 &&
                action.rank < started_->world_size,
            "a rank is replaced that the round does not have");
    if (action.local_rank) undecided_ -= 1;
    workers_.replace(action);
    step_after(10s, agent::RegroupIsLate{action.round, action.generation});
  }

  void perform(const agent::ShowLate& action) {
    require(!action.local_ranks.empty(), "nobody is late");
  }

  void perform(const agent::ArmTimer& action) {
    timer_ = action.timer;
    step_after(action.after, agent::TimerExpired{action.timer});
  }

  void perform(const agent::GraceOver&) {}
  void perform(const agent::WaitForSaving& action) {
    require(!action.local_ranks.empty() && action.left > 0ms, "no worker is waited for");
  }
  // Workers save, compute and enter collectives as they like.
  void perform(const agent::LookAtWorkers& action) {
    std::vector<agent::WorkerSeen> seen(static_cast<std::size_t>(settings_.node.local_world_size));
    for (agent::WorkerSeen& worker : seen) {
      worker.handles_stop = job_.random.chance(50);
      worker.has_gpu = job_.random.chance(20);
      worker.has_record = job_.random.chance(80);
      worker.leaves = workers_.leaves(static_cast<int>(&worker - seen.data()));
      if (job_.random.chance(30)) {
        worker.in_call = std::chrono::ceil<std::chrono::milliseconds>(job_.random.time(0ms, 8s));
      }
    }
    step_after(0ms, agent::WorkersSeen{action.round, std::move(seen)});
  }
  void perform(const agent::Announce&) {}
  void perform(const agent::TellLeader& action) {
    if (std::holds_alternative<rdzv::WorkerReplaceable>(action.message)) undecided_ += 1;
    leader_->tell(action.message);
  }

  // The debugger may never finish.
  void perform(const agent::TakeStacks& action) {
    if (job_.random.chance(20)) return;
    step_after(job_.random.time(1ms, 6s), agent::StacksTaken{action.round});
  }

  void perform(const agent::CloseRound& action) {
    require(facts_->live_workers == 0, "a round was closed over live workers");
    facts_->store.reset();
    step_after(300us, agent::RoundClosed{action.round});
  }

  void perform(const agent::Finish& action) {
    require(!outcome_, "an agent finished twice");
    require(facts_->live_workers == 0, "an agent finished while workers of its own lived");
    outcome_ = action.outcome;
    facts_->is_gone = true;
  }

  void perform(const agent::Join& action) {
    rdzv::NodeHello hello = settings_.hello;
    hello.last_round = action.last_round;
    leader_->join(std::move(hello));
  }

  // They may wait for the one that is gone, in calls that only such a word ends (NCCL).
  bool is_told_late(const agent::NodeEvent& event) const {
    const auto* stop = std::get_if<rdzv::RoundStop>(&event);
    return stop != nullptr && stop->why == rdzv::RoundStop::Why::kFailure && core_.is_running() &&
           stop->round == core_.round() && facts_->live_workers > 0 && told_broken_ != stop->round;
  }

  bool ends_step(const agent::NodeEvent& event) const {
    const auto* taken = std::get_if<agent::StepTaken>(&event);
    const auto* expired = std::get_if<agent::TimerExpired>(&event);
    return (taken != nullptr && taken->step == end_step_) ||
           (expired != nullptr && expired->timer == timer_) ||
           std::holds_alternative<agent::StopSignal>(event) ||
           std::holds_alternative<agent::PreemptSignal>(event);
  }

  // Readers, file servers and other nodes may take longer than their time limit.
  void perform(const agent::TakeStep& action) {
    require(std::exchange(may_take_next_step_, false),
            "a step of the end was begun before the one before it was taken");
    end_step_ = action.step;
    const auto taken = [this, step = action.step] { this->step(agent::StepTaken{step}); };
    if (action.step == agent::EndStep::kLeader) return leave_leader(taken);
    const bool has_limit =
        action.step != agent::EndStep::kOutput && action.step != agent::EndStep::kConsole;
    const bool is_late = has_limit && job_.random.chance(5);
    const auto delay = is_late ? job_.random.time(400ms, 8s) : job_.random.time(0us, 20ms);
    job_.queue.after(delay, process_, taken);
  }

  void perform(const agent::Exit&) {
    require(may_take_next_step_, "an agent exits before the last step of its end was taken");
    job_.trace("agent ", number(), " exits with ", outcome_->exit_code);
    leader_.reset();  // closes its connections
    process_->when_idle = nullptr;
    process_->is_alive = false;
  }

  // A remote leader that does not answer is left after a time limit; for a local one, the core has a
  // limit.
  void leave_leader(std::function<void()> done) {
    when_left_ = std::move(done);
    process_->when_idle = [this] {
      if (leader_->may_exit()) left_leader();
    };
    if (leader_->is_here()) return;
    job_.queue.after(kFlushLimit, process_, [this] { left_leader(); });
  }

  void left_leader() {
    process_->when_idle = nullptr;
    if (when_left_) std::exchange(when_left_, nullptr)();
  }

  VirtualJob& job_;
  const AgentSettings settings_;
  const ProcessPtr process_;
  std::function<void()> when_left_;  // set while the node leaves its leader at the end
  bool was_told_to_leave_ = false;
  bool was_welcome_ = false;
  agent::NodeCore core_;
  std::shared_ptr<Invariants::Facts> facts_ = std::make_shared<Invariants::Facts>();
  VirtualWorkers workers_;
  agent::TimerId timer_{};                   // the one armed last
  std::optional<rdzv::RoundStart> started_;  // the last round
  std::optional<Round> told_broken_;         // the last one whose workers were told so
  int undecided_ = 0;                        // dead workers of which the leader was told alone
  std::optional<rdzv::JobOutcome> outcome_;
  std::optional<agent::EndStep> end_step_;  // the one begun last
  // That step is done, its time limit has passed, or a signal came.
  bool may_take_next_step_ = true;
  std::deque<agent::NodeEvent> events_;  // not handled yet
  bool is_stepping_ = false;
  bool is_stuck_ = false;
  bool was_stuck_ = false;
  std::optional<CoreTime> died_;
  std::unique_ptr<rdzv::Leader> leader_;
};

}  // namespace ddprun::sim
