// What must hold in every simulated job, checked against the true state of the simulation (which
// workers live, which failed by themselves), not against the cores' view. Throws Violation.
//
// clang-format off
//   agreement    the RoundStarts of a round agree; ranks are 0 … world - 1 without gaps, per role too;
//                group size between min and max; exact ranks are those asked for; survivors keep
//                their order, newcomers come after them; no connected node stays outside
//                while there is room and no worker has finished
//   one round    when a round is announced, no worker of an earlier one lives on a node of it; an
//                agent starts workers only when none of its own live
//   fresh store  MASTER_PORT is that of the store which rank 0's agent has open for this very round
//   success      only when every worker of the last round has ended with 0
//   budget       one restart for a round that a worker's failure ended, none for one that lost a node
//                (except for a failure that this node itself had reported); never more than allowed;
//                only if a worker failed by itself in that round
//   replacement  a worker is replaced in place exactly if the ladder allows it, on all nodes, in the next
//                generation, and is charged once; when it is over all nodes are in that generation; it is
//                over, or the round is stopped, within its time limit; at any time a rank has one process
//                at most; a step that ends its rank twice ends the job
//   left out     a host that is drained or unfit has a node in a round only while fewer others than the minimum are there; as soon
//                as it can be spared, its round is stopped; one that failures lead to again and again only if no fit node waits
//   broken group workers that are stopped since another one failed, or a node is lost, were told so before
//   delivery     no message is lost to a connection that breaks and is resumed; a short break ends
//                no round
//   progress     a dead node is noticed in time; long after the last fault the job has ended, and
//                no agent waits
//   new leader   a leader that is killed and started again takes over: the rounds of an agent go up, no
//                restart that an agent was told of is forgotten, and a job that lost nothing but its
//                leader for a short time succeeds
//   outcome      every agent ends as the leader decided, except those that left, lost the leader, or
//                never joined; none of their workers is left
// clang-format on
#pragma once

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/common/exit_codes.h"
#include "rendezvous/round/round_core.h"
#include "tests/sim/schedule.h"

namespace ddprun::sim {

struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void require(bool holds, const char* what) {
  if (!holds) throw Violation(what);
}

class Invariants {
 public:
  explicit Invariants(const Schedule& schedule) : schedule_(schedule) {}

  // The true state of an agent.
  struct Facts {
    bool is_gone = false;     // dead or about to exit; the leader may not know yet
    bool is_leaving = false;  // was signalled; likewise
    int live_workers = 0;
    std::uint32_t generation = 0;  // of its workers' groups
    std::optional<Round> store;    // the round whose store is open there
    std::uint16_t store_port = 0;
  };
  struct NodeView {
    rdzv::NodeHello hello;
    bool is_connected = true;  // as far as the leader can know
    std::shared_ptr<const Facts> facts;
  };
  using Views = std::map<NodeId, NodeView>;

