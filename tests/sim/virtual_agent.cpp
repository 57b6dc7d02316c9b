#include "tests/sim/virtual_agent.h"

#include <csignal>
#include <utility>

namespace ddprun::sim {

using namespace std::chrono_literals;

namespace {

constexpr auto kFlushLimit = 500ms;  // for its last messages to a remote leader

}  // namespace

VirtualAgent::VirtualAgent(VirtualJob& job, Settings settings, ProcessPtr process, Hooks hooks)
    : job_(job),
      settings_(std::move(settings)),
      hooks_(std::move(hooks)),
      node_(job, settings_.number, settings_.node, std::move(process),
            {.tell_leader = [this](const rdzv::ToLeader& message) { leader_->tell(message); },
             .join = [this](std::optional<rdzv::LastRound> last) { join(last); },
             .leave_leader = [this](std::function<void()> done) { leave_leader(std::move(done)); },
             .exit = [this] { exit(); },
             .workers_start = hooks_.workers_start,
             .worker_ended = hooks_.worker_ended}) {}

void VirtualAgent::start(const MakeLeader& make_leader) {
  job_.trace << "agent " << number() << " (slot " << slot() << ") starts\n";
  rdzv::LeaderEvents events;
  events.on_event = [this](rdzv::LeaderEvent event) { hear(std::move(event)); };
  leader_ = make_leader(std::move(events));
  node_.step(agent::LeaderFound{settings_.leads_for_good});
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

// A remote leader that does not answer is left after a time limit; for a local one, the core has a
// limit.
void VirtualAgent::leave_leader(std::function<void()> done) {
  when_left_ = std::move(done);
  node_.process()->when_idle = [this] {
    if (leader_->may_exit()) left_leader();
  };
  if (leader_->is_here()) return;
  job_.queue.after(kFlushLimit, node_.process(), [this] { left_leader(); });
}

void VirtualAgent::left_leader() {
  node_.process()->when_idle = nullptr;
  if (when_left_) std::exchange(when_left_, nullptr)();
}

void VirtualAgent::exit() {
  job_.trace << "agent " << number() << " exits with " << node_.outcome()->exit_code << "\n";
  leader_.reset();  // closes its connections
  node_.process()->when_idle = nullptr;
  node_.process()->is_alive = false;
}

}  // namespace ddprun::sim
