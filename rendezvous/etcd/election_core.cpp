#include "rendezvous/etcd/election_core.h"

#include <algorithm>
#include <utility>

#include "rendezvous/common/text/durations.h"

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kFirstPause{20};  // after a request without an answer
constexpr std::chrono::milliseconds kLongestPause{500};

}  // namespace

Resumption resumption_of(const Lead& lead) {
  Resumption resumption;
  if (lead.record.round) resumption.next = next(*lead.record.round);
  resumption.history = lead.record.history;
  resumption.left_out = lead.record.left_out;
  resumption.goes_on = lead.goes_on;
  resumption.nodes_expected = lead.nodes_expected;
  return resumption;
}

// ---- events

ElectionCore::Out ElectionCore::begin(CoreTime now) {
  leaderless_since_ = now;
  read();
  return std::exchange(out_, {});
}

ElectionCore::Out ElectionCore::view(CoreTime now, const EtcdView& view) {
  if (doing_ != Doing::kNothing && !is_over_) take(now, view);
  return std::exchange(out_, {});
}

ElectionCore::Out ElectionCore::claimed(CoreTime now, std::int64_t revision) {
  if (doing_ != Doing::kClaiming || is_over_) return {};
  doing_ = Doing::kNothing;
  pause_ = 0ms;
  const bool goes_on = leads_ && leader_->leadership == claim_.key.leadership;
  claim_.key.revision = revision;
  if (goes_on) {
    leader_->revision = newest_ = job_revision_ = revision;
  } else {
    detach(now);
    begin_to_lead();
  }
  if (std::exchange(read_again_, false)) read();
  return std::exchange(out_, {});
}

ElectionCore::Out ElectionCore::failed(CoreTime now, const std::string& why, bool is_final) {
  if (doing_ == Doing::kNothing || is_over_) return {};
  doing_ = Doing::kNothing;
  read_again_ = false;
  why_not_ = why;
  // Settings that have worked once are not the reason, so try again later.
  if (is_final && incarnation_.empty()) {
    give_up(GiveUp::Why::kWrong, why);
  } else {
    read_later(now);
  }
  return std::exchange(out_, {});
}

ElectionCore::Out ElectionCore::leader_put(CoreTime now, const LeaderKey& key) {
  // The answer to the claim has more information.
  if (!is_over_ && doing_ != Doing::kClaiming) attach(now, key);
  return std::exchange(out_, {});
}

ElectionCore::Out ElectionCore::leader_deleted(CoreTime, std::int64_t revision) {
  if (!is_over_ && revision >= newest_) read();
  return std::exchange(out_, {});
}

ElectionCore::Out ElectionCore::watch_ended(CoreTime now) {
  if (!is_over_ && doing_ == Doing::kNothing) read_later(now);
  return std::exchange(out_, {});
}

ElectionCore::Out ElectionCore::connection_gone(CoreTime now, bool was_refused) {
  if (is_over_ || leads_ || !leader_) return {};
  const std::int64_t revision = leader_->revision;
  detach(now);
  // Nobody listens at its port any more, so it is dead, and there is no need to wait for its lease.
  // Even if this is wrong it is safe: that leader is fenced off, as if its lease had expired.
  if (was_refused) out_.push_back(Depose{revision});
  read();
  return std::exchange(out_, {});
}

ElectionCore::Out ElectionCore::leadership_uncertain() {
  if (!is_over_ && leads_) read();
  return std::exchange(out_, {});
}

ElectionCore::Out ElectionCore::tick(CoreTime now) {
  if (is_over_) return {};
  const bool is_too_late = leaderless_since_ && now >= *leaderless_since_ + config_.join_timeout;
  if (is_too_late) {
    const bool was_in = !incarnation_.empty();
    give_up(was_in ? GiveUp::Why::kLost : GiveUp::Why::kNeverReached,
            (was_in ? "the leader is gone, and no other could be elected within "
                    : "no leader could be elected within ") +
                duration_text(config_.join_timeout) + (why_not_.empty() ? "" : ": " + why_not_));
    return std::exchange(out_, {});
  }
  if (read_at_ && now >= *read_at_) read();
  return std::exchange(out_, {});
}

std::optional<CoreTime> ElectionCore::deadline() const {
  if (is_over_) return std::nullopt;
  std::optional<CoreTime> earliest = read_at_;
  if (leaderless_since_) {
    const CoreTime end = *leaderless_since_ + config_.join_timeout;
    earliest = earliest ? std::min(*earliest, end) : end;
  }
  return earliest;
}

void ElectionCore::saw(const RoundStart& start) {
  if (leads_) return;  // written() has the full record
  seen_ = JobRecord{};
  seen_->incarnation = incarnation_;
  seen_->round = start.round;
  seen_->nodes = start.node_count;
  seen_->history.restarts = start.restarts;
}

void ElectionCore::written(std::int64_t revision, const JobRecord& record) {
  job_revision_ = revision;
  seen_ = record;
}

// ---- what follows

void ElectionCore::read() {
  read_at_.reset();
  if (doing_ != Doing::kNothing) {
    read_again_ = true;
    return;
  }
  doing_ = Doing::kReading;
  out_.push_back(ReadEtcd{});
}

