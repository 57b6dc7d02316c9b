// What must outlive a leader, as a value, and as the text that etcd keeps of it: which life of the
// job it is, the round that was announced last, what is spent of the budget, and the outcome. Pure;
// any thread. A text that is not ours is an error with a sentence, never a record.
//
//   {"ddprun":1,"incarnation":"3f…-1","round":4,"nodes":2,"restarts":1,"quick_failures":0,
//    "quick_losses":0,"outcome":"<base64>","ended":"succeeded"}
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/common/ids.h"
#include "rendezvous/common/result.h"
#include "rendezvous/round/restart_policy.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

struct JobRecord {
  std::string incarnation;  // chosen at random when the job begins
  std::optional<Round> round;
  int nodes = 0;  // of that round
  RestartHistory history;
  std::optional<JobOutcome> outcome;  // it has ended, and its id may be used again
  bool operator==(const JobRecord&) const = default;
};

std::string to_text(const JobRecord& record);
Result<JobRecord> read_job_record(std::string_view text);

// Who leads, and where: the value of the key that its lease keeps.
struct LeaderKey {
  std::string leadership;   // chosen at random; stays where a leader loses its lease and wins again
  std::string incarnation;  // of the job that it leads
  std::string address;      // HOST:PORT
  std::int64_t revision = 0;  // of etcd, when it was made: a later leader has a higher one
  bool operator==(const LeaderKey&) const = default;
};

std::string to_text(const LeaderKey& key);  // all but the revision
Result<LeaderKey> read_leader_key(std::string_view text, std::int64_t revision);

}  // namespace ddprun::rdzv
