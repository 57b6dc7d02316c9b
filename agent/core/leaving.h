// Whether this node leaves the job while its workers run or are being stopped, and whether the leader knows. A value of
// the NodeCore.
//
//   event \ state        stays              untold             told               signalled
//   preempted, Running   untold (1)         ignore             ignore             ignore
//   preempted, else      tell; told         ignore             ignore             ignore
//   is due (2)           ignore             tell; told         ignore             ignore
//   stop signal          tell; signalled    tell (3); signalled  tell; signalled  the workers are killed
//
//   (1) its workers finish their step together with those of other nodes, which may have no notice of their own yet
//   (2) its workers have ended, the round is stopped, or the leader is lost or goes on without this node
//   (3) of the preemption, because that came first
#pragma once

#include <optional>
#include <variant>

#include "rendezvous/round/round_messages.h"

namespace ddprun::agent {

class Leaving {
 public:
  // Each returns what the leader is told now.
  std::optional<rdzv::NodeLeaving> preempted(int signal, bool is_running) {
    if (!std::holds_alternative<Stays>(state_)) return {};
    const rdzv::NodeLeaving leaving{signal, /*is_preemption=*/true};
    if (is_running) {
      state_ = Untold{leaving};
      return {};
    }
    state_ = Told{};
    return leaving;
  }
  std::optional<rdzv::NodeLeaving> is_due() {
    const auto* untold = std::get_if<Untold>(&state_);
    if (untold == nullptr) return {};
    const rdzv::NodeLeaving leaving = untold->leaving;
    state_ = Told{};
    return leaving;
  }
  // Nothing: it was signalled before.
  std::optional<rdzv::NodeLeaving> signalled(int signal) {
    if (std::holds_alternative<Signalled>(state_)) return {};
    const auto leaving = is_due().value_or(rdzv::NodeLeaving{signal});
    state_ = Signalled{};
    return leaving;
  }

  bool stays() const { return std::holds_alternative<Stays>(state_); }
  // The signal of a preemption that the leader does not know of.
  std::optional<int> untold_signal() const {
    const auto* untold = std::get_if<Untold>(&state_);
    return untold == nullptr ? std::nullopt : std::optional(untold->leaving.signal);
  }

 private:
  struct Stays {};
  struct Untold {
    rdzv::NodeLeaving leaving;
  };
  struct Told {};
  struct Signalled {};
  std::variant<Stays, Untold, Told, Signalled> state_;
};

}  // namespace ddprun::agent
