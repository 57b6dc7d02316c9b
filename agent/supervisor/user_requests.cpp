#include "agent/supervisor/user_requests.h"

#include <csignal>
#include <utility>

#include "agent/events/event_lines.h"
#include "rendezvous/common/foreign_text.h"

namespace ddprun::agent {

// The leader stops the job on all nodes. If it cannot be reached, this node alone stops.
Result<void> UserRequests::stop(const std::string& by) {
  if (others_.core.is_over()) return fail(ErrorCode::kUnavailable, "the job has ended already");
  others_.events.write(Requested{"stop", by});
  parts_.log.warn("a stop of the job was asked for: " + printable(by));
  const bool has_left = others_.core.has_left();
  if (others_.leader.has_been_heard() && !has_left)
    others_.leader.tell(rdzv::StopAsked{SIGTERM, by});
  // Preempted workers leave without a deadline, even after a RoundStop, so they are stopped here.
  if (!others_.leader.has_been_heard() || others_.core.leaves_in_its_own_time()) {
    stop_asked_by_ = by;
    post_(StopSignal{SIGTERM});
  }
  if (!has_left) return {};
  return fail(ErrorCode::kUnavailable,
              "this node is leaving the job, which may go on without it: its own workers are told "
              "to stop; to stop the job, ask another of its nodes");
}

Result<Round> UserRequests::restart(const std::string& by) {
  if (!others_.core.is_running()) {
    return fail(ErrorCode::kUnavailable,
                "no round runs on this node now, so there is none to restart: it is " +
                    std::string(name_of(others_.node.state())));
  }
  others_.events.write(Requested{"restart", by});
  others_.leader.tell(rdzv::RestartAsked{others_.core.round(), by});
  return others_.core.round();
}

std::optional<Result<void>> UserRequests::replace(int rank, const std::string& by) {
  const int first = others_.workers.view().round().rank_offset;
  if (rank < first || rank >= first + parts_.job.local_world_size) return std::nullopt;
  if (!others_.core.is_running()) {
    return fail(ErrorCode::kUnavailable, "no round runs on this node now: it is " +
                                             std::string(name_of(others_.node.state())));
  }
  auto killed = others_.workers.kill_to_replace(rank, by);
  if (killed) others_.events.write(Requested{"replace", by});
  return killed;
}

Result<void> UserRequests::drain(const rdzv::DrainAsked& asked) {
  if (others_.core.is_over()) return fail(ErrorCode::kUnavailable, "the job has ended already");
  const bool is_undrain = asked.what == rdzv::DrainAsked::What::kUndrain;
  others_.events.write(Requested{is_undrain ? "undrain" : "drain", asked.by});
  others_.leader.tell(asked);
  return {};
}

}  // namespace ddprun::agent
