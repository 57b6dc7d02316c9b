// The state of a job that must outlive its leader, as a value and as the text stored in etcd: the
// job's incarnation, the round announced last, the spent part of the restart budget, the hosts that
// are left out, and the outcome. Pure; any thread. A text that ddprun has not written is an error with a sentence, never
// a record.
//
//   {"ddprun":1,"incarnation":"3f…-1","round":4,"nodes":2,"restarts":1,"quick_failures":0,
//    "quick_losses":0,"without_progress":0,"step":400,"step_kind":0,
//    "left_out":[{"host":"b3","address":"10.0.0.3","cause":0,"why":"ddpctl drain (root, pid 4711)"}],
//    "outcome":"<base64>","ended":"succeeded"}
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/ids.h"
#include "rendezvous/common/result.h"
#include "rendezvous/round/left_out.h"
#include "rendezvous/round/restart_policy.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

struct JobRecord {
  std::string incarnation;  // chosen at random when the job begins
  std::optional<Round> round;
  int nodes = 0;  // of that round
  RestartHistory history;
  std::vector<LeftOutHost> left_out = {};
  // Set when the job has ended; its id may then be used again.
  std::optional<JobOutcome> outcome = {};
  bool operator==(const JobRecord&) const = default;
};

std::string to_text(const JobRecord& record);
Result<JobRecord> read_job_record(std::string_view text);

// Which agent leads, and its address: the value of the key that is attached to its lease.
struct LeaderKey {
  std::string leadership;     // random; kept if a leader loses its lease and wins again
  std::string incarnation;    // of the job that it leads
  std::string address;        // HOST:PORT
  std::int64_t revision = 0;  // etcd's revision at its creation: a later leader has a higher one
  bool operator==(const LeaderKey&) const = default;
};

std::string to_text(const LeaderKey& key);  // all but the revision
Result<LeaderKey> read_leader_key(std::string_view text, std::int64_t revision);

}  // namespace ddprun::rdzv