  // Called around every step of the leader.
  void before_step(const rdzv::RoundCore& core) {
    was_running_ = core.is_running();
    was_stop_ahead_ = core.is_stop_ahead();
    had_ended_ = core.has_ended();
    round_before_ = core.round();
    restarts_before_ = core.restarts_in_all();
  }
  void after_step(const rdzv::RoundCore& core, const rdzv::RoundInput& input,
                  const std::vector<rdzv::ToNode>& out, const Views& nodes) {
    const NodeId from = input.node;
    const auto* message = std::get_if<rdzv::ToLeader>(&input.what);
    counted_before_ = counted(input.at);
    if (!had_ended_) note_left_out(core, input, nodes);
    for (const auto& each : out) {
      const auto* spare = std::get_if<rdzv::WaitAsSpare>(&each.message);
      if (spare != nullptr && spare->why == rdzv::WaitAsSpare::Why::kLeftOut) {
        left_out_since_.insert(each.to);
      }
    }
    const int replaced = replacements(core, input, out, nodes);
    if (was_running_ && !core.is_running()) note_cause(core, from, message, out);
    // Whether it will still be spared then is not known.
    if (was_running_ && (!core.is_running() || core.is_stop_ahead())) {
      is_for_left_out_ |= left_out_in_group(nodes) > 0;
    }
    are_some_done_ |= was_running_ && (std::get_if<rdzv::SomeWorkersDone>(message) ||
                                       std::get_if<rdzv::WorkersDone>(message));
    while (std::cmp_less(spent_.size(), core.restarts_in_all())) spent_.push_back(input.at);
    require(counted(input.at) <= schedule_.config.restarts.max_restarts,
            "more restarts than --max-restarts");
    require(counted(input.at) == core.restarts(),
            "restarts are not counted as long as they should");
    require(core.round() >= round_before_, "the round number went back");
    const bool is_settled =
        is_announced_ && (core.round() != round_before_ || (core.has_ended() && !had_ended_));
    if (is_settled) {
      settled(core, nodes);
      is_announced_ = false;
    } else {
      const auto* hello = std::get_if<rdzv::NodeHello>(message);
      // A leader whose job has ended, or that refuses the node, learns nothing from it.
      const bool learns = hello != nullptr && hello->last_round && !had_ended_ && core.has(from);
      const int told = learns ? hello->last_round->restarts : 0;
      // With a window, what it was told of rounds that it has led itself may be long ago.
      const bool is_of_before = rounds_ > 0 && learns && hello->last_round->round <= round_before_;
      const bool counts = !is_of_before || schedule_.config.restarts.window.count() == 0;
      const int most = counts ? schedule_.config.restarts.max_restarts : 0;
      const int learned = std::max(0, std::min(told, most) - counted_before_);
      require(core.restarts_in_all() == restarts_before_ + learned + replaced,
              "budget was spent in the middle of a round");
    }
    const bool announces = std::ranges::any_of(out, [](const rdzv::ToNode& each) {
      return std::holds_alternative<rdzv::RoundStart>(each.message);
    });
    if (announces) announced(core, out, nodes);
    if (core.has_ended()) {
      ended(core, *core.outcome());
      for (const auto& each : out) {
        const auto* end = std::get_if<rdzv::JobEnd>(&each.message);
        require(end == nullptr || end->outcome == *outcome_, "nodes are told different outcomes");
      }
    }
    if (!core.is_running() || are_some_done_ || core.is_stop_ahead()) return;
    require(!core.may_spare_now() || left_out_in_group(nodes) <= needed(core, nodes),
            "a node that is to be left out can be spared, and stays in the round");
    if (group_.size() >= static_cast<std::size_t>(schedule_.config.max_nodes)) return;
    for (const auto& [id, node] : nodes) {
      require(!core.has(id) || !node.is_connected || starts_.contains(id) || is_left_out(node),
              "a node waits though there is room and nobody has finished");
    }
  }

  void workers_started(NodeId node, const rdzv::RoundStart& start) const {
    if (starts_.empty() || starts_.begin()->second.round != start.round) return;  // overtaken
    require(starts_.contains(node) && starts_.at(node) == start,
            "an agent started a round that it was not told of");
  }
  void worker_failed_by_itself(Round round) { faults_of_workers_.insert(round); }
  void worker_succeeded(Round round) { successes_[round] += 1; }

  // Another process leads, after the last one was killed.
  void leader_began() {
    if (outcome_) outcomes_of_others_.push_back(*std::exchange(outcome_, std::nullopt));
    rounds_of_others_ += std::exchange(rounds_, 0);
    is_announced_ = are_some_done_ = false;
    starts_.clear();
    group_.clear();
    failed_first_.reset();
    faults_of_workers_.clear();
    successes_.clear();
    forget_replacements();
    spent_.clear();
    best_step_.reset();
    with_steps_.clear();
    in_vain_ = 0;
    reasons_.clear();
    failures_of_hosts_.clear();
    ranks_of_program_.clear();
    is_node_gone_ = is_for_left_out_ = false;
    left_out_since_.clear();
  }
  // Time limits are longer then.
  void leader_pauses() { was_leader_paused_ = true; }

