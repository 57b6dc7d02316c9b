// Decides about the health checks of this node (--health-check): when one runs, what waits for its answer, and what follows
// from it. A pure state machine; the shell (agent/health/health_check.h) performs the actions.
//
// clang-format off
//
//   event \ check     none                     first                        in the background      after a suspicion
//   JoinWanted        RunCheck: first          never                        never                  never
//   CheckIsDue        RunCheck: in the back-   ignore                       ignore                 ignore
//                     ground
//   NodeSuspected     RunCheck: after a        ignore                       RunCheck anew: after   ignore
//                     suspicion (1)                                         a suspicion
//   RestartWanted     LetRestart               LetRestart                   LetRestart             HoldRestart
//   HoldOver          ignore                   ignore                       ignore                 LetRestart, if it is held; from
//                                                                                                  here on in the background
//   CheckAnswered     ignore                   Warn of each warning; unfit: Warn; unfit: RunCheck  Warn; unfit: Evict; LetRestart,
//                                              RefuseJoin; else ArmTimer,   again (2), then Evict, if it is held; ArmTimer
//                                              LetJoin                      unless that was said;
//                                                                           fit: TakeBack (3);
//                                                                           ArmTimer
//
//   (1) not before the first join, and not after RefuseJoin
//   (2) if the answer before was that it is fit: what lasts for a moment, as a file server that hangs, evicts no node
//   (3) after Evict
//
// clang-format on
//
// Without the option JoinWanted and RestartWanted are answered at once, and nothing else happens. A warning is given once
// for each sentence.
#pragma once

#include <set>
#include <string>
#include <variant>
#include <vector>

#include "agent/core/node_events.h"

namespace ddprun::agent {

namespace health {

enum class Severity { kWarning, kUnfit };  // the names of the event `health`

struct Finding {
  Severity severity{};
  std::string sentence;  // without its full stop
  bool operator==(const Finding&) const = default;
};

// ---- events

struct JoinWanted {};  // the node is about to join for the first time
struct CheckIsDue {};  // the timer has expired
struct NodeSuspected {};
struct RestartWanted {
};                      // the node is about to tell the leader that it is ready for the next round
struct HoldOver {};     // a stop has come, or the leader's word: nothing waits for a check
struct CheckAnswered {  // the answer to RunCheck; no finding: the node is fit
  std::vector<Finding> findings;
};
using Event =
    std::variant<JoinWanted, CheckIsDue, NodeSuspected, RestartWanted, HoldOver, CheckAnswered>;

// ---- actions

struct RunCheck {  // a run that has not ended is killed first, and its answer does not count
  bool operator==(const RunCheck&) const = default;
};
struct ArmTimer {
  bool operator==(const ArmTimer&) const = default;
};
struct LetJoin {
  bool operator==(const LetJoin&) const = default;
};
struct RefuseJoin {  // the node ends
  std::string sentence;
  bool operator==(const RefuseJoin&) const = default;
};
struct HoldRestart {
  bool operator==(const HoldRestart&) const = default;
};
struct LetRestart {
  bool operator==(const LetRestart&) const = default;
};
struct Warn {
  std::string sentence;
  bool operator==(const Warn&) const = default;
};
struct Evict {  // the job should go on without this node
  std::string sentence;
  bool operator==(const Evict&) const = default;
};
struct TakeBack {  // after Evict: it is fit again
  bool operator==(const TakeBack&) const = default;
};
using Action = std::variant<RunCheck, ArmTimer, LetJoin, RefuseJoin, HoldRestart, LetRestart, Warn,
                            Evict, TakeBack>;

class Core {
 public:
  explicit Core(bool is_on) : is_on_(is_on) {}

  std::vector<Action> step(const Event& event);

 private:
  using Out = std::vector<Action>;
  enum class Check { kNone, kFirst, kBackground, kAgain, kSuspicion };

  void on(Out& out, const JoinWanted&);
  void on(Out& out, const CheckIsDue&);
  void on(Out& out, const NodeSuspected&);
  void on(Out& out, const RestartWanted&);
  void on(Out& out, const HoldOver&);
  void on(Out& out, const CheckAnswered& answered);

  void begin(Out& out, Check check);
  void let_restart(Out& out);

  const bool is_on_;
  bool has_joined_ = false;
  Check check_ = Check::kNone;  // the one that runs
  bool is_restart_held_ = false;
  std::set<std::string> warned_of_;
  std::string unfit_before_;  // for which the node was evicted; empty: it is fit
};

// Whether what happens to this node makes it suspect: a worker of it fails before it is known that another node has lost
// one, or hangs. The end of a worker that was told to stop, that a user asked for, or whose peer is gone, says nothing about its node.
class Suspicion {
 public:
  // Each event of the NodeCore, before it takes it; `is_running`: as NodeCore::is_running().
  bool arises(const NodeEvent& event, bool is_running);

 private:
  bool is_peer_gone_ = false;  // in this round
};

}  // namespace health

}  // namespace ddprun::agent
