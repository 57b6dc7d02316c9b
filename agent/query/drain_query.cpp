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

}  // namespace

Result<DrainedHost> drained_host(const LeaderStatus& leader, std::string_view name) {
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
  const auto others = std::ranges::count_if(leader.members, [&](const MemberStatus& each) {
    return each.left_out.empty() && each.state != State::kDisconnected &&
           !is_same_host(each, *found);
  });
  return DrainedHost{*found, std::max(leader.min_nodes - static_cast<int>(others), 0)};
}

}  // namespace ddprun::agent
