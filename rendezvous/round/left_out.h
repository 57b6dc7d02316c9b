// Which hosts take part in no round as long as enough others are there, and why: a user has drained them, their health
// check calls them unfit, or failures led to them again and again. A value of the RoundCore; whether a node can be spared is
// Membership's decision.
//
//   what happens                                           what it means for the host
//   a user drains it                                       drained
//   its health check calls it unfit; fit again             unfit; not any more
//   the third failure within an hour leads to it, and      blamed
//     more than to all other hosts together (1)
//   the same rank fails on two hosts within that time      it is the program: failures of the rank count on no host for an hour, and
//                                                          a host with fewer than three others is not blamed any more
//   a user undrains it                                     none of these; no failure of before counts
//
//   (1) the first failure of a round, a worker replaced in place, or the first node that a round loses; not a worker that a
//       user has ended, or that the kernel has killed for memory; not where the host has several nodes
#pragma once

#include <algorithm>
#include <array>
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

struct LeftOutHost {
  enum class Cause { kDrained, kUnfit, kFailures };  // numbers in the job's record
  HostName name;
  Cause cause = Cause::kDrained;
  std::string why;  // "ddpctl drain (root, pid 4711)"
  bool operator==(const LeftOutHost&) const = default;
};

// The better ones first.
enum class Standing {
  kFit,
  kBlamed,   // for failures: a fit spare takes its place, but no round is smaller for it
  kDrained,  // not in a round as long as the others are not fewer than the minimum
  kUnfit,    // likewise, and before drained ones
};

class LeftOutHosts {
 public:
  using Cause = LeftOutHost::Cause;
  static constexpr int kFailuresMax = 3;
  static constexpr std::chrono::minutes kWindow{60};
  static constexpr std::size_t kReasonsMax = 64;  // the record of a job has a limit, too

  LeftOutHosts() = default;
  explicit LeftOutHosts(std::vector<LeftOutHost> hosts) : hosts_(std::move(hosts)) {}

  // A host may have one of each cause. In the order in which they came.
  const std::vector<LeftOutHost>& all() const { return hosts_; }
  Standing standing(const HostName& name) const {
    if (has(name, Cause::kUnfit)) return Standing::kUnfit;
    if (has(name, Cause::kDrained)) return Standing::kDrained;
    return has(name, Cause::kFailures) ? Standing::kBlamed : Standing::kFit;
  }
  std::string why(const HostName& name) const {
    std::vector<std::string> reasons;
    for (const LeftOutHost& each : hosts_) {
      if (each.name == name) reasons.push_back(each.why);
    }
    return joined(reasons, "; ");
  }

  void leave_out(LeftOutHost host) {
    erase(host.name, host.cause);
    if (hosts_.size() == kReasonsMax) make_room();
    hosts_.push_back(std::move(host));
  }
  void is_fit(const HostName& name) { erase(name, Cause::kUnfit); }
  void take_back(const HostName& name) {
    std::erase_if(hosts_, [&name](const LeftOutHost& each) { return each.name == name; });
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
  struct Acquittal {
    int rank = 0;
    CoreTime at;
  };

  bool has(const HostName& name, Cause cause) const {
    return std::ranges::any_of(
        hosts_, [&](const LeftOutHost& each) { return each.name == name && each.cause == cause; });
  }
  void erase(const HostName& name, Cause cause) {
    std::erase_if(
        hosts_, [&](const LeftOutHost& each) { return each.name == name && each.cause == cause; });
  }
  // The user's word goes last.
  void make_room() {
    for (const Cause cause : {Cause::kFailures, Cause::kUnfit, Cause::kDrained}) {
      const auto found = std::ranges::find(hosts_, cause, &LeftOutHost::cause);
      if (found == hosts_.end()) continue;
      hosts_.erase(found);
      return;
    }
  }
  int count(const HostName& name) const {
    return static_cast<int>(std::ranges::count(failures_, name, &Failure::name));
  }

  void note(const HostName& name, std::optional<int> rank, CoreTime now) {
    const auto is_over = [now](const auto& each) { return now - each.at >= kWindow; };
    std::erase_if(failures_, is_over);
    std::erase_if(acquittals_, is_over);
    if (rank && std::ranges::count(acquittals_, *rank, &Acquittal::rank) > 0) return;
    const bool follows_rank = rank && std::ranges::any_of(failures_, [&](const Failure& each) {
                                return each.rank == rank && each.name != name;
                              });
    if (follows_rank) return acquit(*rank, now);
    failures_.push_back({name, rank, now});
    const int failures = count(name);
    const int others = static_cast<int>(failures_.size()) - failures;
    if (failures < kFailuresMax || failures <= others) return;
    leave_out({name, Cause::kFailures, counted(failures, "failure") + " within an hour led to it"});
  }

  void acquit(int rank, CoreTime now) {
    acquittals_.push_back({rank, now});
    std::vector<HostName> of_rank;
    for (const Failure& each : failures_) {
      if (each.rank == rank) of_rank.push_back(each.name);
    }
    std::erase_if(failures_, [&](const Failure& each) { return each.rank == rank; });
    for (const HostName& name : of_rank) {
      if (count(name) < kFailuresMax) erase(name, Cause::kFailures);
    }
  }

  std::vector<LeftOutHost> hosts_;
  std::vector<Failure> failures_;  // the oldest first
  std::vector<Acquittal> acquittals_;
};

}  // namespace ddprun::rdzv
