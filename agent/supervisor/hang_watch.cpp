#include "agent/supervisor/hang_watch.h"

#include <algorithm>
#include <utility>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr auto kEvery = 1s;
constexpr auto kLate =
    200ms;  // later than that, this agent was stopped, or the machine is very busy

bool has_waited(const NodeStatus& node, std::chrono::nanoseconds patience) {
  return std::ranges::any_of(node.workers, [patience](const WorkerStatus& worker) {
    return worker.state == WorkerState::kRunning &&
           std::ranges::any_of(worker.calls, [patience](const GroupCalls& group) {
             return group.at && !group.at->is_over && group.at->since > patience;
           });
  });
}

}  // namespace

HangWatch::HangWatch(boost::asio::io_context& io, Hooks hooks)
    : hooks_(std::move(hooks)), timer_(io) {}

void HangWatch::round_began() {
  steps_ = {};
  gap_ = {};
  told_.reset();
  told_hung_.reset();
  look_later();
}

void HangWatch::look_later() {
  due_ = Clock::now() + kEvery;
  timer_.arm_at(due_, [this] { look(); });
}

std::chrono::nanoseconds HangWatch::patience() const { return steps_.patience() + gap_; }

void HangWatch::look() {
  const int world_size = hooks_.world_size();
  if (world_size == 0) return;
  const auto now = Clock::now();
  if (now > due_ + kLate) gap_ += now - due_;
  look_later();
  const NodeStatus node = hooks_.node();
  for (const WorkerStatus& worker : node.workers) {
    const auto& progress = worker.progress;
    if (!progress || !progress->step) continue;
    steps_.stepped(worker.rank, *progress->step,
                   now - std::chrono::duration_cast<Clock::duration>(progress->since_step));
  }
  if (!has_waited(node, patience())) {
    if (!has_waited(node, steps_.patience())) gap_ = {};
    told_.reset();
    told_hung_.reset();
    return;
  }
  if (std::cmp_equal(node.workers.size(), world_size)) {
    JobStatus alone;
    alone.nodes.push_back(node);
    return judge(alone);
  }
  hooks_.job(lifetime_.guard([this, node_rank = node.node_rank](const JobStatus& status) {
    const auto first = std::ranges::find_if(
        status.nodes, [this](const NodeStatus& each) { return has_waited(each, patience()); });
    if (first != status.nodes.end() && first->node_rank == node_rank) judge(status);
  }));
}

void HangWatch::judge(const JobStatus& status) {
  const int world_size = hooks_.world_size();
  if (world_size == 0) return;
  const auto found = rdzv::find_hangs(calls_of(status), world_size, patience());
  if (!found.waits.empty() && !(told_ && told_->is_same(found.waits[0]))) {
    told_ = found.waits[0];
    hooks_.waits(*told_);
  }
  if (!found.hung.empty() && !(told_hung_ && told_hung_->is_same(found.hung[0]))) {
    told_hung_ = found.hung[0];
    hooks_.hung(*told_hung_);
  }
}

}  // namespace ddprun::agent
