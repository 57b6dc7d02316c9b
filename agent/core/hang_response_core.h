// Decides what follows the verdict that ranks hang: whose stacks are taken, when the report is made, whether those that
// hang are killed, and how often a node is asked to. Also what is said of a wait that lasts. A pure state machine; the shell
// (agent/supervisor/hang_response.h) performs the actions. Each case has a time limit of its own.
//
// clang-format off
//
//   Queued ──▶ First ──▶ Others ──Report──▶ Confirming ──▶ Ending ──▶ gone
//
//   event \ state   Queued       First              Others              Confirming                 Ending
//   StacksTaken     ignore       TakeStacks (1)     Report (2)          ignore                     ignore
//   Reported        ignore       ignore             Confirm (3)         ignore                     ignore
//   Confirmed       ignore       ignore             ignore              End, Warn or timer (4)     ignore
//   EndAnswered     ignore       ignore             ignore              ignore                     gone, timer or Warn (5)
//   TimerExpired    ignore       ignore             ignore              Confirm                    End
//   RoundOver       every case is gone, and what comes for it later is ignored
//
//   Found and Waits make a case, unless there are kCasesMax. TakeStacks of one case at a time: it runs debuggers. The next
//   one begins as soon as a case is in Confirming, or gone.
//   (1) those that hang come first: the tools for all others together may take longer than their limit. Of a wait that
//       lasts, only one stack is taken: ReportWait, and the case is gone
//   (2) the shell answers with Reported
//   (3) only if those that hang are to be killed and it is a verdict, else the case is gone
//   (4) End if it is still so, Warn and gone if it is not. While a debugger, or a tool that takes stacks, holds a rank it is
//       not known: the timer, and after kAttempts Warn and gone
//   (5) of ranks that no node has said to have: the timer, since a question may be lost, and after kAttempts Warn
//
// clang-format on
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/round/hang_core.h"

namespace ddprun::agent {

namespace hang_response {

enum class CaseId : std::uint64_t {};  // chosen by the shell; each one is larger than those before

// ---- events

struct Found {
  CaseId id{};
  rdzv::Hung hung;
};
struct Waits {
  CaseId id{};
  rdzv::WaitingFor wait;
};
struct StacksTaken {  // the answer to TakeStacks, complete or not
  CaseId id{};
};
struct Reported {  // the answer to Report: the ranks that hang, those with the same stack together
  CaseId id{};
  std::vector<std::vector<int>> culprits;
};
struct Confirmed {  // the answer to Confirm; none: a rank is held
  CaseId id{};
  std::optional<bool> is_so;
};
struct EndAnswered {  // the answer to End: of all nodes, or of those that have answered in time
  struct Refusal {
    std::vector<int> ranks;
    std::string why;
    bool operator==(const Refusal&) const = default;
  };
  CaseId id{};
  std::vector<int> known;  // these ranks are of a node that has answered
  std::vector<Refusal> refused = {};
};
struct TimerExpired {
  CaseId id{};
};
struct RoundOver {};

using Event = std::variant<Found, Waits, StacksTaken, Reported, Confirmed, EndAnswered,
                           TimerExpired, RoundOver>;

// ---- actions

struct TakeStacks {
  CaseId id{};
  std::vector<int> ranks;    // empty: all
  std::vector<int> without;  // not of these
  bool operator==(const TakeStacks&) const = default;
};
struct Report {
  CaseId id{};
  rdzv::Hung hung;
};
struct ReportWait {
  CaseId id{};
  rdzv::WaitingFor wait;
};
struct Confirm {
  CaseId id{};
  rdzv::Hung hung;
};
struct End {  // kill these on their nodes; those of one list have the same stack
  CaseId id{};
  std::vector<std::vector<int>> ranks;
};
struct Warn {
  std::string sentence;
  bool operator==(const Warn&) const = default;
};
struct ArmTimer {  // at most one is armed for each case
  CaseId id{};
  std::chrono::milliseconds after{};
  bool operator==(const ArmTimer&) const = default;
};
struct Forget {  // the case is gone, or was not taken
  CaseId id{};
  bool operator==(const Forget&) const = default;
};

using Action = std::variant<TakeStacks, Report, ReportWait, Confirm, End, Warn, ArmTimer, Forget>;

inline constexpr std::size_t kCasesMax = 8;
inline constexpr std::size_t kStacksMax = 8;  // lists in one End
inline constexpr std::size_t kRanksMax = 64;  // in one list: one is enough to end the round
inline constexpr int kAttempts = 5;
inline constexpr std::chrono::milliseconds kAgain{1'000};

class Core {
 public:
  // `ends`: those that hang are killed, if it is a verdict (--on-hang=restart).
  explicit Core(bool ends) : ends_(ends) {}

  std::vector<Action> step(const Event& event);

 private:
  using Out = std::vector<Action>;
  enum class Stage { kQueued, kFirst, kOthers, kConfirming, kEnding };
  struct Case {
    rdzv::Hung hung;
    std::optional<rdzv::WaitingFor> wait = {};
    Stage stage = Stage::kQueued;
    int attempts = 0;                             // in this stage
    std::vector<std::vector<int>> culprits = {};  // that no node has answered for
  };

  void on(Out& out, const Found& found) { add(out, found.id, {.hung = found.hung}); }
  void on(Out& out, const Waits& waits);
  void on(Out& out, const StacksTaken& taken);
  void on(Out& out, const Reported& reported);
  void on(Out& out, const Confirmed& confirmed);
  void on(Out& out, const EndAnswered& answered);
  void on(Out& out, const TimerExpired& expired);
  void on(Out& out, const RoundOver&);

  void add(Out& out, CaseId id, Case added);
  Case* find(CaseId id, Stage stage);
  void begin_next(Out& out);
  void remove(Out& out, CaseId id);

  const bool ends_;
  std::map<CaseId, Case> cases_;  // in the order of their arrival
};

}  // namespace hang_response

}  // namespace ddprun::agent
