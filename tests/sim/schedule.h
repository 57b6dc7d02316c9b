// The schedule of one simulated job, created from a seed: the number of nodes, the options, the
// speed of the network, and the faults with their times. A value; a trace begins with it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/round/round_core.h"

namespace ddprun::sim {

struct Fault {
  enum class Kind {
    kWorkerDies,      // by itself
    kAgentKilled,     // SIGKILL: its connections are reset, the keeper kills its workers
    kPowerLost,       // the host sends nothing any more, not even a reset
    kPaused,          // SIGSTOP of the agent, SIGCONT after `length`
    kConnectionLost,  // reset; it may be resumed at once
    kPartition,       // no packet passes for `length`, in one or both directions
    kStopSignal,      // SIGTERM to the agent
    kPreemptSignal,   // SIGUSR1 to the agent
    kLeaderKilled,
    kRestartAsked,  // ddpctl restart
    kStopAsked,     // ddpctl stop
    kDrainAsked,    // ddpctl drain of the slot, at once if `towards_leader`
    kUndrainAsked,
    kUnfit,  // its health check says so; `towards_leader`: that it is fit
    kStuck,  // the agent is heard but does nothing for `length`; never the leader's
  };
  Kind kind = Kind::kWorkerDies;
  CoreTime at;
  int slot = 0;
  std::chrono::microseconds length{};
  bool towards_leader = true;  // kPartition: the direction that is cut
  bool from_leader = true;
  std::optional<std::chrono::microseconds> comes_back_after;  // a killed agent is started again
};

struct Node {
  CoreTime starts;
  int workers = 1;
  std::string role;
  std::optional<int> node_rank;
  std::string host;
};

struct WorkerTiming {
  std::chrono::microseconds training{};  // time that a round needs
  std::chrono::microseconds stop_min{};  // after SIGTERM
  std::chrono::microseconds stop_max{};
  int ignores_term_percent = 0;
  int slow_exec_percent = 0;  // a file server holds the programs of so many workers for a while
};

// Of workers that can be replaced in place.
struct RecoveryHabits {
  int announces_percent = 0;     // of the nodes: their workers say that they can recover
  int standby_percent = 100;     // of the workers: there is a prepared standby
  int lost_standby_percent = 0;  // of these: it is dead when it is wanted
  int breaks_word_percent = 0;   // of the workers: they end when another one does
  int hangs_percent = 0;         // of the workers: they do not come when they are called
  struct Poison {
    int rank = 0;
    int step = 1;
  };
  std::optional<Poison> poison;  // this step ends its rank each time

  bool is_on() const { return announces_percent > 0; }
};

struct Schedule {
  std::uint64_t seed = 0;
  rdzv::RoundConfig config;
  bool leader_is_alone = false;  // ddpctl leader; else it is in slot 0's process
  std::vector<Node> nodes;       // by slot
  std::vector<Fault> faults;
  CoreTime calm;  // when the last fault is over
  WorkerTiming workers;
  RecoveryHabits recovery;
  std::chrono::microseconds delay_max{};  // of the network
  bool has_only_short_drops = false;      // no fault that may end a round
  bool has_only_new_leader = false;    // only: the leader is killed and restarted within the grace
  bool has_only_replacements = false;  // only: workers die, one after another, that can be replaced
};

Schedule schedule_of(std::uint64_t seed);
std::string to_string(const Fault& fault);
std::string to_string(const Schedule& schedule);

}  // namespace ddprun::sim
