// Which hosts take part in no round as long as enough others are there, and why: a user has drained
// them, their health check calls them unfit, or failures led to them again and again. A value of the
// RoundCore; whether a node can be spared is Membership's decision.
//
//   what happens                                          what it means
//   a user drains a host, or its check calls it unfit     it is left out
//   the third failure within an hour leads to a host (1)  it is left out
//   the same rank fails on two hosts within that time     it is the program: failures of the rank count on no host, and a
//                                                         host that has fewer than three others is not left out any more
//   a user undrains a host                                it is not left out, whatever the reason was; no failure counts
//
//   (1) the first failure of a round, a worker replaced in place, or the first node that a round loses; not a worker that a
//       user has ended, or that the kernel has killed for memory; not where the host has several nodes
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/common/text/lists.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

// An agent that is started again is of the same host.
struct HostName {
  std::string host;
  std::string address;
  bool operator==(const HostName&) const = default;
};

struct LeftOutHost {
  enum class Cause { kDrained, kUnfit, kFailures };
  HostName name;
  Cause cause = Cause::kDrained;
  std::string why;  // "ddpctl drain (root, pid 4711)"
  bool operator==(const LeftOutHost&) const = default;
};

class LeftOutHosts {
 public:
  static constexpr int kFailuresMax = 3;
  static constexpr std::chrono::minutes kWindow{60};
  static constexpr std::size_t kHostsMax = 64;  // the record of a job has a limit, too

  LeftOutHosts() = default;
  explicit LeftOutHosts(std::vector<LeftOutHost> hosts) : hosts_(std::move(hosts)) {}

  // In the order in which they were left out.
  const std::vector<LeftOutHost>& all() const { return hosts_; }
  // Null: it is not left out.
  const LeftOutHost* find(const HostName& name) const {
    const auto found = std::ranges::find(hosts_, name, &LeftOutHost::name);
    return found == hosts_.end() ? nullptr : &*found;
  }

  // A later reason replaces an earlier one, but for one that a user has given.
  void leave_out(LeftOutHost host) {
    const auto* known = find(host.name);
    if (known != nullptr && known->cause == LeftOutHost::Cause::kDrained) return;
    if (known != nullptr) erase(host.name);
    if (hosts_.size() == kHostsMax) hosts_.erase(hosts_.begin());
    hosts_.push_back(std::move(host));
  }
  void take_back(const HostName& name) {
    erase(name);
    std::erase_if(failures_, [&name](const Failure& each) { return each.name == name; });
  }

  void failed(const HostName& name, const WorkerFailure& failure, CoreTime now) {
    if (failure.asked_by.empty() && !failure.killed_for_memory) note(name, failure.rank, now);
  }
  void was_lost(const HostName& name, CoreTime now) { note(name, {}, now); }

 private:
  struct Failure {
    HostName name;
    std::optional<int> rank;  // none: the node was lost
    CoreTime at;
  };

  int count(const HostName& name) const {
    return static_cast<int>(std::ranges::count(failures_, name, &Failure::name));
  }
  void erase(const HostName& name) {
    std::erase_if(hosts_, [&name](const LeftOutHost& each) { return each.name == name; });
  }

  void note(const HostName& name, std::optional<int> rank, CoreTime now) {
    std::erase_if(failures_, [&](const Failure& each) { return now - each.at >= kWindow; });
    const bool follows_rank = rank && std::ranges::any_of(failures_, [&](const Failure& each) {
                                return each.rank == rank && each.name != name;
                              });
    if (follows_rank) return acquit(*rank);
    failures_.push_back({name, rank, now});
    const int failures = count(name);
    if (failures < kFailuresMax) return;
    leave_out({name, LeftOutHost::Cause::kFailures,
               counted(failures, "failure") + " within an hour led to it"});
  }

  void acquit(int rank) {
    std::vector<HostName> of_rank;
    for (const Failure& each : failures_) {
      if (each.rank == rank) of_rank.push_back(each.name);
    }
    std::erase_if(failures_, [&](const Failure& each) { return each.rank == rank; });
    for (const HostName& name : of_rank) {
      const auto* known = find(name);
      const bool is_left_out = known != nullptr && known->cause == LeftOutHost::Cause::kFailures;
      if (is_left_out && count(name) < kFailuresMax) erase(name);
    }
  }

  std::vector<LeftOutHost> hosts_;
  std::vector<Failure> failures_;  // the oldest first
};

}  // namespace ddprun::rdzv
