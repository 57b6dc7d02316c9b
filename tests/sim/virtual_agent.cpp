#include "tests/sim/virtual_agent.h"

#include <csignal>
#include <utility>

namespace ddprun::sim {

using namespace std::chrono_literals;

namespace {

constexpr auto kFlushLimit = 500ms;  // for its last words to a leader elsewhere

}  // namespace

VirtualAgent::VirtualAgent(VirtualJob& job, Settings settings, ProcessPtr process, Hooks hooks)
    : job_(job),
      settings_(std::move(settings)),
      hooks_(std::move(hooks)),
      node_(job, settings_.number, settings_.node, std::move(process),
            {.tell_leader = [this](const rdzv::ToLeader& message) { leader_->tell(message); },
             .rejoin = [this](std::optional<rdzv::LastRound> last) { join(last); },
             .finished = [this] { finish(); },
             .workers_start = hooks_.workers_start,
             .worker_ended = hooks_.worker_ended}) {}

void VirtualAgent::start(const MakeLeader& make_leader) {
  job_.trace << "agent " << number() << " (slot " << slot() << ") starts\n";
  rdzv::LeaderEvents events;
  events.on_event = [this](rdzv::LeaderEvent event) { hear(std::move(event)); };
  leader_ = make_leader(std::move(events));
  join(std::nullopt);
}

void VirtualAgent::join(std::optional<rdzv::LastRound> last_round) {
  rdzv::NodeHello hello = settings_.hello;
  hello.last_round = last_round;
  leader_->join(std::move(hello));
}

void VirtualAgent::hear(rdzv::LeaderEvent event) {
  hooks_.leader_says(event);
  if (auto* message = std::get_if<rdzv::ToAgent>(&event)) {
    was_welcome_ = true;
    std::visit([&](auto& each) { node_.step(std::move(each)); }, *message);
  } else if (auto* gone = std::get_if<rdzv::LeaderGone>(&event)) {
    if (gone->was_replaced) return node_.step(agent::LeaderReplaced{});
    node_.step(agent::LeaderLost{std::move(gone->sentence), gone->was_reached});
  }
}

void VirtualAgent::signal(bool is_preemption) {
  was_told_to_leave_ = true;
  if (is_preemption) return node_.step(agent::PreemptSignal{SIGUSR1});
  node_.step(agent::StopSignal{SIGTERM});
}

// It stays as long as others need its leader, or its last words are under way; within limits.
void VirtualAgent::finish() {
  const auto& process = node_.process();
  process->when_idle = [this] {
    if (leader_->may_exit()) exit();
  };
  const auto& keep_alive = settings_.keep_alive;
  const CoreTime::duration patience =
      leader_->is_here() ? keep_alive.timeout() + 2 * keep_alive.interval : kFlushLimit;
  job_.queue.after(patience, process, [this] { exit(); });
}

void VirtualAgent::exit() {
  job_.trace << "agent " << number() << " exits with " << node_.outcome()->exit_code << "\n";
  leader_.reset();  // closes its connections
  node_.process()->when_idle = nullptr;
  node_.process()->is_alive = false;
}

}  // namespace ddprun::sim
