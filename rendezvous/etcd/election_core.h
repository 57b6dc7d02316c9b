// One agent's part in the election of the leader under etcd, as a pure state machine: what etcd
// answers, what becomes of the connection to the leader, and the time come in; what to ask of etcd,
// whom to follow and when to lead come out. No I/O, no clock, no threads: the shell (etcd_leader)
// performs the actions in order, and calls tick() at deadline().
//
// Two keys make up a job in etcd: `leader`, which its lease keeps, and `job`, the record (job_record.h).
//
//   claim    one transaction, that holds only if there is no leader and the record is still the one
//            that was read: makes both keys. So whoever leads knows the newest record
//   write    one transaction, that holds only if the leader is still the one of this revision, and
//            the record still the one that it has written last
//   depose   deletes the leader's key if it is still that one
//
// So a leader that was only paused, or cut off, can change nothing once another one leads: whatever
// must outlive a leader is written before it takes effect (round_ledger.h), and it can write no more.
// An agent goes from one leader only to a later one, and from one life of the job to no other.
//
// clang-format off
//
//   event \ state        without a leader      following               leading
//   a view: leader       follow it             another: lose, follow   another: stop leading, follow
//           no leader    claim (1)             claim (1)               claim again, as the same (2)
//           outcome      end with it           -                       -
//   claimed              lead                  lose the old, lead      go on
//   not claimed          as a view             as a view               as a view
//   leader deleted       read                  read                    read
//   leader put           follow it             another: lose, follow   another: stop leading, follow
//   connection gone      ignore                lose; depose it if it   ignore
//                                              was refused; read
//   lease gone           ignore                ignore                  read
//   written              ignore                ignore                  note the revision
//   not written (guard)  ignore                ignore                  read; write again, if only the
//                                                                      record is another
//   an error             read again later; too late: give up (with a leader: never)
//
//   (1) where the record has ended: a new life of the job; an agent that is leaving claims nothing
//   (2) only if nobody else has written the record since; else it stops leading, and claims anew
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
#include "rendezvous/etcd/job_record.h"
#include "rendezvous/round/round_core.h"

namespace ddprun::rdzv {

struct EtcdView {
  std::optional<LeaderKey> leader;
  std::int64_t job_revision = 0;  // 0: there is no record
  std::optional<JobRecord> record;
};

// ---- actions

struct ReadEtcd {};
struct Claim {
  LeaderKey key;     // without its address
  JobRecord record;  // which then is the newest
  std::int64_t job_revision = 0;
};
struct Depose {
  std::int64_t revision = 0;
};
struct Follow {
  LeaderKey key;
};
struct Lead {
  JobRecord record;
  bool goes_on = false;    // this agent knew the last leader, and so may others
  int nodes_expected = 0;  // that should be back soon
};
// How its RoundCore begins.
Resumption resumption_of(const Lead& lead);
struct StopLeading {};
struct LoseLeader {};  // the agent stops its workers, and joins anew
struct EndJob {        // it has ended, and the leader died before it could tell
  JobOutcome outcome;
};
struct GiveUp {
  enum class Why { kNeverReached, kLost, kWrong };  // wrong: a setting, or what is in etcd
  Why why = Why::kWrong;
  std::string sentence;
};
using ElectionAction =
    std::variant<ReadEtcd, Claim, Depose, Follow, Lead, StopLeading, LoseLeader, EndJob, GiveUp>;

struct ElectionConfig {
  std::string name;  // of this agent, unlike any other: 1 to 32 characters
  std::chrono::milliseconds lease{5000};
  std::chrono::milliseconds join_timeout{600'000};
};

class ElectionCore {
 public:
  using Out = std::vector<ElectionAction>;

  explicit ElectionCore(ElectionConfig config) : config_(std::move(config)) {}

  Out begin(CoreTime now);
  Out view(CoreTime now, const EtcdView& view);
  Out claimed(CoreTime now, std::int64_t revision);
  Out claim_failed(CoreTime now, const EtcdView& view);  // somebody was quicker
  // A question was not answered; `is_final`: nor will it ever be.
  Out failed(CoreTime now, const std::string& why, bool is_final);
  Out leader_put(CoreTime now, const LeaderKey& key);
  Out leader_deleted(CoreTime now, std::int64_t revision);
  Out watch_ended(CoreTime now);  // of the leader's key: the watch has ended
  Out connection_gone(CoreTime now, bool was_refused);
  // This leader's lease is gone, or etcd has refused to write its record.
  Out leadership_uncertain();
  void written(std::int64_t revision, const JobRecord& record);
  // An earlier write of this leader, whose answer was lost, is in etcd.
  void overtaken(std::int64_t job_revision) { job_revision_ = job_revision; }
  Out tick(CoreTime now);
  std::optional<CoreTime> deadline() const;

  // What the leader says to this agent.
  void heard() { has_heard_ = true; }
  void saw(const RoundStart& start);
  // It takes part no more, and only ends what it has begun.
  void leave() { is_leaving_ = true; }

  bool leads() const { return leads_; }
  const std::optional<LeaderKey>& leader() const { return leader_; }
  std::int64_t job_revision() const { return job_revision_; }

 private:
  enum class Doing { kNothing, kReading, kClaiming };

  void read(Out& out);
  void read_later(CoreTime now);
  void take(Out& out, CoreTime now, const EtcdView& view);
  bool is_of_this_job(Out& out, const std::string& incarnation);
  void attach(Out& out, CoreTime now, const LeaderKey& key);
  void detach(Out& out, CoreTime now);
  void claim(Out& out, CoreTime now, const EtcdView& view);
  void begin_to_lead(Out& out);
  void give_up(Out& out, GiveUp::Why why, std::string sentence);
  std::string next_name();

  const ElectionConfig config_;
  Doing doing_ = Doing::kNothing;
  bool read_again_ = false;  // something has happened since the question was asked
  std::optional<CoreTime> read_at_;
  std::chrono::milliseconds pause_{0};
  std::string why_not_;  // there is no leader: a question was not answered, or refused

  std::optional<LeaderKey> leader_;  // followed, or this agent itself
  bool leads_ = false;
  bool has_heard_ = false;         // from the leader that is followed
  std::int64_t newest_ = 0;        // the highest revision of a leader so far
  std::int64_t job_revision_ = 0;  // of the record, as this leader wrote it
  std::string leadership_;         // that this agent claims, until it has had it
  Claim claim_;                    // the last one
  bool led_last_ = false;          // nobody else has led since
  std::optional<CoreTime> leaderless_since_;

  std::string incarnation_;        // of the job that this agent is part of; empty: not yet
  std::string new_incarnation_;    // that it would begin
  std::optional<JobRecord> seen_;  // what it knows of the record by itself
  int names_ = 0;
  bool is_leaving_ = false;
  bool is_over_ = false;
};

}  // namespace ddprun::rdzv
