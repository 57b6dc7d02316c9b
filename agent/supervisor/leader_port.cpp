#include "agent/supervisor/leader_port.h"

#include <utility>
#include <variant>

#include "agent/core/leader_config.h"
#include "rendezvous/common/exit_codes.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kFlushLimit =
    500ms;  // for the last messages to a leader on another node

// With etcd another node becomes the leader when this one leaves.
bool is_elected(const Job& job) {
  return job.nodes.leader.where == rdzv::LeaderSpec::Where::kElected;
}

int exit_code_of(const Error& error) {
  if (error.code == ErrorCode::kTimeout) return kExitRendezvousTimeout;  // name not resolved
  return error.code == ErrorCode::kInvalidArgument ? kExitUsage : kExitCannotRun;
}

}  // namespace

LeaderPort::LeaderPort(boost::asio::io_context& io, const Job& job, std::string host, Log log,
                       JobQuery& query, RoundStore& store, Post post)
    : io_(io),
      job_(job),
      host_(std::move(host)),
      log_(std::move(log)),
      query_(query),
      store_(store),
      post_(std::move(post)),
      leave_timer_(io) {}

void LeaderPort::find(CoreRecorder* recorder) {
  search_ = rdzv::find_leader(io_, job_.nodes.leader, leader_config(job_), events(recorder),
                              [this](Result<rdzv::FoundLeader> found) { take(std::move(found)); });
}

void LeaderPort::take(Result<rdzv::FoundLeader> found) {
  if (!found) return post_(CannotRun{exit_code_of(found.error()), found.error().to_string()});
  leader_ = std::move(*found);
  post_(LeaderFound{leader_->is_here() && !is_elected(job_)});
}

void LeaderPort::join(std::optional<rdzv::LastRound> after) {
  rdzv::NodeHello hello = hello_of(job_, host_, leader_->is_here() && !is_elected(job_));
  hello.last_round = after;
  leader_->join(std::move(hello));
}

void LeaderPort::leave(std::function<void()> done) {
  when_left_ = std::move(done);
  if (!is_here()) {
    leave_timer_.arm(kFlushLimit, [this] {
      if (when_left_) std::exchange(when_left_, nullptr)();
    });
  }
  look();
}

rdzv::LeaderEvents LeaderPort::events(CoreRecorder* recorder) {
  rdzv::LeaderEvents events;
  events.on_event = [this](rdzv::LeaderEvent event) {
    std::visit([this](auto& each) { on(std::move(each)); }, event);
  };
  events.takes_store_clients = job_.nodes.shares_store_port;
  if (recorder == nullptr) return events;
  events.on_core_began = [recorder](const rdzv::RoundConfig& config,
                                    const rdzv::Resumption* resumed) {
    recorder->note(RoundBegan{config, resumed ? std::optional(*resumed) : std::nullopt});
  };
  events.on_core_step = [recorder](const rdzv::RoundInput& input,
                                   const std::vector<rdzv::ToNode>& messages) {
    recorder->note(input, messages.size());
  };
  return events;
}

void LeaderPort::on(rdzv::ToAgent message) {
  has_been_heard_ = !std::holds_alternative<rdzv::DeclaredLost>(message);
  // The leader's own log has it already.
  const auto* stop = std::get_if<rdzv::RoundStop>(&message);
  if (stop != nullptr && stop->gone && !is_here()) log_.warn(describe(*stop->gone));
  std::visit([this](auto& each) { post_(std::move(each)); }, message);
}

void LeaderPort::on(rdzv::LeaderGone gone) {
  has_been_heard_ = false;
  if (!gone.was_replaced) {
    return post_(LeaderLost{std::move(gone.sentence), gone.was_reached});
  }
  if (!gone.sentence.empty()) log_.warn(gone.sentence);
  post_(LeaderReplaced{});
}

void LeaderPort::on(const rdzv::LeaderNotice& notice) { log_.warn(notice.line); }
void LeaderPort::on(const rdzv::LeaderWarning& warning) { log_.warn("leader: " + warning.line); }

}  // namespace ddprun::agent
