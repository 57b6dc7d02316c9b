#include "agent/status/job_status.h"

#include <array>

#include "agent/status/status_json.h"

namespace ddprun::agent {
namespace {

using namespace status_json;

constexpr std::array<std::string_view, 4> kMemberStates{"in_round", "waiting", "spare",
                                                        "disconnected"};

json::value member_value(const MemberStatus& member) {
  return json::object{{"id", member.id},
                      {"host", text(member.host)},
                      {"address", text(member.address)},
                      {"workers", member.workers},
                      {"node_rank", or_null(member.node_rank)},
                      {"state", text(name_of(member.state))}};
}

MemberStatus member_from(const json::value& value) {
  const Reader from(value);
  MemberStatus member;
  member.id = from.number<std::uint32_t>("id");
  member.host = from.text("host");
  member.address = from.text("address");
  member.workers = from.number<int>("workers");
  member.node_rank = from.maybe_number<int>("node_rank");
  member.state = from.one_of<MemberStatus::State>(kMemberStates, "state");
  return member;
}

json::value leader_value(const std::optional<LeaderStatus>& leader) {
  if (!leader) return nullptr;
  json::array members;
  for (const MemberStatus& member : leader->members) members.push_back(member_value(member));
  return json::object{
      {"state", text(leader->state)},
      {"round", number(leader->round)},
      {"min_nodes", leader->min_nodes},
      {"max_nodes", leader->max_nodes},
      {"missing", leader->missing},
      {"missing_ranks", json::array(leader->missing_ranks.begin(), leader->missing_ranks.end())},
      {"left_us", leader->left ? json::value(in_us(*leader->left)) : nullptr},
      {"restarts", leader->restarts},
      {"max_restarts", leader->max_restarts},
      {"members", std::move(members)},
      {"members_left_out", leader->members_left_out}};
}

std::optional<LeaderStatus> leader_from(const json::value& value) {
  if (value.is_null()) return std::nullopt;
  const Reader from(value);
  LeaderStatus leader;
  leader.state = from.text("state");
  leader.round = Round{from.number<std::uint32_t>("round")};
  leader.min_nodes = from.number<int>("min_nodes");
  leader.max_nodes = from.number<int>("max_nodes");
  leader.missing = from.number<int>("missing");
  for (const json::value& rank : from.list("missing_ranks")) {
    leader.missing_ranks.push_back(rank.to_number<int>());
  }
  if (from.has("left_us")) leader.left = from.us("left_us");
  leader.restarts = from.number<int>("restarts");
  leader.max_restarts = from.number<int>("max_restarts");
  for (const json::value& member : from.list("members")) {
    leader.members.push_back(member_from(member));
  }
  if (from.object.contains("members_left_out")) {
    leader.members_left_out = from.number<int>("members_left_out");
  }
  return leader;
}

}  // namespace

std::string_view name_of(MemberStatus::State state) {
  return kMemberStates[static_cast<std::size_t>(state)];
}

std::string to_json(const JobStatus& status) {
  json::array nodes;
  for (const NodeStatus& node : status.nodes) nodes.push_back(value_of(node));
  json::array late;
  for (const LateNode& node : status.late) {
    late.push_back(
        json::object{{"id", node.id}, {"host", text(node.host)}, {"why", text(node.why)}});
  }
  return json::serialize(json::object{{"schema", kStatusSchema},
                                      {"job", text(status.run_id)},
                                      {"program", text(status.program)},
                                      {"version", text(status.version)},
                                      {"when_unix_us", unix_us(status.when)},
                                      {"asked_host", text(status.asked_host)},
                                      {"leader", leader_value(status.leader)},
                                      {"nodes", std::move(nodes)},
                                      {"nodes_left_out", status.nodes_left_out},
                                      {"late", std::move(late)}});
}

namespace {

// Removes half of the list; returns how many.
template <typename T>
int halve(std::vector<T>& list) {
  const std::size_t left_out = (list.size() + 1) / 2;
  list.resize(list.size() - left_out);
  return static_cast<int>(left_out);
}

// False: nothing of this kind is left to remove.
bool shorten(JobStatus& status) {
  bool has_shortened = false;
  for (NodeStatus& node : status.nodes) {
    has_shortened |= !node.events.empty();
    node.events.clear();
  }
  if (has_shortened) return true;
  for (NodeStatus& node : status.nodes) {
    auto& restarts = node.recent_restarts;
    has_shortened |= !restarts.empty();
    restarts.erase(restarts.begin(),
                   restarts.end() - static_cast<std::ptrdiff_t>(restarts.size() / 2));
  }
  if (has_shortened) return true;
  for (NodeStatus& node : status.nodes) {
    has_shortened |= !node.workers.empty();
    node.workers_left_out += halve(node.workers);
  }
  if (has_shortened) return true;
  if (!status.late.empty()) return halve(status.late), true;
  if (status.leader && !status.leader->members.empty()) {
    status.leader->members_left_out += halve(status.leader->members);
    return true;
  }
  if (status.nodes.empty()) return false;
  status.nodes_left_out += halve(status.nodes);
  return true;
}

}  // namespace

std::string to_json_within(JobStatus status, std::size_t bytes_max) {
  std::string text = to_json(status);
  while (text.size() > bytes_max && shorten(status)) text = to_json(status);
  return text;
}

Result<JobStatus> job_status_from(std::string_view text) {
  return parse_status(text, "the status of a job", [](const json::value& value) {
    const Reader from(value);
    JobStatus status;
    status.run_id = from.text("job");
    status.program = from.text("program");
    status.version = from.text("version");
    status.when = from.unix_us("when_unix_us");
    status.asked_host = from.text("asked_host");
    status.leader = leader_from(from.at("leader"));
    for (const json::value& node : from.list("nodes")) {
      status.nodes.push_back(status_json::node_status_from(node));
    }
    if (from.object.contains("nodes_left_out")) {
      status.nodes_left_out = from.number<int>("nodes_left_out");
    }
    for (const json::value& each : from.list("late")) {
      const Reader node(each);
      status.late.push_back(
          {node.number<std::uint32_t>("id"), node.text("host"), node.text("why")});
    }
    return status;
  });
}

}  // namespace ddprun::agent