  const std::optional<rdzv::JobOutcome>& outcome() const { return outcome_; }
  // Whether this leader, or an earlier one that was killed, has decided this outcome.
  bool was_outcome(const rdzv::JobOutcome& outcome) const {
    return outcome == outcome_ || std::ranges::count(outcomes_of_others_, outcome) > 0;
  }
  int rounds() const { return rounds_of_others_ + rounds_; }

 private:
  // Those that the leader has begun and that are not over.
  struct Replacing {
    NodeId first{};
    int rank = 0;
    bool is_only_one = true;
    std::set<NodeId> regrouped;
    std::set<int> newcomers;  // ranks that have the state from another since, or not yet
    CoreTime until;
  };
  struct Replaced {
    std::int64_t committed = 0;
    std::uint32_t generation = 0;
  };

  void forget_replacements() {
    recovering_.clear();
    replaced_.clear();
    replacing_.reset();
    generation_ = 0;
    is_paid_ = is_poison_ = false;
  }

  // ---- hosts that are left out

  struct Reasons {
    bool is_drained = false;
    bool is_unfit = false;
    bool is_blamed = false;
  };
  // An agent that is started again has another address here.
  static std::string name_of(const NodeView& node) {
    return node.hello.host + " " + node.hello.address;
  }
  bool is_left_out(const NodeView& node) const {
    const auto found = reasons_.find(name_of(node));
    return found != reasons_.end() && (found->second.is_drained || found->second.is_unfit);
  }
  bool is_blamed(const NodeView& node) const {
    const auto found = reasons_.find(name_of(node));
    return found != reasons_.end() && found->second.is_blamed;
  }
  int left_out_in_group(const Views& nodes) const {
    return static_cast<int>(
        std::ranges::count_if(group_, [&](NodeId id) { return is_left_out(nodes.at(id)); }));
  }
  // How many of these nodes cannot be spared.
  int needed(const rdzv::RoundCore& core, const Views& nodes) const {
    const auto is_usable = [&](const auto& each) {
      // A node whose exact rank another has is none yet.
      const bool is_outside = each.second.is_connected && !schedule_.config.has_exact_ranks;
      const bool is_there = is_outside || starts_.contains(each.first);
      return is_there && core.has(each.first) && !is_left_out(each.second);
    };
    const auto usable = std::ranges::count_if(nodes, is_usable);
    return std::max(0, schedule_.config.min_nodes - static_cast<int>(usable));
  }

  void note_left_out(const rdzv::RoundCore& core, const rdzv::RoundInput& input,
                     const Views& nodes) {
    const auto* message = std::get_if<rdzv::ToLeader>(&input.what);
    const bool is_known = message != nullptr && core.has(input.node);
    if (const auto* asked = std::get_if<rdzv::DrainAsked>(message); asked != nullptr && is_known) {
      const std::string host = asked->name.host + " " + asked->name.address;
      if (asked->what == rdzv::DrainAsked::What::kUndrain) {
        reasons_.erase(host);
        std::erase_if(failures_of_hosts_, [&](const auto& each) { return each.first == host; });
      } else {
        reasons_[host].is_drained = true;
      }
    }
    if (is_known && std::holds_alternative<rdzv::NodeUnfit>(*message)) {
      reasons_[name_of(nodes.at(input.node))].is_unfit = true;
    }
    if (is_known && std::holds_alternative<rdzv::NodeFit>(*message)) {
      reasons_[name_of(nodes.at(input.node))].is_unfit = false;
    }
    for (const rdzv::LeaderNews& news : core.news()) {
      const auto* gone = std::get_if<rdzv::NodeGone>(&news);
      if (gone == nullptr) continue;
      const auto found = std::ranges::find_if(
          group_, [&](NodeId id) { return nodes.at(id).hello.host == gone->host; });
      if (found == group_.end() || std::exchange(is_node_gone_, true)) continue;
      using How = rdzv::NodeGone::How;
      if (gone->how == How::kLeft || gone->how == How::kLeftOut) continue;
      if (members(core, nodes) == 0) continue;  // it was the only one
      failed_on(name_of(nodes.at(*found)), {});
    }
  }

