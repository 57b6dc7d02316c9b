#include "agent/query/drain_query.h"

#include <algorithm>
#include <string>
#include <vector>

#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/lists.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kNamesMax = 8;

using State = MemberStatus::State;

bool is_same_host(const MemberStatus& a, const MemberStatus& b) {
  return a.host == b.host && a.address == b.address;
}

bool is_called(const MemberStatus& member, std::string_view name) {
  const bool is_rank = member.state == State::kInRound && member.node_rank &&
                       std::to_string(*member.node_rank) == name;
  return is_rank || member.host == name || member.address == name;
}

std::string names_of(const LeaderStatus& leader) {
  std::vector<std::string> names;
  for (const MemberStatus& each : leader.members) {
    names.push_back(printable(each.host) + " (" + printable(each.address) + ")");
  }
  return joined_some(names, kNamesMax);
}

int missing_without(const LeaderStatus& leader, const MemberStatus& host) {
  const auto others = std::ranges::count_if(leader.members, [&](const MemberStatus& each) {
    const bool is_out = each.state == State::kLeftOut || each.state == State::kDisconnected;
    return !is_out && each.left_out.empty() && !is_same_host(each, host);
  });
  return std::max(leader.min_nodes - static_cast<int>(others), 0);
}

Result<DrainedHost> host_called(const LeaderStatus& leader, std::string_view name) {
  const auto found = std::ranges::find_if(
      leader.members, [name](const MemberStatus& each) { return is_called(each, name); });
  if (found == leader.members.end()) {
    return fail(ErrorCode::kInvalidArgument, "no node of the job is called '" + printable(name) +
                                                 "'; there are " + names_of(leader));
  }
  const bool is_of_several = std::ranges::any_of(leader.members, [&](const MemberStatus& each) {
    return is_called(each, name) && !is_same_host(each, *found);
  });
  if (is_of_several) {
    return fail(ErrorCode::kInvalidArgument, "several nodes are called '" + printable(name) +
                                                 "'; give the address of one: " + names_of(leader));
  }
  const bool leads = std::ranges::any_of(leader.members, [&](const MemberStatus& each) {
    return each.leads && is_same_host(each, *found);
  });
  return DrainedHost{found->host, found->address, leads, found->left_out,
                     missing_without(leader, *found)};
}

}  // namespace

Result<DrainedHost> host_to_drain(const LeaderStatus& leader, std::string_view name) {
  if (leader.has_exact_ranks) {
    return fail(ErrorCode::kInvalidArgument,
                "each node of this job has its own rank, and no other node can come: none can be "
                "left out; --rdzv-backend=c10d or etcd-v2 with a spare allows it");
  }
  return host_called(leader, name);
}

Result<DrainedHost> host_to_undrain(const LeaderStatus& leader, std::string_view name) {
  auto host = host_called(leader, name);
  if (host) return host;
  const auto found = std::ranges::find_if(leader.left_out, [name](const auto& each) {
    return each.host == name || each.address == name;
  });
  if (found == leader.left_out.end()) return host;
  return DrainedHost{found->host, found->address, false, found->why, 0};
}

}  // namespace ddprun::agent
