// The calls of a worker as JSON and back, for its status and for recordings. For sources, not for headers.
#pragma once

#include "agent/text/json_fields.h"
#include "rendezvous/common/worker_abi/group_calls.h"

namespace ddprun::agent {

template <>
inline constexpr std::array<std::string_view, 14> kNames<record::Operation>{
    "other",     "all_reduce",       "broadcast",  "reduce",  "all_gather", "gather",
    "scatter",   "reduce_scatter",   "all_to_all", "barrier", "send_recv",  "init_process_group",
    "new_group", "monitored_barrier"};
template <>
inline constexpr bool kMayGrow<record::Operation> = true;
template <>
inline constexpr std::array<std::string_view, 5> kNames<RankState>{"runs", "stopped", "traced",
                                                                   "uninterruptible", "frozen"};

void fields(auto& json, Is<GroupCall> auto& at) {
  json("operation", at.call.operation);
  json("type", at.call.type);
  json("root", at.call.root);
  json("elements", at.call.elements);
  json("signature", at.call.signature);
  json("number", at.number);
  json("is_over", at.is_over);
  json("since_us", at.since);
}

void fields(auto& json, Is<EarlierCall> auto& earlier) {
  json("number", earlier.number);
  json("operation", earlier.call.operation);
  json("type", earlier.call.type);
  json("root", earlier.call.root);
  json("elements", earlier.call.elements);
  json("signature", earlier.call.signature);
}

void fields(auto& json, Is<GroupCalls> auto& group) {
  json("group", group.name);
  json("id", group.id);
  json("size", group.size);
  json("rank", group.rank);
  json("calls", group.calls);
  json("at", group.at);
  json.may_lack("peer", group.peer);
  json.may_lack("since_entry_us", group.since_entry);
  json.may_lack("before", group.before);
}

}  // namespace ddprun::agent