  // The third failure blames a host, if all others together have fewer; a rank that fails on two hosts is the program.
  void failed_on(const std::string& host, std::optional<int> rank) {
    if (schedule_.config.has_exact_ranks || (rank && ranks_of_program_.contains(*rank))) return;
    const bool is_of_program =
        rank && std::ranges::any_of(failures_of_hosts_, [&](const auto& each) {
          return each.second == rank && each.first != host;
        });
    if (!is_of_program) {
      failures_of_hosts_.emplace_back(host, rank);
      const auto its = failures_on(host);
      const auto all = static_cast<std::ptrdiff_t>(failures_of_hosts_.size());
      if (its >= 3 && its > all - its) reasons_[host].is_blamed = true;
      return;
    }
    ranks_of_program_.insert(*rank);
    std::set<std::string> acquitted;
    for (const auto& [name, its] : failures_of_hosts_) {
      if (its == rank) acquitted.insert(name);
    }
    std::erase_if(failures_of_hosts_, [&](const auto& each) { return each.second == rank; });
    for (const std::string& name : acquitted) {
      if (failures_on(name) < 3) reasons_[name].is_blamed = false;
    }
  }
  static std::ptrdiff_t members(const rdzv::RoundCore& core, const Views& nodes) {
    return std::ranges::count_if(nodes, [&](const auto& each) { return core.has(each.first); });
  }
  std::ptrdiff_t failures_on(const std::string& host) const {
    return std::ranges::count(failures_of_hosts_, host,
                              [](const auto& each) { return each.first; });
  }

  // Returns how many were begun.
  int replacements(const rdzv::RoundCore& core, const rdzv::RoundInput& input,
                   const std::vector<rdzv::ToNode>& out, const Views& nodes) {
    std::map<NodeId, rdzv::ReplaceWorker> orders;
    for (const auto& each : out) {
      const auto* order = std::get_if<rdzv::ReplaceWorker>(&each.message);
      require(order == nullptr || orders.emplace(each.to, *order).second,
              "a node is told twice of one replacement");
    }
    const auto* message = std::get_if<rdzv::ToLeader>(&input.what);
    const auto* failed = std::get_if<rdzv::WorkerReplaceable>(message);
    const auto is_current = [&](Round round) {
      return was_running_ && round == round_before_ && starts_.contains(input.node) &&
             core.has(input.node);
    };
    if (const auto* can = std::get_if<rdzv::WorkersRecover>(message); can && is_current(can->round))
      recovering_.insert(input.node);
    const auto* regrouped = std::get_if<rdzv::Regrouped>(message);
    if (regrouped != nullptr && is_current(regrouped->round))
      has_regrouped(*regrouped, input.node, nodes);
    const bool is_failure = failed != nullptr && is_current(failed->round);
    is_poison_ |= is_failure && is_poison(*failed);
    const auto is_connected = [&](NodeId id) { return core.has(id) && nodes.at(id).is_connected; };
    const bool may_be =
        is_failure && failed->has_standby && !is_poison_ && has_anyone_the_state_without(*failed) &&
        std::ranges::all_of(group_, is_connected) && recovering_.size() == group_.size() &&
        !are_some_done_ && failed->committed > 0 &&
        counted_before_ < schedule_.config.restarts.max_restarts &&
        !(was_stop_ahead_ && orders.empty());  // it was to be stopped already
    require(may_be || orders.empty(), "a worker was replaced that must not be");
    require(!may_be || !orders.empty(), "a worker that could be replaced ended the round");
    if (may_be) begin_replacement(core, input, *failed, orders, nodes);
    require(
        !replacing_ || !core.is_running() || was_leader_paused_ || input.at <= replacing_->until,
        "a replacement has not ended within its time limit");
    require(!replacing_ || !core.is_running() || core.deadline(),
            "a replacement has no time limit");
    return may_be ? 1 : 0;
  }

