// One agent's part in the election of the leader under etcd, as a pure state machine. Input: etcd's
// answers, the state of the connection to the leader, and the time. Output: requests to etcd, which
// leader to follow, and when to lead. No I/O, no clock, no threads: the shell (etcd_leader)
// performs the actions in order, and calls tick() at deadline().
//
// A job has two keys in etcd: `leader`, attached to the leader's lease, and `job`, the record
// (job_record.h).
//
//   claim    one transaction, that holds only if there is no leader and the record is still the one
//            that was read: makes both keys. So whoever leads knows the newest record
//   write    one transaction, that holds only if the leader is still the one of this revision, and
//            the record still the one that it has written last
//   depose   deletes the leader's key if it is still that one
//
// So a leader that was paused or partitioned can change nothing once another one leads: everything
// that must outlive a leader is written before it takes effect (round_ledger.h), and its writes are
// fenced off. An agent changes only to a later leader, and never to another incarnation of the job.
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
//   (1) if the record has ended: a new incarnation of the job; a leaving agent claims nothing
//   (2) only if nobody else has written the record since; else it stops leading and claims anew
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
  LeaderKey key;     // without the address
  JobRecord record;  // becomes the newest one
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
  bool goes_on = false;    // this agent knew the last leader; other nodes may know it too
  int nodes_expected = 0;  // nodes of the last round that should join again soon
};
// The initial state of its RoundCore.
Resumption resumption_of(const Lead& lead);
struct StopLeading {};
struct LoseLeader {};  // the agent stops its workers and joins again
struct EndJob {        // the job has ended, and the leader died before it could say so
  JobOutcome outcome;
};
struct GiveUp {
  enum class Why { kNeverReached, kLost, kWrong };  // kWrong: a setting, or the data in etcd
  Why why = Why::kWrong;
  std::string sentence;
};
using ElectionAction =
    std::variant<ReadEtcd, Claim, Depose, Follow, Lead, StopLeading, LoseLeader, EndJob, GiveUp>;

struct ElectionConfig {
  std::string name;  // unique to this agent: 1 to 32 characters
  std::chrono::milliseconds lease{5000};
  std::chrono::milliseconds join_timeout{600'000};
};

class ElectionCore {
 public:
  using Out = std::vector<ElectionAction>;

  explicit ElectionCore(ElectionConfig config) : config_(std::move(config)) {}

  Out begin(CoreTime now);
  Out view(CoreTime now, const EtcdView& view);  // also shown by a claim that has failed
  Out claimed(CoreTime now, std::int64_t revision);
  // A request failed; `is_final`: trying again cannot help.
  Out failed(CoreTime now, const std::string& why, bool is_final);
  Out leader_put(CoreTime now, const LeaderKey& key);
  Out leader_deleted(CoreTime now, std::int64_t revision);
  Out watch_ended(CoreTime now);  // the watch of the leader's key has ended
  Out connection_gone(CoreTime now, bool was_refused);
  // This leader's lease has expired, or etcd has refused to write its record.
  Out leadership_uncertain();
  void written(std::int64_t revision, const JobRecord& record);
  // An earlier write of this leader, whose answer was lost, has succeeded.
  void overtaken(std::int64_t job_revision) { job_revision_ = job_revision; }
  Out tick(CoreTime now);
  std::optional<CoreTime> deadline() const;

  // The leader has sent a message to this agent.
  void heard() { has_heard_ = true; }
  void saw(const RoundStart& start);
  // This agent claims nothing from now on, and only finishes what it has begun.
  void leave() { is_leaving_ = true; }

  bool leads() const { return leads_; }
  const std::optional<LeaderKey>& leader() const { return leader_; }
  std::int64_t job_revision() const { return job_revision_; }

 private:
  enum class Doing { kNothing, kReading, kClaiming };

  void read();
  void read_later(CoreTime now);
  void take(CoreTime now, const EtcdView& view);
  bool is_of_this_job(const std::string& incarnation);
  void attach(CoreTime now, const LeaderKey& key);
  void detach(CoreTime now);
  void claim(CoreTime now, const EtcdView& view);
  void begin_to_lead();
  void give_up(GiveUp::Why why, std::string sentence);
  std::string next_name();

  const ElectionConfig config_;
  Out out_;  // of the current call
  Doing doing_ = Doing::kNothing;
  bool read_again_ = false;  // an event came in after the request was sent
  std::optional<CoreTime> read_at_;
  std::chrono::milliseconds pause_{0};
  std::string why_not_;  // why there is no leader: a request failed or was refused

  std::optional<LeaderKey> leader_;  // another agent, or this one
  bool leads_ = false;
  bool has_heard_ = false;         // from the followed leader
  std::int64_t newest_ = 0;        // the highest revision of a leader so far
  std::int64_t job_revision_ = 0;  // of the record that this leader wrote last
  std::string leadership_;         // the name that this agent claims with, until it has led
  Claim claim_;                    // the last one
  bool led_last_ = false;          // no other agent has led since
  std::optional<CoreTime> leaderless_since_;

  std::string incarnation_;        // of this agent's job; empty: it has none yet
  std::string new_incarnation_;    // of a job that this agent would begin
  std::optional<JobRecord> seen_;  // what this agent knows of the record from its own rounds
  int names_ = 0;
  bool is_leaving_ = false;
  bool is_over_ = false;
};

}  // namespace ddprun::rdzv
