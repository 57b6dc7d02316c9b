#include "tests/sim/virtual_agent.h"

#include <csignal>

#include "launcher/ctl/core_text.h"

namespace ddprun::sim {

using namespace std::chrono_literals;

namespace {

constexpr auto kFlushLimit = 500ms;    // for its last messages to a remote leader
constexpr int kSlowStorePercent = 15;  // as on a busy node

}  // namespace

VirtualAgent::VirtualAgent(VirtualJob& job, Settings settings, ProcessPtr process)
    : job_(job),
      settings_(std::move(settings)),
      process_(std::move(process)),
      core_(settings_.node),
      workers_(static_cast<std::size_t>(settings_.node.local_world_size)) {}

void VirtualAgent::start(const MakeLeader& make_leader) {
  job_.trace << "agent " << number() << " (slot " << slot() << ") starts\n";
  rdzv::LeaderEvents events;
  events.on_event = [this](rdzv::LeaderEvent event) { hear(std::move(event)); };
  leader_ = make_leader(std::move(events));
  step(agent::LeaderFound{settings_.leads_for_good});
}

void VirtualAgent::hear(rdzv::LeaderEvent event) {
  job_.leader_says(*this, event);
  if (auto* message = std::get_if<rdzv::ToAgent>(&event)) {
    was_welcome_ = true;
    std::visit([&](auto& each) { step(std::move(each)); }, *message);
  } else if (auto* gone = std::get_if<rdzv::LeaderGone>(&event)) {
    if (gone->was_replaced) return step(agent::LeaderReplaced{});
    step(agent::LeaderLost{std::move(gone->sentence), gone->was_reached});
  }
}

void VirtualAgent::signal(bool is_preemption) {
  was_told_to_leave_ = true;
  if (is_preemption) return step(agent::PreemptSignal{SIGUSR1});
  step(agent::StopSignal{SIGTERM});
}

void VirtualAgent::step(const agent::NodeEvent& event) {
  events_.push_back(event);
  if (!is_stepping_) pump();
}

void VirtualAgent::step_after(CoreTime::duration delay, const agent::NodeEvent& event) {
  job_.queue.after(delay, process_, [this, event] { step(event); });
}

// Events that an action causes are handled after the other actions of the same list, as in the
// supervisor.
void VirtualAgent::pump() {
  is_stepping_ = true;
  while (!events_.empty() && !is_stuck_) {
    const agent::NodeEvent event = std::move(events_.front());
    events_.pop_front();
    job_.trace << "agent " << number() << " <- " << agent::in_words(event) << "\n";
    if (ends_step(event)) may_take_next_step_ = true;
    for (const agent::NodeAction& action : core_.step(event)) {
      job_.trace << "    " << agent::in_words(action) << "\n";
      std::visit([&](const auto& each) { perform(each); }, action);
    }
  }
  is_stepping_ = false;
}

void VirtualAgent::perform(const agent::OpenRoundStore& action) {
  facts_->store = action.round;
  facts_->store_port = ++job_.last_port;
  const bool is_slow = job_.random.chance(kSlowStorePercent);
  job_.queue.after(is_slow ? job_.random.time(5ms, 400ms) : job_.random.time(200us, 5ms), process_,
                   [this, round = action.round, port = job_.last_port] {
                     const bool is_open = facts_->store == round && facts_->store_port == port;
                     if (is_open) step(agent::StoreResult{round, port, {}});
                   });
}

void VirtualAgent::perform(const agent::CloseStore& action) {
  require(facts_->store == action.round, "an agent closed another store than it has");
  facts_->store.reset();
  // The supervisor opens a store within the action, so no result comes after this.
  std::erase_if(events_, [&](const agent::NodeEvent& event) {
    const auto* result = std::get_if<agent::StoreResult>(&event);
    return result != nullptr && result->round == action.round;
  });
}

void VirtualAgent::perform(const agent::StartWorkers& action) {
  const rdzv::RoundStart& start = action.start;
  job_.workers_start(*this, start);
  require(facts_->live_workers == 0, "an agent started workers while others of its own lived");
  require(!started_ || (started_->round < start.round && started_->restarts <= start.restarts),
          "an agent's rounds do not go up, or a restart was forgotten");
  started_ = start;
  const GroupKey key = group();
  WorkerGroup& group = job_.groups[key];
  group.world_size = start.world_size;
  for (std::size_t local_rank = 0; local_rank < workers_.size(); ++local_rank) {
    Worker& worker = workers_[local_rank];
    worker.is_alive = true;
    worker.life += 1;
    worker.ignores_term = job_.random.chance(job_.timing.ignores_term_percent);
    facts_->live_workers += 1;
    group.workers.emplace_back(this, static_cast<int>(local_rank));
  }
  if (group.is_broken) return break_group(job_, key);
  if (static_cast<int>(group.workers.size()) < group.world_size) return;
  for (const auto& [peer, local_rank] : group.workers) {
    const auto life = peer->workers_[static_cast<std::size_t>(local_rank)].life;
    job_.queue.after(job_.timing.training + job_.random.time(0us, 30ms),
                     [peer = peer, local_rank = local_rank, life, &group] {
                       if (!group.is_broken)
                         peer->end_worker(local_rank, life, ExitStatus::exited(0));
                     });
  }
}

void VirtualAgent::perform(const agent::SignalWorker& action) {
  const Worker& worker = workers_[static_cast<std::size_t>(action.local_rank)];
  if (action.signal == SIGCONT) return;
  if (action.signal == SIGKILL) {
    end_worker_after(500us, action.local_rank, ExitStatus::killed(SIGKILL));
  } else if (!worker.ignores_term) {
    end_worker_after(job_.random.time(job_.timing.stop_min, job_.timing.stop_max),
                     action.local_rank, ExitStatus::killed(action.signal));
  }
}

void VirtualAgent::perform(const agent::AskToLeave& action) {
  const auto delay = job_.random.time(10ms, 800ms);
  end_worker_after(delay, action.local_rank, ExitStatus::exited(job_.random.chance(50) ? 0 : 1));
}

void VirtualAgent::perform(const agent::ArmTimer& action) {
  timer_ = action.timer;
  step_after(action.after, agent::TimerExpired{action.timer});
}

// The debugger may never finish.
void VirtualAgent::perform(const agent::TakeStacks& action) {
  if (job_.random.chance(20)) return;
  step_after(job_.random.time(1ms, 6s), agent::StacksTaken{action.round});
}

void VirtualAgent::perform(const agent::CloseRound& action) {
  require(facts_->live_workers == 0, "a round was closed over live workers");
  facts_->store.reset();
  step_after(300us, agent::RoundClosed{action.round});
}

void VirtualAgent::perform(const agent::Finish& action) {
  require(!outcome_, "an agent finished twice");
  require(facts_->live_workers == 0, "an agent finished while workers of its own lived");
  outcome_ = action.outcome;
  facts_->is_gone = true;
}

void VirtualAgent::perform(const agent::Join& action) {
  rdzv::NodeHello hello = settings_.hello;
  hello.last_round = action.last_round;
  leader_->join(std::move(hello));
}

bool VirtualAgent::ends_step(const agent::NodeEvent& event) const {
  const auto* taken = std::get_if<agent::StepTaken>(&event);
  const auto* expired = std::get_if<agent::TimerExpired>(&event);
  return (taken != nullptr && taken->step == end_step_) ||
         (expired != nullptr && expired->timer == timer_) ||
         std::holds_alternative<agent::StopSignal>(event) ||
         std::holds_alternative<agent::PreemptSignal>(event);
}

// Readers, file servers and other nodes may take longer than their time limit.
void VirtualAgent::perform(const agent::TakeStep& action) {
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

void VirtualAgent::perform(const agent::Exit&) {
  require(may_take_next_step_, "an agent exits before the last step of its end was taken");
  job_.trace << "agent " << number() << " exits with " << outcome_->exit_code << "\n";
  leader_.reset();  // closes its connections
  process_->when_idle = nullptr;
  process_->is_alive = false;
}

// A remote leader that does not answer is left after a time limit; for a local one, the core has a
// limit.
void VirtualAgent::leave_leader(std::function<void()> done) {
  when_left_ = std::move(done);
  process_->when_idle = [this] {
    if (leader_->may_exit()) left_leader();
  };
  if (leader_->is_here()) return;
  job_.queue.after(kFlushLimit, process_, [this] { left_leader(); });
}

void VirtualAgent::left_leader() {
  process_->when_idle = nullptr;
  if (when_left_) std::exchange(when_left_, nullptr)();
}

// ---- workers

void VirtualAgent::end_worker_after(CoreTime::duration delay, int local_rank, ExitStatus status) {
  const Worker& worker = workers_[static_cast<std::size_t>(local_rank)];
  if (!worker.is_alive) return;
  job_.queue.after(delay, [this, local_rank, life = worker.life, status] {
    end_worker(local_rank, life, status);
  });
}

void VirtualAgent::end_worker(int local_rank, std::uint64_t life, ExitStatus status,
                              bool by_itself) {
  Worker& worker = workers_[static_cast<std::size_t>(local_rank)];
  if (!worker.is_alive || worker.life != life) return;
  worker.is_alive = false;
  facts_->live_workers -= 1;
  job_.trace << "worker " << local_rank << " of agent " << number()
             << " ends: " << status.to_string() << (by_itself ? ", by its own fault" : "") << "\n";
  const GroupKey key = group();
  agent::WorkerEnded ended{started_->round, local_rank, {}};
  job_.worker_ended(key, status, by_itself);
  if (status.is_success()) {
    job_.groups[key].succeeded += 1;
  } else {
    ended.failure.emplace();
    ended.failure->local_rank = local_rank;
    ended.failure->status = status;
    break_group(job_, key);
  }
  step_after(100us, ended);
}

// Gloo's peers throw within 40 ms of a worker's death.
void VirtualAgent::break_group(VirtualJob& job, GroupKey key) {
  WorkerGroup& group = job.groups[key];
  group.is_broken = true;
  for (const auto& [node, local_rank] : group.workers) {
    const Worker& worker = node->workers_[static_cast<std::size_t>(local_rank)];
    if (!worker.is_alive || node->group() != key) continue;
    job.queue.after(job.random.time(5ms, 60ms),
                    [node = node, local_rank = local_rank, life = worker.life] {
                      node->end_worker(local_rank, life, ExitStatus::exited(1));
                    });
  }
}

// ---- faults

void VirtualAgent::kill() {
  died_ = job_.queue.now();
  process_->is_alive = false;
  for (Worker& worker : workers_) worker.is_alive = false;
  facts_->live_workers = 0;
  facts_->is_gone = true;
}

void VirtualAgent::let_peers_notice() {
  if (started_) break_group(job_, group());
}

void VirtualAgent::fail_worker() {
  const int local_rank = job_.random.number(0, static_cast<int>(workers_.size()) - 1);
  const Worker& worker = workers_[static_cast<std::size_t>(local_rank)];
  end_worker(local_rank, worker.life, ExitStatus::exited(3), /*by_itself=*/true);
}

void VirtualAgent::set_stuck(bool is_stuck) {
  is_stuck_ = is_stuck;
  was_stuck_ |= is_stuck;
  if (!is_stuck) pump();
}

// ---- the job

Result VirtualJob::run(CoreTime limit, std::uint64_t events_max) {
  Result result;
  try {
    begin();
    while (queue.run_next() && queue.now() <= limit) {
      require(queue.count() < events_max, "the job goes round in circles");
    }
    trace << "the end is checked\n";
    for (const auto& agent : agents) {
      require(!agent->is_alive(), "an agent has not ended long after all faults");
      require(agent->live_workers() == 0, "workers were left behind");
    }
    check_end();
  } catch (const Violation& violation) {
    result.violation = violation.what();
    trace << "VIOLATION: " << violation.what() << "\n";
  }
  result.trace = trace.text();
  result.events = queue.count();
  agents.clear();  // while what they use is there
  return result;
}

VirtualAgent& VirtualJob::add(VirtualAgent::Settings settings, ProcessPtr process) {
  settings.number = static_cast<int>(agents.size());
  agents.push_back(std::make_unique<VirtualAgent>(*this, std::move(settings), std::move(process)));
  VirtualAgent& agent = *agents.back();
  current[static_cast<std::size_t>(agent.slot())] = &agent;
  return agent;
}

void VirtualJob::kill(VirtualAgent& agent) {
  agent.kill();
  agent.let_peers_notice();
  network.reset_of(agent.process());
}

void VirtualJob::trace_step(int leader, const rdzv::RoundInput& input,
                            const std::vector<rdzv::ToNode>& out) {
  trace << "leader " << leader << " <- " << agent::in_words(input) << "\n";
  for (const rdzv::ToNode& each : out) trace << "    " << agent::in_words(each) << "\n";
}

std::string host_of(int number) {
  return "10.0." + std::to_string(number / 200) + "." + std::to_string(number % 200 + 1);
}

}  // namespace ddprun::sim