  void begin_replacement(const rdzv::RoundCore& core, const rdzv::RoundInput& input,
                         const rdzv::WorkerReplaceable& failed,
                         const std::map<NodeId, rdzv::ReplaceWorker>& orders, const Views& nodes) {
    auto newcomers = newcomers_with(failed);
    generation_ += 1;
    if (members(core, nodes) >= 2) failed_on(name_of(nodes.at(input.node)), failed.failure.rank);
    for (const NodeId id : group_) {
      require(orders.contains(id) || !core.has(id), "a node is not told of a replacement");
    }
    for (const auto& [id, order] : orders) {
      require(starts_.contains(id) && order.round == core.round() &&
                  order.generation == generation_ && order.rank == failed.failure.rank &&
                  order.restarts == core.restarts(),
              "nodes are told different things of a replacement");
    }
    // It may be the consequence of a loss or a leave that the leader does not know of yet.
    const auto is_gone = [&](NodeId id) {
      return nodes.at(id).facts->is_gone || nodes.at(id).facts->is_leaving;
    };
    require(faults_of_workers_.contains(core.round()) || std::ranges::any_of(group_, is_gone),
            "budget was spent where no worker failed by itself");
    replaced_[failed.failure.rank] = {failed.committed, generation_};
    const bool is_first = !replacing_;
    if (is_first) replacing_ = Replacing{input.node, failed.failure.rank, true, {}, {}, {}};
    replacing_->newcomers = std::move(newcomers);
    replacing_->is_only_one = is_first;
    replacing_->regrouped.clear();
    replacing_->until = input.at + schedule_.config.replace_timeout;
  }

  void has_regrouped(const rdzv::Regrouped& regrouped, NodeId node, const Views& nodes) {
    if (!replacing_ || regrouped.generation != generation_) return;
    replacing_->regrouped.insert(node);
    if (replacing_->regrouped.size() < group_.size()) return;
    for (const NodeId id : group_) {
      const auto& facts = *nodes.at(id).facts;
      require(facts.is_gone || facts.generation == generation_,
              "a replacement is over, and its nodes are not in the same generation");
    }
    replacing_.reset();
  }

  // The ranks that need the state from another one, with this one; who died in the last generation had come there with
  // all others.
  std::set<int> newcomers_with(const rdzv::WorkerReplaceable& failed) const {
    std::set<int> ranks{failed.failure.rank};
    if (replacing_ && failed.generation != generation_)
      ranks.insert(replacing_->newcomers.begin(), replacing_->newcomers.end());
    return ranks;
  }
  bool has_anyone_the_state_without(const rdzv::WorkerReplaceable& failed) const {
    return std::cmp_less(newcomers_with(failed).size(), starts_.begin()->second.world_size);
  }

  bool is_poison(const rdzv::WorkerReplaceable& failed) const {
    const bool is_alone =
        !replacing_ || (replacing_->is_only_one && replacing_->rank == failed.failure.rank);
    const auto before = replaced_.find(failed.failure.rank);
    return is_alone && before != replaced_.end() && before->second.committed == failed.committed &&
           failed.generation >= before->second.generation;
  }

