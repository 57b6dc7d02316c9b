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
  if (!write_at_) write();
  return std::exchange(out_, {});
}

// ---- answers

LeadershipCore::Out LeadershipCore::written(CoreTime now, std::uint64_t term,
                                            RecordWrite::Kind kind) {
  if (term != term_) return {};
  const bool is_overtaken = kind == RecordWrite::Kind::kOvertaken;
  if (state_ == State::kWritingLast) {
    if (is_overtaken) {
      out_.push_back(WriteRecord{last_, term_});
    } else {
      let_go_of_lease();
    }
    return std::exchange(out_, {});
  }
  if (state_ != State::kLeading) return {};
  is_writing_ = false;
  if (kind == RecordWrite::Kind::kFenced) {
    write_at_ = now + kWritePause;  // it may lead again at that time
    return {DoubtLeadership{}};
  }
  if (!is_overtaken) {
    auto messages = ledger_->written();
    out_.push_back(SayToNodes{std::move(messages), is_holding()});
  }
  write();
  return std::exchange(out_, {});
}

LeadershipCore::Out LeadershipCore::not_written(CoreTime now, std::uint64_t term,
                                                const std::string& why, bool is_lease_over) {
  if (term != term_) return {};
  if (state_ == State::kWritingLast) let_go_of_lease();
  if (state_ != State::kLeading) return std::exchange(out_, {});
  if (is_lease_over) return {RenewRecordLease{term_}};  // after an hour without etcd
  is_writing_ = false;
  write_at_ = now + kWritePause;
  if (!last_complaint_ || now - *last_complaint_ >= kComplaintInterval) {
    last_complaint_ = now;
    out_.push_back(WaitsForEtcd{why});
  }
  return std::exchange(out_, {});
}

LeadershipCore::Out LeadershipCore::record_lease(CoreTime now, std::uint64_t term,
                                                 const std::string& why_not) {
  if (!why_not.empty()) return not_written(now, term, why_not, /*is_lease_over=*/false);
  if (term != term_ || state_ != State::kLeading) return {};
  is_writing_ = false;
  write();
  return std::exchange(out_, {});
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
  const bool is_needed = leaving_ ? !is_deserted : !was_everyone_told;
  if (state_ == State::kLeading && !is_needed) hand_over(now, is_deserted);
  return std::exchange(out_, {});
}

void LeadershipCore::hand_over(CoreTime now, bool is_deserted) {
  limit_ = now + kFarewellLimit;
  const bool is_over = leaving_ && is_deserted && !ledger_->newest().outcome;
  if (!is_over) return let_go_of_lease();
  state_ = State::kWritingLast;
  last_ = ledger_->newest();
  last_.outcome = stopped_by(*leaving_, {});
  out_.push_back(WriteRecord{last_, term_});
}

void LeadershipCore::let_go_of_lease() {
  state_ = State::kLettingGo;
  out_.push_back(LetGoOfLease{});
}

// ---- time

LeadershipCore::Out LeadershipCore::tick(CoreTime now, bool is_deserted) {
  if (state_ == State::kWritingLast || state_ == State::kLettingGo) {
    if (now < limit_) return {};
    state_ = State::kGone;
    return {StopServing{}};
  }
  if (state_ != State::kLeading) return {};
  if (hand_over_at_ && now >= *hand_over_at_) {
    hand_over(now, is_deserted);
    return std::exchange(out_, {});
  }
  if (now >= keep_at_) {
    keep_at_ = now + lease_ / 3;
    const bool with_record = now >= keep_record_at_;
    if (with_record) keep_record_at_ = now + kKeepRecord;
    out_.push_back(KeepLeases{with_record});
  }
  if (write_at_ && now >= *write_at_) {
    write_at_.reset();
    write();
  }
  return std::exchange(out_, {});
}

std::optional<CoreTime> LeadershipCore::deadline() const {
  if (state_ == State::kWritingLast || state_ == State::kLettingGo) return limit_;
  if (state_ != State::kLeading) return std::nullopt;
  CoreTime earliest = keep_at_;
  if (write_at_) earliest = std::min(earliest, *write_at_);
  if (hand_over_at_) earliest = std::min(earliest, *hand_over_at_);
  return earliest;
}

void LeadershipCore::write() {
  if (state_ != State::kLeading || leaving_ || is_writing_ || !is_holding()) return;
  is_writing_ = true;
  out_.push_back(WriteRecord{*ledger_->due(), term_});
}

}  // namespace ddprun::rdzv
