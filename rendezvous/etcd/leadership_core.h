// Keeps etcd up to date while this agent leads, and decides how it stops leading, as a pure state
// machine. Input: the RoundCore's messages, etcd's answers, leaves and the time. Output: what to
// write, which messages may be sent now, and when to revoke the lease. The ElectionCore decides
// which agent leads. No I/O, no clock, no threads: the shell (etcd_leader) performs the actions in
// order, and calls tick() at deadline().
//
// clang-format off
//
//   event \ state         Following     Leading                      WritingLast     LettingGo     Gone
//   begin (it leads)      Leading       Leading                      ignore          ignore        ignore
//   stop (it does not)    ignore        Following                    Following       Following     ignore
//   RoundCore message     -             send it, or hold and write   hold            hold          -
//   written               ignore        send what was held; (1)      let go          ignore        ignore
//   overtaken (2)         ignore        write again                  write again     ignore        ignore
//   fenced                ignore        doubt it leads; write again  let go          ignore        ignore
//   no answer             ignore        write again after 100 ms     let go          ignore        ignore
//   record's lease over   ignore        renew it, write again        let go          ignore        ignore
//   leader's lease over   ignore        doubt it leads               ignore          ignore        ignore
//   leave (3)             ignore        hand over after 300 ms       ignore          ignore        ignore
//   not needed any more   ignore        hand over                    ignore          ignore        ignore
//   lease let go          ignore        ignore                       ignore          Gone          ignore
//   end                   Gone          Gone                         Gone            Gone          ignore
//   tick                  ignore        keep the leases, write       too late: Gone  too late: Gone  ignore
//
//   hand over: if all nodes have left, which ends the job: WritingLast with that outcome; else LettingGo
//   (1) then the next due record is written
//   (2) by an earlier write of this leader, whose answer was lost
//   (3) from then on nothing is written, so no round begins
//
// clang-format on
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/etcd/job_keys.h"
#include "rendezvous/etcd/round_ledger.h"

namespace ddprun::rdzv {

// ---- actions

struct WriteRecord {  // its answer carries the same term
  JobRecord record;
  std::uint64_t term = 0;
};
struct RenewRecordLease {
  std::uint64_t term = 0;
};
struct SayToNodes {
  std::vector<ToNode> messages;
  bool is_holding = false;  // other messages still wait for etcd
};
struct DoubtLeadership {};  // the ElectionCore reads etcd to find out
struct KeepLeases {
  bool with_record = false;  // the record's lease too
};
struct LetGoOfLease {};  // revoke it, so that nobody has to wait until it expires
struct StopServing {};   // the node may exit
struct WaitsForEtcd {    // a notice for the user, at most every 10 s
  std::string why;
};
using LeadershipAction = std::variant<WriteRecord, RenewRecordLease, SayToNodes, DoubtLeadership,
                                      KeepLeases, LetGoOfLease, StopServing, WaitsForEtcd>;

class LeadershipCore {
 public:
  using Out = std::vector<LeadershipAction>;

  explicit LeadershipCore(std::chrono::milliseconds lease) : lease_(lease) {}

  // `record`: as it is in etcd.
  void begin(CoreTime now, JobRecord record);
  void stop();
  void end() { state_ = State::kGone; }

  // Returns the messages that may be sent now.
  std::vector<ToNode> pass(const RoundCore& core, std::vector<ToNode> messages);
  bool is_holding() const { return ledger_ && ledger_->due() != nullptr; }
  Out go_on();  // after pass()

  // Answers; `term` is that of the request.
  Out written(CoreTime now, std::uint64_t term, RecordWrite::Kind kind);
  Out not_written(CoreTime now, std::uint64_t term, const std::string& why, bool is_lease_over);
  Out record_lease(CoreTime now, std::uint64_t term, const std::string& why_not);  // empty: renewed
  Out leaders_lease_over();
  Out let_go();

  void leave(CoreTime now, const NodeLeaving& leaving);
  // This node's part in the job has ended.
  Out done(CoreTime now, bool is_deserted, bool was_everyone_told);
  Out tick(CoreTime now, bool is_deserted);
  std::optional<CoreTime> deadline() const;

  bool is_current(std::uint64_t term) const { return term == term_; }
  bool is_leaving() const { return leaving_.has_value(); }
  // It hands over or has ended: actions of the ElectionCore are ignored from now on.
  bool is_ending() const { return state_ > State::kLeading; }
  bool has_let_go() const { return state_ == State::kGone; }

 private:
  enum class State { kFollowing, kLeading, kWritingLast, kLettingGo, kGone };

  void write();
  void hand_over(CoreTime now, bool is_deserted);
  void let_go_of_lease();

  const std::chrono::milliseconds lease_;
  Out out_;  // of the current call
  State state_ = State::kFollowing;
  std::uint64_t term_ = 0;  // counts calls of begin()
  std::optional<RoundLedger> ledger_;
  JobRecord last_;  // WritingLast
  bool is_writing_ = false;
  std::optional<CoreTime> write_at_;  // when to write again
  CoreTime keep_at_{};
  CoreTime keep_record_at_{};
  std::optional<NodeLeaving> leaving_;
  std::optional<CoreTime> hand_over_at_;
  CoreTime limit_{};  // WritingLast, LettingGo
  std::optional<CoreTime> last_complaint_;
};

}  // namespace ddprun::rdzv