  // Of the end of the round that runs.
  void note_cause(const rdzv::RoundCore& core, NodeId from, const rdzv::ToLeader* message,
                  const std::vector<rdzv::ToNode>& out) {
    const bool is_failure = std::get_if<rdzv::WorkerFailed>(message) != nullptr ||
                            std::get_if<rdzv::WorkerReplaceable>(message) != nullptr;
    const bool are_all_there = std::ranges::all_of(group_, [&](NodeId id) { return core.has(id); });
    const bool is_stopped_for_failure = std::ranges::any_of(out, [](const rdzv::ToNode& each) {
      const auto* stop = std::get_if<rdzv::RoundStop>(&each.message);
      return stop != nullptr && stop->why == rdzv::RoundStop::Why::kFailure;
    });
    is_paid_ = replacing_ && !is_poison_ && are_all_there && is_stopped_for_failure;
    if (is_paid_) {
      failed_first_ = replacing_->first;
    } else if (is_failure && is_stopped_for_failure) {  // else it was to be stopped already
      failed_first_ = from;
      const auto* failed = std::get_if<rdzv::WorkerFailed>(message);
      const rdzv::WorkerFailure& cause =
          failed == nullptr ? std::get<rdzv::WorkerReplaceable>(*message).failure : failed->failure;
      cause_rank_ = cause.rank;
      cause_step_ = cause.progress ? cause.progress->step : std::nullopt;
      cause_is_counted_ = cause_step_ && cause.progress->step_kind == StepKind::kCounted;
    }
    replacing_.reset();
  }

  // Restarts that count at this time.
  int counted(CoreTime at) const {
    const auto window = schedule_.config.restarts.window;
    return static_cast<int>(std::ranges::count_if(
        spent_, [&](CoreTime spent) { return window.count() == 0 || at - spent < window; }));
  }

  // What a failure says of the job's progress.
  void note_progress() {
    if (cause_is_counted_) return;
    if (!cause_step_) {
      in_vain_ += best_step_ && with_steps_.contains(cause_rank_) ? 1 : 0;
      return;
    }
    with_steps_.insert(cause_rank_);
    if (!best_step_ || *cause_step_ > *best_step_) {
      best_step_ = cause_step_;
      in_vain_ = 0;
    } else {
      in_vain_ += 1;
    }
  }
  bool is_in_vain() const {
    const int most = schedule_.config.restarts.no_progress_restarts;
    return most > 0 && in_vain_ >= most;
  }

  void settled(const rdzv::RoundCore& core, const Views& nodes) {
    std::set<NodeId> gone;
    for (const NodeId id : group_) {
      if (!core.has(id)) gone.insert(id);
    }
    const int charged = core.restarts_in_all() - restarts_before_;
    const bool is_own_fault = failed_first_ && gone.size() == gone.count(*failed_first_);
    if (is_own_fault) note_progress();
    if (is_own_fault && !is_paid_ && gone.empty() && members(core, nodes) >= 2) {
      failed_on(name_of(nodes.at(*failed_first_)), cause_rank_);
    }
    require(core.has_ended() || !is_own_fault || !is_in_vain(),
            "a job that makes no progress is tried again");
    if (core.has_ended()) {
      require(charged == 0, "the end of the job spent budget");
    } else {
      require(!is_poison_ || !is_own_fault, "a step that ends its rank each time is tried again");
      require(charged == 0 || is_own_fault,
              "budget was spent on a change of membership or its consequences");
      require(charged == (is_paid_ ? 0 : 1) || !is_own_fault,
              "a worker's failure cost nothing, or twice");
    }
    if (charged > 0) {
      require(faults_of_workers_.contains(round_before_),
              "budget was spent where no worker failed by itself");
    }
  }

