// The const queries of a RoundCore.
#include <algorithm>
#include <utility>

#include "rendezvous/round/round_core.h"

namespace ddprun::rdzv {
namespace {

// `has_group`: the group formed last belongs to a round that runs, starts or stops.
std::vector<LeaderView::Member> members_in_view(const Membership& members,
                                                std::optional<NodeId> leader, bool has_group) {
  std::vector<LeaderView::Member> view;
  for (const NodeId id : members.all()) {
    const NodeHello& hello = members.hello_of(id);
    LeaderView::Member member{id, hello.host, hello.address, hello.local_world_size, {}, {}, {}};
    member.leads = id == leader;
    const bool is_in_round = has_group && members.is_in_group(id);
    member.node_rank = is_in_round ? members.rank_of(id) : hello.node_rank;
    using Place = LeaderView::Place;
    member.place = !members.is_connected(id)                       ? Place::kDisconnected
                   : is_in_round                                   ? Place::kInRound
                   : members.is_out(id)                            ? Place::kLeftOut
                   : members.has_room() || members.is_in_group(id) ? Place::kWaiting
                                                                   : Place::kSpare;
    view.push_back(std::move(member));
  }
  return view;
}

}  // namespace

std::string describe(const ToBeLeftOut& news) {
  return name_of(news.node) + " is to be left out: " + news.node.why +
         "; until it can be spared, it takes part";
}

std::optional<NodeId> RoundCore::first_node() const {
  return members_.group().empty() ? std::nullopt : std::optional(members_.group().front());
}

std::optional<CoreTime> RoundCore::deadline() const {
  std::optional<CoreTime> earliest;
  const auto consider = [&earliest](std::optional<CoreTime> when) {
    if (when && (!earliest || *when < *earliest)) earliest = when;
  };
  if (const auto broken = members_.longest_broken()) {
    consider(broken->since + config_.reconnect_grace);
  }
  consider(waiting_.deadline());
  if (const auto* gathering = std::get_if<Gathering>(&state_)) {
    consider(gathering->until());
    if (gathering->give_up) consider(gathering->notices.next());
  } else if (const auto* pausing = std::get_if<Pausing>(&state_)) {
    consider(pausing->until);
  } else if (const auto* opening = std::get_if<Opening>(&state_)) {
    consider(opening->until);
  } else if (const auto* running = std::get_if<Running>(&state_)) {
    const auto& under_way = running->replacements.under_way;
    if (under_way) consider(under_way->until);
    if (running->stop) consider(running->stop->until);
  } else if (const auto* stopping = std::get_if<StoppingRound>(&state_)) {
    if (const auto next = stopping->awaited.next()) consider(next->first);
  } else if (const auto* ended = std::get_if<Ended>(&state_)) {
    if (!ended->untold.empty()) consider(ended->until);
  }
  return earliest;
}

bool RoundCore::can_resume(NodeId node, std::uint64_t session) const {
  return members_.has(node) && members_.hello_of(node).session == session;
}

const JobOutcome* RoundCore::outcome() const {
  const auto* ended = std::get_if<Ended>(&state_);
  return ended == nullptr ? nullptr : &ended->outcome;
}

bool RoundCore::are_some_done() const {
  const auto* running = std::get_if<Running>(&state_);
  return running != nullptr && running->are_some_done;
}

bool RoundCore::was_everyone_told() const {
  const auto* ended = std::get_if<Ended>(&state_);
  return ended != nullptr && ended->untold.empty();
}

LeaderView RoundCore::view(CoreTime now) const {
  LeaderView view;
  view.state = static_cast<LeaderView::State>(state_.index());
  view.round = round_;
  view.min_nodes = config_.min_nodes;
  view.max_nodes = config_.max_nodes;
  view.ready = members_.ready();
  view.restarts = restarts();
  view.max_restarts = policy_.max_restarts();
  view.has_exact_ranks = config_.has_exact_ranks;
  view.is_finishing = are_some_done();
  for (const LeftOutHost& each : left_out_.all()) {
    const auto known = std::ranges::find_if(view.left_out, [&](const LeaderView::LeftOut& other) {
      return other.host == each.name.host && other.address == each.name.address;
    });
    if (known == view.left_out.end()) {
      view.left_out.push_back({each.name.host, each.name.address, each.why});
    } else {
      known->why += "; " + each.why;
    }
  }
  std::optional<CoreTime> until;
  if (const auto* gathering = std::get_if<Gathering>(&state_)) {
    until = gathering->until();
  } else if (const auto* pausing = std::get_if<Pausing>(&state_)) {
    until = pausing->until;
  }
  if (until) view.left = std::max(*until - now, CoreTime::duration::zero());
  const bool has_group = std::holds_alternative<Opening>(state_) || is_running() ||
                         std::holds_alternative<StoppingRound>(state_);
  view.members = members_in_view(members_, config_.own_node, has_group);
  return view;
}

}  // namespace ddprun::rdzv