void ElectionCore::read_later(CoreTime now) {
  pause_ = std::clamp(pause_ * 2, kFirstPause, kLongestPause);
  read_at_ = now + pause_;
}

void ElectionCore::take(CoreTime now, const EtcdView& view) {
  doing_ = Doing::kNothing;
  if (std::exchange(read_again_, false)) return read();
  if (leads_ && view.leader && view.leader->leadership == leader_->leadership) {
    job_revision_ = view.job_revision;
  }
  const bool has_ended = view.record && view.record->outcome;
  const bool is_new_life = has_ended && incarnation_.empty();
  const bool is_still_ending =
      is_new_life && view.leader && view.leader->incarnation == view.record->incarnation;
  if (is_still_ending) {  // an earlier job with this id; its leader exits when all nodes know
    read_at_ = now + config_.lease;
    return;
  }
  if (view.record && !is_new_life && !is_of_this_job(view.record->incarnation)) return;
  // Another agent may have led since, or a write of this agent has succeeded without an answer.
  const bool is_as_left = view.record && view.job_revision == job_revision_;
  if (leads_ && !view.leader && !is_as_left) detach(now);
  const bool nobody_will_tell = !leads_ && (!leader_ || !view.leader);
  if (has_ended && !incarnation_.empty() && nobody_will_tell) {
    is_over_ = true;
    out_.push_back(EndJob{*view.record->outcome});
  } else if (view.leader) {
    attach(now, *view.leader);
  } else {
    claim(now, view);
  }
}

bool ElectionCore::is_of_this_job(const std::string& incarnation) {
  if (incarnation_.empty() || incarnation == incarnation_) return true;
  give_up(
      GiveUp::Why::kLost,
      "the job that this node was part of is over, and another one has begun under its id; give "
      "every job an --rdzv-id of its own");
  return false;
}

void ElectionCore::attach(CoreTime now, const LeaderKey& key) {
  if (key.revision < newest_) return;  // an earlier leader
  pause_ = 0ms;
  if (leader_ && leader_->leadership == key.leadership) {
    leader_->revision = newest_ = key.revision;
    if (!leads_ && !has_heard_) read_at_ = now + config_.lease;
    return;
  }
  if (!is_of_this_job(key.incarnation)) return;
  if (key.leadership == leadership_) {  // our own claim; its answer was lost
    claim_.key.revision = key.revision;
    detach(now);
    return begin_to_lead();
  }
  detach(now);
  leader_ = key;
  newest_ = key.revision;
  incarnation_ = key.incarnation;
  has_heard_ = led_last_ = false;
  leaderless_since_.reset();
  why_not_.clear();
  // It may be dead already, and the watch of its key may be on a member of etcd that hangs.
  read_at_ = now + config_.lease;
  out_.push_back(Follow{key});
}

void ElectionCore::detach(CoreTime now) {
  if (!leader_) return;
  if (std::exchange(leads_, false)) {
    leadership_.clear();
    out_.push_back(StopLeading{});
  }
  leader_.reset();
  leaderless_since_ = now;
  out_.push_back(LoseLeader{});
}

void ElectionCore::claim(CoreTime now, const EtcdView& view) {
  if (is_leaving_ && !leads_) return;
  if (leadership_.empty()) leadership_ = next_name();
  if (view.record && !(view.record->outcome && incarnation_.empty())) {
    claim_.record = *view.record;
  } else if (seen_) {
    claim_.record = *seen_;  // etcd has lost the record
  } else if (incarnation_.empty()) {
    // A claim whose answer was lost may have begun that incarnation, and others may have ended it
    // since.
    const bool is_used = view.record && view.record->incarnation == new_incarnation_;
    if (new_incarnation_.empty() || is_used) new_incarnation_ = next_name();
    claim_.record = JobRecord{};
    claim_.record.incarnation = new_incarnation_;
  } else {
    // Other agents know the round numbers so far; this agent does not, and would use them again.
    return read_later(now);
  }
  claim_.key = {leadership_, claim_.record.incarnation, "", 0};
  claim_.job_revision = view.job_revision;
  doing_ = Doing::kClaiming;
  out_.push_back(claim_);
}

void ElectionCore::begin_to_lead() {
  const JobRecord& record = claim_.record;
  Lead lead{record, record.round && incarnation_ == record.incarnation, 0};
  // The last leader is gone, unless it is this agent.
  lead.nodes_expected = std::max(1, record.nodes - (led_last_ ? 0 : 1));
  leads_ = led_last_ = true;
  leader_ = claim_.key;
  newest_ = job_revision_ = claim_.key.revision;
  incarnation_ = record.incarnation;
  seen_ = record;
  pause_ = 0ms;
  leaderless_since_.reset();
  why_not_.clear();
  read_at_.reset();
  out_.push_back(std::move(lead));
}

void ElectionCore::give_up(GiveUp::Why why, std::string sentence) {
  if (std::exchange(leads_, false)) out_.push_back(StopLeading{});
  is_over_ = true;
  out_.push_back(GiveUp{why, std::move(sentence)});
}

std::string ElectionCore::next_name() {
  names_ += 1;
  return config_.name + "-" + std::to_string(names_);
}

}  // namespace ddprun::rdzv
