#include "rendezvous/round_core.h"

#include "rendezvous/base/exit_codes.h"

namespace ddprun::rdzv {
namespace {

// The round that a message speaks of, where it speaks of one.
template <typename Message>
std::optional<Round> round_of(const Message& message) {
  if constexpr (requires { message.round; }) {
    return message.round;
  } else {
    return std::nullopt;
  }
}

int role_world_size(const std::map<NodeId, NodeHello>& nodes, const std::string& role) {
  int size = 0;
  for (const auto& [id, hello] : nodes) {
    if (hello.role == role) size += hello.local_world_size;
  }
  return size;
}

}  // namespace

std::vector<ToNode> RoundCore::step(NodeId from, const ToLeader& message) {
  Out out;
  if (is_stale(message)) return out;
  std::visit([&](const auto& event) { on(out, from, event); }, message);
  return out;
}

bool RoundCore::is_stale(const ToLeader& message) const {
  const auto round = std::visit([](const auto& event) { return round_of(event); }, message);
  return round.has_value() && *round != round_;
}

void RoundCore::on(Out& out, NodeId from, const NodeHello& hello) {
  if (const auto* ended = std::get_if<Ended>(&state_)) {
    out.push_back({from, JobEnd{ended->outcome}});
    return;
  }
  if (!std::holds_alternative<Gathering>(state_)) return;
  nodes_.emplace(from, hello);
  if (static_cast<int>(nodes_.size()) == config_.node_count) open_round(out, {});
}

void RoundCore::on(Out& out, NodeId, const StoreOpened& opened) {
  const auto* opening = std::get_if<Opening>(&state_);
  if (opening == nullptr) return;
  RoundStart start;
  start.after_failure = opening->after_failure;
  start.restarts = restarts_;
  start.max_restarts = config_.max_restarts;
  start.round = round_;
  start.node_count = static_cast<int>(nodes_.size());
  start.master_addr = nodes_.begin()->second.address;
  start.master_port = opened.port;
  start.world_size = 0;
  for (const auto& [id, hello] : nodes_) start.world_size += hello.local_world_size;
  std::map<std::string, int> role_ranks;
  for (const auto& [id, hello] : nodes_) {
    start.role_rank_offset = role_ranks[hello.role];
    start.role_world_size = role_world_size(nodes_, hello.role);
    out.push_back({id, start});
    start.node_rank += 1;
    start.rank_offset += hello.local_world_size;
    role_ranks[hello.role] += hello.local_world_size;
  }
  state_ = Running{};
}

void RoundCore::on(Out& out, NodeId, const StoreNotOpened& refused) {
  if (!std::holds_alternative<Opening>(state_)) return;
  JobOutcome outcome;
  outcome.kind = JobOutcome::Kind::kCannotRun;
  outcome.sentence = refused.why;
  end(out, std::move(outcome));
}

void RoundCore::on(Out& out, NodeId from, const WorkerFailed& failed) {
  if (auto* stopping = std::get_if<Stopping>(&state_)) {
    stopping->consequences.push_back(failed.failure);
  } else if (std::holds_alternative<Running>(state_)) {
    Stopping next_state;
    next_state.cause = failed.failure;
    next_state.cause_node = from;
    stop_round(out, std::move(next_state));
  }
}

void RoundCore::on(Out& out, NodeId from, const WorkersDone&) {
  auto* running = std::get_if<Running>(&state_);
  if (running == nullptr) return;
  running->done.insert(from);
  if (running->done.size() == nodes_.size()) end(out, JobOutcome{});
}

void RoundCore::on(Out& out, NodeId from, const RoundStopped& stopped) {
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping == nullptr || stopping->awaited.erase(from) == 0) return;
  stopping->consequences.insert(stopping->consequences.end(), stopped.failures.begin(),
                                stopped.failures.end());
  if (stopping->awaited.empty()) settle(out, std::move(*stopping));
}

void RoundCore::on(Out& out, NodeId from, const NodeLeaving& leaving) {
  if (auto* stopping = std::get_if<Stopping>(&state_)) {
    if (stopping->leave) return;
    stopping->leave = leaving;
    stopping->failed_before_leave = stopping->cause && stopping->cause_node == from;
  } else if (std::holds_alternative<Running>(state_)) {
    Stopping next_state;
    next_state.leave = leaving;
    stop_round(out, std::move(next_state));
  } else if (!has_ended()) {
    Stopping nothing_to_stop;
    nothing_to_stop.leave = leaving;
    settle(out, std::move(nothing_to_stop));
  }
}

void RoundCore::on(Out& out, NodeId, const NodeStuck& stuck) {
  if (has_ended()) return;
  JobOutcome outcome;
  outcome.kind = JobOutcome::Kind::kCannotRun;
  outcome.exit_code = kExitWorkerStuck;
  outcome.sentence = stuck.sentence;
  if (auto* stopping = std::get_if<Stopping>(&state_)) {
    outcome.cause = std::move(stopping->cause);
    outcome.consequences = std::move(stopping->consequences);
  }
  end(out, std::move(outcome));
}

void RoundCore::open_round(Out& out, std::optional<WorkerFailure> after_failure) {
  state_ = Opening{std::move(after_failure)};
  out.push_back({nodes_.begin()->first, OpenStore{round_}});
}

void RoundCore::stop_round(Out& out, Stopping stopping) {
  for (const auto& [id, hello] : nodes_) {
    stopping.awaited.insert(id);
    out.push_back({id, RoundStop{round_}});
  }
  state_ = std::move(stopping);
}

void RoundCore::settle(Out& out, Stopping stopping) {
  JobOutcome outcome;
  outcome.cause = std::move(stopping.cause);
  outcome.consequences = std::move(stopping.consequences);
  const bool can_restart =
      outcome.cause && outcome.cause->is_worth_a_retry && restarts_ < config_.max_restarts;
  if (stopping.leave && (can_restart || !stopping.failed_before_leave)) {
    outcome.kind = JobOutcome::Kind::kStopped;
    outcome.stop_signal = stopping.leave->signal;
    outcome.exit_code = stopping.leave->is_preemption ? kExitPreempted : 128 + outcome.stop_signal;
    end(out, std::move(outcome));
  } else if (can_restart) {
    restarts_ += 1;
    round_ = next(round_);
    open_round(out, std::move(outcome.cause));
  } else {
    outcome.kind = JobOutcome::Kind::kFailed;
    outcome.exit_code = outcome.cause->status.as_shell_code();
    end(out, std::move(outcome));
  }
}

void RoundCore::end(Out& out, JobOutcome outcome) {
  outcome.restarts = restarts_;
  outcome.last_round = round_;
  if (outcome.kind == JobOutcome::Kind::kCannotRun && outcome.exit_code == 0) {
    outcome.exit_code = kExitCannotRun;
  }
  for (const auto& [id, hello] : nodes_) out.push_back({id, JobEnd{outcome}});
  state_ = Ended{std::move(outcome)};
}

}  // namespace ddprun::rdzv