  void announced(const rdzv::RoundCore& core, const std::vector<rdzv::ToNode>& out,
                 const Views& nodes) {
    const auto& config = schedule_.config;
    std::map<NodeId, rdzv::RoundStart> starts;
    std::vector<NodeId> group;
    for (const auto& each : out) {
      const auto* start = std::get_if<rdzv::RoundStart>(&each.message);
      if (start == nullptr) continue;
      require(starts.emplace(each.to, *start).second, "a node was started twice in one round");
      group.push_back(each.to);
    }
    const int size = static_cast<int>(group.size());
    require(size <= config.max_nodes, "more nodes than --nnodes allows");
    require(size >= config.min_nodes, "fewer nodes than --nnodes demands");
    require(rounds_ == 0 || core.round() > starts_.begin()->second.round,
            "a round began without a new number");

    const rdzv::RoundStart& first = starts.at(group.front());
    int rank = 0;
    std::map<std::string, int> role_ranks;
    for (int node_rank = 0; node_rank < size; ++node_rank) {
      const NodeId id = group[static_cast<std::size_t>(node_rank)];
      const auto& start = starts.at(id);
      require(nodes.contains(id) && core.has(id), "a node that is not there was started");
      const NodeView& node = nodes.at(id);
      require(start.round == core.round() && start.node_count == size &&
                  start.world_size == first.world_size && start.master_addr == first.master_addr &&
                  start.master_port == first.master_port,
              "nodes of one round do not agree on it");
      require(start.node_rank == node_rank && start.rank_offset == rank, "ranks have gaps");
      require(start.role_rank_offset == role_ranks[node.hello.role], "ranks of a role have gaps");
      rank += node.hello.local_world_size;
      role_ranks[node.hello.role] += node.hello.local_world_size;
      require(!config.has_exact_ranks || node.hello.node_rank == node_rank,
              "a node has not the rank that it asked for");
      require(node.facts->live_workers == 0, "a round began while workers of an earlier one lived");
    }
    require(first.world_size == rank, "the world is not the sum of its nodes");
    for (const auto& [id, start] : starts) {
      require(start.role_world_size == role_ranks[nodes.at(id).hello.role],
              "the world of a role is not the sum of its nodes");
    }
    const NodeView& host = nodes.at(group.front());
    require(first.master_addr == host.hello.address, "MASTER_ADDR is not rank 0's");
    require(host.facts->is_gone ||
                (host.facts->store == core.round() && host.facts->store_port == first.master_port),
            "the store of the round is not open at rank 0");

    const auto is_connected = [&](const auto& each) {
      return each.second.is_connected && core.has(each.first);
    };
    const auto is_ready = [&](const auto& each) {
      return is_connected(each) && !is_left_out(each.second);
    };
    const auto ready = std::ranges::count_if(nodes, is_ready);
    require(size >= std::min<std::ptrdiff_t>(ready, config.max_nodes),
            "a round began without a node for which there was room");

    const auto survivors_in = [&](const std::vector<NodeId>& order, const auto& present) {
      std::vector<NodeId> out_;
      for (const NodeId id : order) {
        if (left_out_since_.contains(id)) continue;
        if (present.contains(id) && !nodes.at(id).hello.node_rank) out_.push_back(id);
      }
      return out_;
    };
    require(survivors_in(group_, starts) == survivors_in(group, starts_),
            "survivors changed their order");
    const auto is_survivor = [&](NodeId id) {
      return starts_.contains(id) && !left_out_since_.contains(id);
    };
    const auto asks_for_nothing = [&](NodeId id) { return !nodes.at(id).hello.node_rank; };
    std::vector<NodeId> unranked;
    std::ranges::copy_if(group, std::back_inserter(unranked), asks_for_nothing);
    require(std::ranges::is_partitioned(unranked, is_survivor),
            "a newcomer stands before survivors");
    if (rounds_ > 0) {
      const bool has_reason = first.after_failure || first.nodes_gone > 0 || first.after_arrival ||
                              first.after_request || is_for_left_out_;
      require(has_reason, "a round ended for no reason");
      require(!first.after_arrival || !are_some_done_,
              "a newcomer ended a round in which a worker had finished");
    }
    const auto left_out =
        std::ranges::count_if(group, [&](NodeId id) { return is_left_out(nodes.at(id)); });
    require(left_out <= needed(core, nodes), "a node that is to be left out is in a round");
    const bool has_blamed =
        std::ranges::any_of(group, [&](NodeId id) { return is_blamed(nodes.at(id)); });
    const bool has_fit_spare = std::ranges::any_of(nodes, [&](const auto& each) {
      return is_ready(each) && !is_blamed(each.second) && !starts.contains(each.first);
    });
    require(!has_blamed || !has_fit_spare || config.has_exact_ranks,
            "a node to which failures lead is in a round, and a fit one waits");
    is_node_gone_ = is_for_left_out_ = false;
    left_out_since_.clear();
    starts_ = std::move(starts);
    group_ = std::move(group);
    is_announced_ = true;
    failed_first_.reset();
    are_some_done_ = false;
    forget_replacements();
    rounds_ += 1;
  }

