#include "rendezvous/etcd/leadership_core.h"

#include <algorithm>
#include <utility>

#include "rendezvous/round/job_outcomes.h"

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;

constexpr auto kKeepRecord = 15min;     // its lease is an hour
constexpr auto kWritePause = 100ms;     // before a record is written again
constexpr auto kFarewellLimit = 300ms;  // for etcd to revoke a lease
constexpr auto kComplaintInterval = 10s;
// A job that is stopped is stopped on all its nodes at about the same time. A leader that leaves
// waits this long for the leaves of the others before it hands over to another one.
constexpr auto kHandOverPause = 300ms;

}  // namespace

void LeadershipCore::begin(CoreTime now, JobRecord record) {
  if (is_ending()) return;
  state_ = State::kLeading;
  term_ += 1;
  ledger_.emplace(std::move(record));
  is_writing_ = false;
  write_at_.reset();
  keep_at_ = now + lease_ / 3;
  keep_record_at_ = now + kKeepRecord;
}

void LeadershipCore::stop() {
  if (state_ == State::kGone) return;
  state_ = State::kFollowing;
  term_ += 1;
  ledger_.reset();
}

std::vector<ToNode> LeadershipCore::pass(const RoundCore& core, std::vector<ToNode> messages) {
  return ledger_->pass(core, std::move(messages));
}

LeadershipCore::Out LeadershipCore::go_on() {
  Out out;
  if (!write_at_) write(out);
  return out;
}

// ---- answers

LeadershipCore::Out LeadershipCore::written(CoreTime now, std::uint64_t term,
                                            RecordWrite::Kind kind) {
  Out out;
  if (term != term_) return out;
  const bool is_overtaken = kind == RecordWrite::Kind::kOvertaken;
  if (state_ == State::kWritingLast) {
    if (is_overtaken) {
      out.push_back(WriteRecord{last_, term_});
    } else {
      let_go_of_lease(out);
    }
    return out;
  }
  if (state_ != State::kLeading) return out;
  is_writing_ = false;
  if (kind == RecordWrite::Kind::kFenced) {
    write_at_ = now + kWritePause;  // it may lead again at that time
    out.push_back(DoubtLeadership{});
    return out;
  }
  if (!is_overtaken) {
    auto messages = ledger_->written();
    out.push_back(SayToNodes{std::move(messages), is_holding()});
  }
  write(out);
  return out;
}

LeadershipCore::Out LeadershipCore::not_written(CoreTime now, std::uint64_t term,
                                                const std::string& why, bool is_lease_over) {
  Out out;
  if (term != term_) return out;
  if (state_ == State::kWritingLast) let_go_of_lease(out);
  if (state_ != State::kLeading) return out;
  if (is_lease_over) {  // after an hour without etcd
    out.push_back(RenewRecordLease{term_});
    return out;
  }
  is_writing_ = false;
  write_at_ = now + kWritePause;
  if (!last_complaint_ || now - *last_complaint_ >= kComplaintInterval) {
    last_complaint_ = now;
    out.push_back(WaitsForEtcd{why});
  }
  return out;
}

LeadershipCore::Out LeadershipCore::record_lease(CoreTime now, std::uint64_t term,
                                                 const std::string& why_not) {
  if (!why_not.empty()) return not_written(now, term, why_not, /*is_lease_over=*/false);
  Out out;
  if (term != term_ || state_ != State::kLeading) return out;
  is_writing_ = false;
  write(out);
  return out;
}

LeadershipCore::Out LeadershipCore::leaders_lease_over() {
  if (state_ != State::kLeading) return {};
  return {DoubtLeadership{}};
}

LeadershipCore::Out LeadershipCore::let_go() {
  if (state_ != State::kLettingGo) return {};
  state_ = State::kGone;
  return {StopServing{}};
}

// ---- the end

void LeadershipCore::leave(CoreTime now, const NodeLeaving& leaving) {
  leaving_ = leaving;
  hand_over_at_ = now + kHandOverPause;
}

LeadershipCore::Out LeadershipCore::done(CoreTime now, bool is_deserted, bool was_everyone_told) {
  Out out;
  const bool is_needed = leaving_ ? !is_deserted : !was_everyone_told;
  if (state_ == State::kLeading && !is_needed) hand_over(out, now, is_deserted);
  return out;
}

void LeadershipCore::hand_over(Out& out, CoreTime now, bool is_deserted) {
  limit_ = now + kFarewellLimit;
  const bool is_over = leaving_ && is_deserted && !ledger_->newest().outcome;
  if (!is_over) return let_go_of_lease(out);
  state_ = State::kWritingLast;
  last_ = ledger_->newest();
  last_.outcome = stopped_by(*leaving_, {});
  out.push_back(WriteRecord{last_, term_});
}

void LeadershipCore::let_go_of_lease(Out& out) {
  state_ = State::kLettingGo;
  out.push_back(LetGoOfLease{});
}

// ---- time

LeadershipCore::Out LeadershipCore::tick(CoreTime now, bool is_deserted) {
  Out out;
  if (state_ == State::kWritingLast || state_ == State::kLettingGo) {
    if (now < limit_) return out;
    state_ = State::kGone;
    out.push_back(StopServing{});
    return out;
  }
  if (state_ != State::kLeading) return out;
  if (hand_over_at_ && now >= *hand_over_at_) {
    hand_over(out, now, is_deserted);
    return out;
  }
  if (now >= keep_at_) {
    keep_at_ = now + lease_ / 3;
    const bool with_record = now >= keep_record_at_;
    if (with_record) keep_record_at_ = now + kKeepRecord;
    out.push_back(KeepLeases{with_record});
  }
  if (write_at_ && now >= *write_at_) {
    write_at_.reset();
    write(out);
  }
  return out;
}

std::optional<CoreTime> LeadershipCore::deadline() const {
  if (state_ == State::kWritingLast || state_ == State::kLettingGo) return limit_;
  if (state_ != State::kLeading) return std::nullopt;
  CoreTime earliest = keep_at_;
  if (write_at_) earliest = std::min(earliest, *write_at_);
  if (hand_over_at_) earliest = std::min(earliest, *hand_over_at_);
  return earliest;
}

void LeadershipCore::write(Out& out) {
  if (state_ != State::kLeading || leaving_ || is_writing_ || !is_holding()) return;
  is_writing_ = true;
  out.push_back(WriteRecord{*ledger_->due(), term_});
}

}  // namespace ddprun::rdzv