  void ended(const rdzv::RoundCore& core, const rdzv::JobOutcome& outcome) {
    using Kind = rdzv::JobOutcome::Kind;
    if (outcome_) return;
    outcome_ = outcome;
    require(outcome.restarts == core.restarts_in_all(), "the outcome miscounts the restarts");
    if (outcome.kind == Kind::kSucceeded) {
      require(rounds_ > 0 && outcome.exit_code == 0, "success without a round");
      const auto& last = starts_.begin()->second;
      require(last.round == core.round() && successes_[last.round] == last.world_size,
              "success though not every worker of the last round ended with 0");
    }
    if (outcome.kind == Kind::kFailed) {
      require(outcome.cause && outcome.exit_code != 0, "failure without a cause");
      const bool is_without_progress = outcome.exit_code == kExitNoProgress;
      require(!is_without_progress || is_in_vain(), "the job has made progress");
      require(is_poison_ || is_without_progress ||
                  core.restarts() == schedule_.config.restarts.max_restarts,
              "the job failed with budget left");
      require((is_poison_ || is_without_progress) == !outcome.sentence.empty(),
              "the report does not say why there is no other try");
      require(faults_of_workers_.contains(core.round()), "the job failed, but no worker by itself");
    }
  }

  const Schedule& schedule_;
  bool was_running_ = false;
  bool was_stop_ahead_ = false;
  bool had_ended_ = false;
  Round round_before_{};
  int restarts_before_ = 0;  // all
  int counted_before_ = 0;
  std::vector<CoreTime> spent_;  // when each was
  std::optional<std::int64_t> cause_step_;
  int cause_rank_ = 0;
  bool cause_is_counted_ = false;
  std::set<int> with_steps_;  // ranks that have failed after a step
  std::optional<std::int64_t> best_step_;
  int in_vain_ = 0;

  std::map<std::string, Reasons> reasons_;  // hosts that are to be left out
  std::set<int> ranks_of_program_;
  std::vector<std::pair<std::string, std::optional<int>>> failures_of_hosts_;
  bool is_node_gone_ = false;        // one of the round, since it was announced
  std::set<NodeId> left_out_since_;  // likewise
  bool is_for_left_out_ = false;     // the round was to be stopped while it had such a node

  bool is_announced_ = false;                  // the current round
  std::map<NodeId, rdzv::RoundStart> starts_;  // of the round announced last
  std::vector<NodeId> group_;
  std::optional<NodeId> failed_first_;  // the node whose failure report ended that round
  bool are_some_done_ = false;
  std::set<Round> faults_of_workers_;
  std::map<Round, int> successes_;
  std::set<NodeId> recovering_;       // nodes of this round whose workers can recover
  std::map<int, Replaced> replaced_;  // by rank
  std::optional<Replacing> replacing_;
  std::uint32_t generation_ = 0;
  bool is_paid_ = false;    // the round was stopped for a failure that a replacement has charged
  bool is_poison_ = false;  // it was stopped for a step that ended its rank twice
  bool was_leader_paused_ = false;
  std::optional<rdzv::JobOutcome> outcome_;
  int rounds_ = 0;
  std::vector<rdzv::JobOutcome> outcomes_of_others_;  // of leaders that were killed
  int rounds_of_others_ = 0;
};

}  // namespace ddprun::sim
