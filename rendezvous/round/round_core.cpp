#include "rendezvous/round/round_core.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/must_hold.h"
#include "rendezvous/common/own_pause.h"
#include "rendezvous/common/text/ranks.h"
#include "rendezvous/round/hang_core.h"
#include "rendezvous/round/hello_check.h"
#include "rendezvous/round/job_outcomes.h"

namespace ddprun::rdzv {
namespace {

// An agent answers HoldSteps at once, and meanwhile all workers wait.
constexpr auto kHoldLimit = std::chrono::seconds(1);
constexpr auto kLate = std::chrono::milliseconds(100);  // for a timer of a process that runs
// For a job on several nodes, because each of them gets the whole outcome.
constexpr std::size_t kConsequencesMax = 32;
constexpr std::size_t kDoneMax = 4096;  // likewise
constexpr std::size_t kRequestsMax = 8;

// The round number in a message, if it has one.
template <typename Message>
std::optional<Round> round_of(const Message& message) {
  if constexpr (requires { message.round; }) {
    return message.round;
  } else {
    return std::nullopt;
  }
}

// Keeps the fields that differ between nodes; the others are equal and stored once.
NodeHello what_is_its_own(NodeHello hello) {
  hello.run_id = std::string();
  hello.program = std::string();
  hello.user = std::string();
  return hello;
}

}  // namespace

RoundCore::RoundCore(RoundConfig config)
    : config_(std::move(config)),
      state_(Gathering{}),
      members_(config_.min_nodes, config_.max_nodes),
      policy_(config_.restarts) {}

RoundCore::RoundCore(RoundConfig config, const Resumption& resumption)
    : RoundCore(std::move(config)) {
  round_ = resumption.next;
  now_ = resumption.now;
  policy_ = RestartPolicy(config_.restarts, resumption.history, now_);
  left_out_ = LeftOutHosts(resumption.left_out);
  if (!resumption.goes_on) return;
  before_ = OfRecord{resumption.nodes_expected};
  if (!resumption.uptime) return;
  // Repeated deaths of the leader must cause the same pauses as those of any other node.
  const auto pause =
      policy_.round_ended({.has_lost_node = true, .uptime = *resumption.uptime}, now_);
  if (pause.count() > 0) state_ = Pausing{resumption.now + pause};
}

void RoundCore::begin_step(CoreTime now) {
  now_ = now;
  news_.clear();
  why_.clear();
}

std::vector<ToNode> RoundCore::step(CoreTime now, NodeId from, const ToLeader& message) {
  begin_step(now);
  if (is_stale(from, message)) {
    because("the node is not one of this round, or the message is about another one");
    return {};
  }
  std::visit([&](const auto& event) { on(from, event); }, message);
  go_on();
  return std::exchange(out_, {});
}

std::vector<ToNode> RoundCore::step(CoreTime now, NodeId node, const LinkEvent& event) {
  begin_step(now);
  if (const auto* away = std::get_if<NodeTurnedAway>(&event)) {
    turned_away(*away);
    return {};
  }
  if (!members_.has(node)) {
    if (std::holds_alternative<NodeResumed>(event) || !waiting_.remove(node)) return {};
    if (std::holds_alternative<NodeSilent>(event)) out_.push_back({node, DeclaredLost{}});
    return std::exchange(out_, {});
  }
  std::visit([&](const auto& e) { on(node, e); }, event);
  go_on();
  return std::exchange(out_, {});
}

std::vector<ToNode> RoundCore::tick(CoreTime now) {
  begin_step(now);
  for (auto broken = members_.longest_broken();
       broken && broken->since + config_.reconnect_grace <= now;
       broken = members_.longest_broken()) {
    remove(broken->id, NodeGone::How::kDisconnected);
  }
  go_on();
  return std::exchange(out_, {});
}

std::vector<ToNode> RoundCore::step(const RoundInput& input) {
  if (std::holds_alternative<Tick>(input.what)) return tick(input.at);
  const auto* message = std::get_if<ToLeader>(&input.what);
  return message != nullptr ? step(input.at, input.node, *message)
                            : step(input.at, input.node, std::get<LinkEvent>(input.what));
}

bool RoundCore::is_stale(NodeId from, const ToLeader& message) const {
  if (std::holds_alternative<NodeHello>(message)) return has(from);
  const bool is_of_leader = from == NodeId{0} && !config_.own_node;
  if (is_of_leader && std::holds_alternative<StopAsked>(message)) return false;
  if (!members_.has(from)) return true;
  const auto round = std::visit([](const auto& event) { return round_of(event); }, message);
  return round.has_value() && (*round != round_ || !members_.is_in_group(from));
}

// ---- arrivals

void RoundCore::on(NodeId from, const NodeHello& hello) {
  if (const auto refusal = check_hello(config_, round_, hello)) {
    const std::string node = hello.host.empty() ? "this node" : hello.host;
    return refuse(from, hello, node + " " + *refusal, "it " + *refusal);
  }
  if (config_.program.empty()) config_.program = hello.program;
  if (config_.user.empty()) config_.user = hello.user;
  if (auto* ended = std::get_if<Ended>(&state_)) {
    if (!may_wait(from, hello)) return;
    members_.add(from, what_is_its_own(hello));
    ended->untold.insert(from);
    ended->until = now_ + config_.answer_timeout;
    out_.push_back({from, JobEnd{ended->outcome}});
    return;
  }
  if (!may_have_its_rank(from, hello) || !may_wait(from, hello)) return;
  turned_away_.forget(hello.host, hello.address, hello.node_rank);
  members_.add(from, what_is_its_own(hello));
  if (hello.last_round) learn_from(*hello.last_round);
  members_.set_standing(from, left_out_.standing(host_of(from)));
  if (auto* gathering = std::get_if<Gathering>(&state_)) {
    gathering->newcomers.push_back(from);
    return;
  }
  if (members_.is_out(from)) return wait_left_out(from);
  if (!members_.has_room()) {
    out_.push_back({from, WaitAsSpare{WaitAsSpare::Why::kNoRoom}});
    return;
  }
  const auto* running = std::get_if<Running>(&state_);
  if (running != nullptr && running->are_some_done) {
    out_.push_back({from, WaitAsSpare{WaitAsSpare::Why::kJobIsFinishing}});
  }
}

bool RoundCore::has_run() const { return !std::holds_alternative<NoRound>(before_); }

int RoundCore::nodes_expected() const {
  if (const auto* its = std::get_if<OfRecord>(&before_)) return its->nodes_expected;
  if (const auto* its = std::get_if<OfNodes>(&before_)) return its->nodes_expected;
  return 0;
}

// Nothing is new if this leader led that round itself, or its record tells of it.
void RoundCore::learn_from(const LastRound& last) {
  round_min_ = std::max(round_min_, next(last.round));
  // A node that was lost, and joins again, says what counted then: with a window that may be long ago.
  const bool is_of_before = std::holds_alternative<Led>(before_) && last.round <= round_;
  if (!is_of_before || config_.restarts.window.count() == 0) {
    policy_.already_spent(last.restarts, now_);
  }
  if (std::holds_alternative<OfRecord>(before_) || std::holds_alternative<Led>(before_)) return;
  before_ = OfNodes{std::max(nodes_expected(), std::min(last.node_count, config_.max_nodes))};
  auto* gathering = std::get_if<Gathering>(&state_);
  if (gathering != nullptr) gathering->shorten_last_call(now_);
}

bool RoundCore::may_wait(NodeId from, const NodeHello& hello) {
  const auto refusal = check_spares(config_, members_);
  if (refusal) refuse(from, hello, *refusal, *refusal);
  return !refusal;
}

void RoundCore::refuse(NodeId from, const NodeHello& hello, std::string sentence, std::string why) {
  out_.push_back({from, Refused{std::move(sentence)}});
  if (from == config_.own_node) return;
  auto rank = hello.node_rank;
  const bool may_have_it =
      !rank || !config_.has_exact_ranks ||
      (*rank >= 0 && *rank < config_.max_nodes && !members_.connected_claimant(*rank));
  if (!may_have_it) rank.reset();  // it will come with a different rank
  turned_away({hello.host, hello.address, std::move(why), rank});
}

void RoundCore::turned_away(NodeTurnedAway node) {
  news_.emplace_back(node);
  turned_away_.add(std::move(node));
}

// Removes the node whose rank it takes, if any.
bool RoundCore::may_have_its_rank(NodeId from, const NodeHello& hello) {
  RankCheck check = check_rank(config_, members_, hello);
  if (check.replaces) remove(*check.replaces, NodeGone::How::kReplaced);
  const bool is_own = check.taken_by && check.taken_by == config_.own_node;  // which is alive
  if (is_own || (check.taken_by && !may_claim(config_, waiting_.size()))) {
    refuse(from, hello, check.refusal, check.refusal);
    return false;
  }
  if (check.warning) out_.push_back({from, Warning{std::move(*check.warning)}});
  if (check.taken_by) waiting_.add(from, hello, now_ + config_.silence_limit);
  return !check.taken_by;
}

void RoundCore::settle_waiting() {
  RankCheck check;
  const auto is_taken = [&](const NodeHello& hello) {
    check = check_rank(config_, members_, hello);
    return check.taken_by && !has_ended();
  };
  while (auto settled = waiting_.settle(now_, config_.silence_limit, kLate, is_taken)) {
    if (settled->is_refused) {
      refuse(settled->node, settled->hello, check.refusal, check.refusal);
    } else {
      on(settled->node, settled->hello);
    }
  }
}

WaitForNodes RoundCore::wait(const Gathering& gathering, CoreTime now, std::string remark) const {
  const CoreTime until = gathering.until().value_or(now + config_.join_timeout);
  return {members_.ready(), config_.min_nodes, config_.max_nodes,
          std::chrono::ceil<std::chrono::seconds>(until - now), std::move(remark)};
}

std::optional<WaitForNodes> RoundCore::wait(CoreTime now) const {
  const auto* gathering = std::get_if<Gathering>(&state_);
  if (gathering == nullptr) return std::nullopt;
  return wait(*gathering, now, joined_sentences(missing_ranks(), turned_away_.in_words()));
}

// "node rank 1 is missing"; empty if nodes need not have ranks of their own.
std::string RoundCore::missing_ranks() const {
  if (!config_.has_exact_ranks) return {};
  std::vector<int> missing;
  for (int rank = 0; rank < config_.max_nodes; ++rank) {
    if (!members_.connected_claimant(rank)) missing.push_back(rank);
  }
  if (missing.empty()) return {};
  return "node " + ranks_in_words(missing) + (missing.size() == 1 ? " is" : " are") + " missing";
}

// ---- what a round brings

void RoundCore::on(NodeId from, const StoreOpened& opened) {
  const auto* opening = std::get_if<Opening>(&state_);
  if (opening == nullptr || opening->host != from) return;
  form_group();  // includes nodes that came meanwhile
  if (members_.group().front() == from && round_ >= round_min_) {
    because("the store is open, so that the workers can meet");
    announce_round(opened.port);
  } else {
    because("a node came meanwhile that is to be the host, or has been in a later round");
    round_ = next(round_);
    open_round();
  }
}

void RoundCore::on(NodeId from, const StoreNotOpened& refused) {
  const auto* opening = std::get_if<Opening>(&state_);
  if (opening == nullptr || opening->host != from) return;
  because("the workers have no store to meet at");
  end(cannot_run(kExitCannotRun, refused.why));
}

void RoundCore::on(NodeId from, const WorkerFailed& failed) {
  note_request(failed.failure.asked_by);
  if (auto* stopping = std::get_if<StoppingRound>(&state_)) {
    stopping->add_consequences({failed.failure}, consequences_max());
  } else if (auto* running = std::get_if<Running>(&state_)) {
    if (is_stopped_as_planned(*running)) return fails_while_stopped(failed.failure);
    tell_of_break(failed.failure.rank, from);
    if (running->replacements.under_way) return stop_replacing(*running, failed.failure);
    stop_after(from, failed.failure);
  }
}

void RoundCore::stop_after(NodeId node, WorkerFailure cause, std::string why_last) {
  because(
      "a failure ends the round on all nodes; whether it costs a restart is decided when all have "
      "stopped");
  StoppingRound stopping;
  stopping.cause = std::move(cause);
  stopping.cause_node = node;
  if (!why_last.empty()) stopping.retry = StoppingRound::Never{std::move(why_last)};
  stop_round(std::move(stopping));
}

void RoundCore::on(NodeId from, const SomeWorkersDone&) { workers_ended_on(from); }

void RoundCore::on(NodeId from, const WorkersDone& done) {
  workers_ended_on(from);
  auto* running = std::get_if<Running>(&state_);
  if (running == nullptr) return;
  running->done.insert(from);
  running->has_left |= done.has_left;
}

void RoundCore::workers_ended_on(NodeId node) {
  auto* running = std::get_if<Running>(&state_);
  if (running == nullptr) return;
  running->are_some_done = true;
  if (running->stop && running->stop->is_for_newcomer) {
    because("a worker has finished, and the node that arrived only waits");
    const StopAhead stop = *std::exchange(running->stop, std::nullopt);
    next_.after_arrival = false;
    tell_group(HoldSteps{round_, HoldSteps::Until::kNow});
    if (stop.is_leave_wanted) on(node, LeaveWanted{{round_}});
    for (const NodeId id : members_.all()) {
      if (!members_.is_in_group(id)) {
        out_.push_back({id, WaitAsSpare{WaitAsSpare::Why::kJobIsFinishing}});
      }
    }
  }
  if (running->replacements.awaits(node)) regrouping_is_in_vain(*running);
}

// ---- replacement in place

void RoundCore::on(NodeId from, const WorkersRecover&) {
  if (auto* running = std::get_if<Running>(&state_)) running->replacements.can_recover.insert(from);
}

void RoundCore::on(NodeId from, const WorkerReplaceable& failed) {
  auto* running = std::get_if<Running>(&state_);
  if (running == nullptr) return on(from, WorkerFailed{failed.round, failed.failure});
  note_request(failed.failure.asked_by);
  if (is_stopped_as_planned(*running)) return fails_while_stopped(failed.failure);
  const Replacements& replacements = running->replacements;
  const bool is_poison = replacements.is_poison(failed);
  const char* why_not = is_poison ? "the same step has ended this rank twice"
                                  : replacements.why_not(failed, as_seen(*running, failed.failure));
  if (why_not == nullptr) return replace(*running, from, failed);
  because(why_not);
  // Its own node waits for the decision, too.
  tell_of_break(failed.failure.rank, std::nullopt);
  if (replacements.under_way && !is_poison) return stop_replacing(*running, failed.failure);
  stop_after(from, failed.failure,
             !is_poison ? ""
                        : "step " + std::to_string(failed.committed + 1) + " has ended rank " +
                              std::to_string(failed.failure.rank) + " twice");
}

Replacements::Situation RoundCore::as_seen(const Running& running,
                                           const WorkerFailure& failure) const {
  const auto is_connected = [this](NodeId id) {
    return members_.has(id) && members_.is_connected(id);
  };
  return {.nodes = members_.group().size(),
          .world_size = members_.world_size(),
          .are_all_connected = std::ranges::all_of(members_.group(), is_connected),
          .are_some_done = running.are_some_done,
          .allows_restart = policy_.allows_retry(failure, now_ - running.since, now_)};
}

void RoundCore::replace(Running& running, NodeId node, const WorkerReplaceable& failed) {
  because("a standby has its rank, and the other ranks have the state: this costs a restart");
  policy_.replaced(now_);
  policy_.note_step(failed.failure);
  blame(node, failed.failure);
  in_place_ += 1;
  running.replacements.begin(node, failed, now_ + config_.replace_timeout);
  ReplaceWorker order{
      round_,     running.replacements.generation, failed.failure.rank, failed.failure,
      restarts(), policy_.max_restarts()};
  order.failure.stderr_tail.clear();
  tell_group(order);
}

void RoundCore::on(NodeId from, const Regrouped& regrouped) {
  auto* running = std::get_if<Running>(&state_);
  if (running == nullptr) return;
  running->replacements.regrouped(from, regrouped.generation, members_.group().size());
}

void RoundCore::on(NodeId from, const CannotRegroup& refusal) {
  auto* running = std::get_if<Running>(&state_);
  if (running == nullptr) return;
  const Replacements& replacements = running->replacements;
  if (refusal.generation == replacements.generation && replacements.awaits(from)) {
    regrouping_is_in_vain(*running);
  }
}

void RoundCore::regrouping_is_in_vain(Running& running) {
  because("the others wait in vain for ranks that do not regroup");
  tell_of_break(running.replacements.under_way->cause.rank, std::nullopt);
  stop_replacing(running);
}

// Another round follows instead. `last`: the failure that decided it. All nodes were told.
void RoundCore::stop_replacing(Running& running, const std::optional<WorkerFailure>& last) {
  because("the round is stopped for the failure of the replacement, whose restart is paid");
  Replacements::UnderWay under_way = std::move(*running.replacements.under_way);
  StoppingRound stopping;
  stopping.cause = std::move(under_way.cause);
  stopping.cause_node = under_way.cause_node;
  stopping.retry = StoppingRound::Paid{};
  stopping.add_consequences(under_way.others, consequences_max());
  if (last) stopping.add_consequences({*last}, consequences_max());
  stop_round(std::move(stopping));
}

// ---- all workers leave at the same step

void RoundCore::on(NodeId, const LeaveWanted&) {
  auto* running = std::get_if<Running>(&state_);
  if (running == nullptr) return;
  if (running->stop) {
    because("the round is about to be stopped");
    running->stop->is_leave_wanted = true;
    return;
  }
  if (!running->leave.wanted()) return;
  because(
      "a node is preempted, and its workers finish their step together with those of the others");
  tell_group(HoldSteps{round_});
}

// ---- a planned stop

// A worker that takes the place of a dead one counts its steps anew.
bool RoundCore::have_common_step(const Running& running) const {
  if (running.are_some_done) return false;
  return running.leave.stays() && running.replacements.generation == 0;
}

// Workers that are stopped in the middle of a step may be moving data between GPUs, and leave a step that some have done.
void RoundCore::stop_between_steps(Running& running, StopAhead why) {
  if (running.stop) {
    because("the round is about to be stopped already");
    if (!running.stop->last) running.stop->last = std::move(why.last);
    if (!running.stop->gone) running.stop->gone = std::move(why.gone);
    running.stop->is_for_newcomer &= why.is_for_newcomer;
    return;
  }
  running.stop = std::move(why);
  running.stop->until = now_ + kHoldLimit;
  if (!have_common_step(running)) {
    because("the workers have no common step ahead, and are stopped at once");
    return stop_round({}, running.stop->gone);
  }
  because("the workers are stopped as soon as they know after which step");
  running.stop->steps.wanted();
  tell_group(HoldSteps{round_, HoldSteps::Until::kRoundStop});
}

bool RoundCore::is_stopped_as_planned(const Running& running) {
  return running.stop && !running.stop->is_for_newcomer;
}

// The stop came first, and only waits for the end of a step.
void RoundCore::fails_while_stopped(const WorkerFailure& failure) {
  because("the round is about to be stopped as planned, so that the failure is a consequence");
  tell_of_break(failure.rank, std::nullopt);
  StoppingRound stopping;
  stopping.add_consequences({failure}, consequences_max());
  stop_round(std::move(stopping));
}

void RoundCore::on(NodeId from, const StopWanted&) {
  auto* running = std::get_if<Running>(&state_);
  if (running == nullptr) return;
  std::optional<NodeGone> gone;
  if (from != config_.own_node) {
    gone = NodeGone{NodeGone::How::kLeft, members_.rank_of(from), members_.hello_of(from).host};
  }
  stop_between_steps(*running, {.gone = std::move(gone)});
}

void RoundCore::on(NodeId from, const StepsHeld& held) {
  auto* running = std::get_if<Running>(&state_);
  if (running == nullptr) return;
  const bool is_to_stop = held.until == HoldSteps::Until::kRoundStop;
  if (is_to_stop != running->stop.has_value()) return because("it answers an earlier question");
  if (running->stop && (held.passed < 0 || !have_common_step(*running))) {
    because(
        "workers handle the stop themselves, count no steps, or have none in common: all are "
        "stopped now");
    return stop_round({}, running->stop->gone);
  }
  if (running->stop) {
    const auto step = running->stop->steps.held(from, held.passed, members_.group().size());
    if (!step) return;
    because("no worker has done this step, and each comes to its end");
    return stop_round({}, running->stop->gone, step);
  }
  const auto boundary = running->leave.held(from, held.passed, members_.group().size());
  if (!boundary) return;
  because("no worker has passed this boundary, and each comes to it");
  tell_group(LeaveAt{round_, *boundary});
}

void RoundCore::tell_group(const ToAgent& message) {
  for (const NodeId id : members_.group()) {
    if (members_.has(id)) out_.push_back({id, message});
  }
}

void RoundCore::on(NodeId from, const RoundStopped& stopped) {
  auto* stopping = std::get_if<StoppingRound>(&state_);
  if (stopping == nullptr || !stopping->awaited.erase(from)) return;
  stopping->add_consequences(stopped.failures, consequences_max());
  const std::size_t room = kDoneMax - std::min(kDoneMax, stopping->done.size());
  const auto end =
      stopped.done.begin() + static_cast<std::ptrdiff_t>(std::min(room, stopped.done.size()));
  stopping->done.insert(stopping->done.end(), stopped.done.begin(), end);
}

// ---- nodes that go

void RoundCore::on(NodeId from, const NodeLeaving& leaving) {
  if (has_ended()) return;
  if (from == config_.own_node) {
    make_last(leaving, from);
  } else {
    // The node ends by itself: its workers are signalled, and the leader need not wait for them.
    remove(from, NodeGone::How::kLeft);
  }
}

// No round will follow the one that runs or is being stopped.
void RoundCore::make_last(const NodeLeaving& why, std::optional<NodeId> leaver,
                          const std::string& asked_by) {
  auto* stopping = std::get_if<StoppingRound>(&state_);
  StoppingRound fresh;
  if (stopping == nullptr) stopping = &fresh;
  if (stopping->stop) return;
  because("no round follows: a stop was asked for, or the leader's own node leaves");
  stopping->stop = StoppingRound::Stop{why, asked_by};
  if (leaver) stopping->gone.insert(*leaver);
  if (stopping != &fresh) return;
  if (is_running()) {
    stop_round(std::move(fresh));
  } else {
    state_ = std::move(fresh);  // no node to wait for
  }
}

void RoundCore::on(NodeId from, const NodeStuck& stuck) {
  if (has_ended()) return;
  JobOutcome outcome = cannot_run(kExitWorkerStuck, stuck.sentence);
  because("a worker there hangs inside the kernel, and no later round can have that node");
  if (from != config_.own_node) {
    outcome.last_round = round_;
    outcome.restarts = policy_.restarts_in_all();
    out_.push_back({from, JobEnd{std::move(outcome)}});
    remove(from, NodeGone::How::kStuck);
    return;
  }
  if (auto* stopping = std::get_if<StoppingRound>(&state_)) {
    outcome.cause = std::move(stopping->cause);
    outcome.consequences = std::move(stopping->consequences);
  }
  end(std::move(outcome));
}

void RoundCore::on(NodeId from, const Goodbye&) {
  if (auto* ended = std::get_if<Ended>(&state_)) ended->untold.erase(from);
}

void RoundCore::on(NodeId node, const NodeDisconnected&) { members_.disconnected(node, now_); }

void RoundCore::on(NodeId node, const NodeResumed&) { members_.resumed(node); }

// A node of no NodeId: step() has dealt with it.
void RoundCore::on(NodeId /*node*/, const NodeTurnedAway&) {}

void RoundCore::on(NodeId node, const NodeSilent&) {
  remove(node, NodeGone::How::kSilent);
  out_.push_back({node, DeclaredLost{}});
}

// The only decision here: a round that loses a member cannot go on.
void RoundCore::remove(NodeId node, NodeGone::How how) {
  const bool was_in_group = members_.is_in_group(node);
  const bool is_loss = how != NodeGone::How::kLeft;
  const int first_worker = was_in_group ? members_.first_worker_of(node) : 0;
  const NodeGone gone{
      how, was_in_group ? members_.rank_of(node) : members_.hello_of(node).node_rank.value_or(-1),
      members_.hello_of(node).host};
  if (!has_ended()) news_.emplace_back(gone);
  if (was_in_group) {
    next_.nodes_gone += 1;
    const bool is_first = !next_.after_loss;
    if (is_first) next_.after_loss = gone;
    if (is_first && is_loss && !has_ended() && may_blame(node)) {
      left_out_.was_lost(host_of(node), now_);
    }
  }
  members_.remove(node);
  if (auto* ended = std::get_if<Ended>(&state_)) ended->untold.erase(node);
  if (is_running() && was_in_group) {
    because("a node of the round is lost or leaves, and the nodes of a round do not change");
    StoppingRound next_state;
    next_state.has_lost_node = is_loss;
    if (is_loss) tell_of_break(first_worker, node);
    stop_round(std::move(next_state), gone);
  }
  if (auto* stopping = std::get_if<StoppingRound>(&state_); stopping != nullptr && was_in_group) {
    stopping->node_gone(node, is_loss);
  }
}

// The node's agent is heard but does not do what it was told.
void RoundCore::give_up_on(NodeId node) {
  because("the agent of a node does not do what it is told, and is declared lost");
  remove(node, NodeGone::How::kUnresponsive);
  out_.push_back({node, DeclaredLost{}});
}

std::size_t RoundCore::consequences_max() const {
  return config_.max_nodes > 1 ? kConsequencesMax : std::numeric_limits<std::size_t>::max();
}

bool RoundCore::was_paused(CoreTime until) const {
  return own_pause(until, now_, kLate) > CoreTime::duration::zero();
}

// ---- what a person asks for

// Keeps the latest ones.
void RoundCore::note_request(const std::string& by) {
  if (by.empty()) return;
  if (requests_.size() == kRequestsMax) requests_.erase(requests_.begin());
  requests_.push_back(by);
}

// If no round runs, another one is coming anyway, or the job has ended.
void RoundCore::on(NodeId, const RestartAsked& asked) {
  auto* running = std::get_if<Running>(&state_);
  if (running == nullptr || is_stopped_as_planned(*running)) return;
  because("a user asked for it, so that it costs nothing");
  note_request(asked.by);
  next_.after_request = true;
  next_.asked_by = asked.by;
  asked_for_ += 1;
  stop_between_steps(*running, {});
}

void RoundCore::on(NodeId, const StopAsked& asked) {
  const NodeLeaving why{asked.signal, /*is_preemption=*/false};
  if (auto* running = std::get_if<Running>(&state_)) {
    because("a user asked for it");
    stop_between_steps(*running, {.last = StoppingRound::Stop{why, asked.by}});
  } else if (!has_ended()) {
    make_last(why, std::nullopt, asked.by);
  }
}

// ---- nodes that take part in no round

HostName RoundCore::host_of(NodeId node) const {
  const NodeHello& hello = members_.hello_of(node);
  return {hello.host, hello.address};
}

// Where several nodes are on one host, as in a test, failures say nothing of the host; nor where no other can come.
bool RoundCore::may_blame(NodeId node) const {
  if (config_.has_exact_ranks || members_.count() < 2) return false;
  return std::ranges::none_of(members_.all(), [this, node](NodeId other) {
    return other != node && host_of(other) == host_of(node);
  });
}

void RoundCore::blame(NodeId node, const WorkerFailure& failure) {
  if (may_blame(node)) left_out_.failed(host_of(node), failure, now_);
}

void RoundCore::on(NodeId, const DrainAsked& asked) {
  if (has_ended()) return;
  if (asked.what == DrainAsked::What::kUndrain) {
    because("a user wants the nodes of the host to take part again");
    return left_out_.take_back(asked.name);
  }
  because("a user wants the nodes of the host to be left out");
  note_request(asked.by);
  left_out_.leave_out({asked.name, LeftOutHost::Cause::kDrained, asked.by});
  settle_left_out();
  const auto* running = std::get_if<Running>(&state_);
  if (asked.what != DrainAsked::What::kDrainAtOnce || running == nullptr) return;
  if (running->are_some_done) return;
  if (const auto spared = members_.to_spare(); !spared.empty()) {
    stop_round({}, as_left_out(spared.front()));
  }
}

void RoundCore::on(NodeId from, const NodeUnfit& unfit) {
  if (has_ended()) return;
  because("the health check of the node calls it unfit");
  left_out_.leave_out({host_of(from), LeftOutHost::Cause::kUnfit, unfit.sentence});
}

void RoundCore::on(NodeId from, const NodeFit&) {
  because("the health check of the node calls it fit again");
  left_out_.is_fit(host_of(from));
}

// What is decided about hosts, for the nodes that are here.
void RoundCore::settle_left_out() {
  if (left_out_.all() == settled_left_out_) return;
  settled_left_out_ = left_out_.all();
  for (const NodeId id : members_.all()) {
    const Standing before = members_.standing(id);
    const Standing standing = left_out_.standing(host_of(id));
    if (standing == before) continue;
    const bool was_out = members_.is_out(id);
    members_.set_standing(id, standing);
    if (members_.is_in_group(id)) {
      if (standing > before) news_.emplace_back(ToBeLeftOut{as_left_out(id)});
    } else if (!std::holds_alternative<Gathering>(state_)) {
      if (members_.is_out(id)) wait_left_out(id);
      if (was_out && !members_.is_out(id) && !members_.has_room()) {
        out_.push_back({id, WaitAsSpare{WaitAsSpare::Why::kNoRoom}});
      }
    }
  }
}

void RoundCore::wait_left_out(NodeId node) {
  out_.push_back({node, WaitAsSpare{WaitAsSpare::Why::kLeftOut, left_out_.why(host_of(node))}});
}

NodeGone RoundCore::as_left_out(NodeId node) const {
  return {NodeGone::How::kLeftOut, members_.rank_of(node), members_.hello_of(node).host,
          left_out_.why(host_of(node))};
}

void RoundCore::form_group() {
  std::map<NodeId, NodeGone> before;
  for (const NodeId id : members_.group()) {
    if (members_.is_in_group(id) && members_.standing(id) != Standing::kFit) {
      before[id] = as_left_out(id);
    }
  }
  const Membership::Change change = members_.form_group();
  next_.nodes_joined += change.joined;
  for (const NodeId id : change.left_out) {
    next_.nodes_gone += 1;
    if (!next_.after_loss) next_.after_loss = before[id];
    if (!has_ended()) news_.emplace_back(before[id]);
    wait_left_out(id);
  }
}

// ---- from state to state

void RoundCore::go_on() {
  settle_waiting();
  settle_left_out();
  // Each call makes at most one step; a step may make the next one possible.
  for (auto before = state_.index();; before = state_.index()) {
    std::visit([&](auto& state) { go_on(state); }, state_);
    if (state_.index() == before) break;
  }
  if (has_ended()) settle_waiting();  // nodes that wait are told
  check();
}

// What no order of events may lead to.
void RoundCore::check() const {
  const std::size_t nodes = members_.group().size();
  if (const auto* running = std::get_if<Running>(&state_)) {
    must_hold(running->done.size() < nodes, "a round ends when every node is done");
    const auto& under_way = running->replacements.under_way;
    must_hold(!under_way || under_way->regrouped.size() < nodes,
              "a replacement is over when every node has regrouped");
  } else if (const auto* stopping = std::get_if<StoppingRound>(&state_)) {
    must_hold(!stopping->awaited.is_empty(), "a round is settled when every node has stopped");
    must_hold(!stopping->is_paid() || stopping->cause, "a replacement is for a worker that failed");
  } else if (const auto* ended = std::get_if<Ended>(&state_)) {
    must_hold(std::cmp_less_equal(ended->untold.size(), members_.count()),
              "only nodes of the job are awaited at its end");
  }
}

void RoundCore::go_on(Gathering& gathering) {
  const Gathering::Nodes nodes{members_.ready(), members_.usable(), nodes_expected(), has_run(),
                               !members_.is_empty() || round_ != Round{}};
  switch (gathering.go_on(config_, nodes, now_)) {
    case Gathering::Next::kOpen:
      because(members_.usable() >= config_.max_nodes
                  ? "as many nodes are ready as may take part"
                  : "enough nodes are ready, and the time to wait for more is over");
      return open_round();
    case Gathering::Next::kGiveUp:
      because("too few nodes came in time");
      return end(too_few_nodes(config_, members_.ready(), has_run(), next_.after_loss,
                               missing_ranks(), turned_away_.in_words()));
    case Gathering::Next::kWait:
      break;
  }
  std::string remark = turned_away_.in_words();
  if (gathering.is_progress_due(now_)) {
    gathering.newcomers = members_.all();
    remark = joined_sentences(missing_ranks(), remark);
  }
  for (const NodeId id : std::exchange(gathering.newcomers, {})) {
    out_.push_back({id, wait(gathering, now_, remark)});
  }
}

void RoundCore::go_on(Pausing& pausing) {
  if (now_ < pausing.until) return;
  because("the pause is over");
  open_round_or_gather();
}

void RoundCore::go_on(Opening& opening) {
  if (members_.has(opening.host) && members_.ready() >= config_.min_nodes) {
    if (now_ < opening.until) return;
    if (was_paused(opening.until)) {
      opening.until = now_ + config_.answer_timeout;
      return;
    }
    if (opening.host == config_.own_node) {
      because("the leader's own node does not open the store");
      return end(store_not_opened(config_.answer_timeout));
    }
    give_up_on(opening.host);
  }
  because("the node that was to open the store is gone, or too few nodes are left");
  round_ = next(round_);
  open_round_or_gather();
}

void RoundCore::go_on(Running& running) {
  auto& under_way = running.replacements.under_way;
  if (under_way && now_ >= under_way->until && was_paused(under_way->until)) {
    under_way->until = now_ + config_.answer_timeout;
  } else if (under_way && now_ >= under_way->until) {
    because("not all nodes have regrouped in time");
    tell_of_break(under_way->cause.rank, std::nullopt);
    return stop_replacing(running);
  }
  if (running.stop && now_ >= running.stop->until) {
    if (!was_paused(running.stop->until)) {
      because("not all nodes have said how far their workers are");
      return stop_round({}, running.stop->gone);
    }
    running.stop->until = now_ + kHoldLimit;
  }
  if (running.done.size() == members_.group().size()) {
    because(running.has_left ? "workers have left, and no node says that it is preempted"
                             : "every worker of every node has ended with 0");
    end(running.has_left ? stopped_by({.signal = 0, .is_preemption = true}, {}) : JobOutcome{});
  } else if (!running.stop && !running.are_some_done) {
    change_nodes(running);
  }
}

// If the next round would have others.
void RoundCore::change_nodes(Running& running) {
  const bool is_busy = running.replacements.under_way || !running.leave.stays();
  if (const auto spared = members_.to_spare(); !spared.empty() && !is_busy) {
    because("a node that is to be left out can be spared");
    stop_between_steps(running, {.gone = as_left_out(spared.front())});
  } else if (members_.has_room() && members_.has_connected_outsider()) {
    because("there is room for the node that arrived, and no worker has finished yet");
    next_.after_arrival = true;
    stop_between_steps(running, {.is_for_newcomer = true});
  }
}

void RoundCore::go_on(StoppingRound& stopping) {
  for (auto late = stopping.awaited.next(); late && late->first <= now_;
       late = stopping.awaited.next()) {
    const auto [until, node] = *late;
    stopping.awaited.erase(node);
    if (was_paused(until)) {
      stopping.awaited.insert(node, now_ + config_.answer_timeout);
    } else {
      give_up_on(node);
    }
  }
  if (stopping.awaited.is_empty()) settle(std::move(stopping));
}

// An agent that gets JobEnd answers Goodbye at once, in any state.
void RoundCore::go_on(Ended& ended) {
  if (now_ >= ended.until) ended.untold.clear();
}

void RoundCore::open_round_or_gather() {
  if (members_.ready() >= config_.min_nodes) return open_round();
  because("too few nodes are ready: waiting for others");
  state_ = Gathering{};
}

void RoundCore::open_round() {
  round_ = std::max(round_, round_min_);
  form_group();
  const NodeId host = members_.group().front();
  state_ = Opening{host, now_ + config_.answer_timeout};
  out_.push_back({host, OpenStore{round_}});
}

void RoundCore::announce_round(std::uint16_t port) {
  RoundStart start = std::exchange(next_, {});
  if (!has_run()) start = {};  // no node has seen a change
  // All nodes are new to this leader, so the number means nothing.
  if (nodes_expected() > 0) start.nodes_joined = 0;
  before_ = Led{};
  turned_away_.clear();
  start.round = round_;
  start.restarts = restarts();
  start.max_restarts = policy_.max_restarts();
  start.master_port = port;
  for (auto& [id, its] : members_.round_starts(std::move(start)))
    out_.push_back({id, std::move(its)});
  state_ = Running{now_, members_.world_size()};
}

// `knows`: the node that it happened to, if that has told its own workers.
void RoundCore::tell_of_break(int rank, std::optional<NodeId> knows) {
  for (const NodeId id : members_.group()) {
    if (id != knows && members_.has(id)) out_.push_back({id, GroupBroken{round_, rank}});
  }
}

void RoundCore::stop_round(StoppingRound stopping, const std::optional<NodeGone>& gone,
                           std::optional<std::int64_t> after_step) {
  auto& running = std::get<Running>(state_);
  stopping.uptime = now_ - running.since;
  if (running.stop && !stopping.stop) stopping.stop = std::move(running.stop->last);
  stopping.world_size = running.world_size;
  const bool is_failure = stopping.cause || stopping.has_lost_node;
  const auto why = is_failure ? RoundStop::Why::kFailure : RoundStop::Why::kPlanned;
  for (const NodeId id : members_.group()) {
    if (!members_.has(id)) continue;
    // Our own node may be preempted and then leaves its workers their time.
    const auto shutdown = members_.hello_of(id).shutdown_timeout;
    const auto limit =
        (after_step ? shutdown + shutdown / kPartForStep : shutdown) + config_.stop_margin;
    stopping.awaited.insert(id, id == config_.own_node ? CoreTime::max() : now_ + limit);
    const bool is_leaver = gone && gone->node_rank == members_.rank_of(id);
    out_.push_back({id, RoundStop{round_, why, is_leaver ? std::nullopt : gone, after_step}});
  }
  state_ = std::move(stopping);
}

void RoundCore::settle(StoppingRound stopping) {
  using End = StoppingRound::End;
  const bool is_own_fault = stopping.is_own_fault();
  const bool is_paid = stopping.is_paid();
  if (is_own_fault) policy_.failed(*stopping.cause);
  if (is_own_fault && !is_paid && members_.has(stopping.cause_node)) {
    blame(stopping.cause_node, *stopping.cause);
    settle_left_out();
  }
  const std::string in_vain = is_own_fault ? policy_.why_in_vain() : "";
  const bool is_allowed =
      stopping.cause && policy_.allows_retry(*stopping.cause, stopping.uptime, now_);
  const End how = stopping.end(is_allowed, !in_vain.empty());
  if (how == End::kSucceeded) {
    because("every worker had ended with 0 before it was stopped");
    return end(JobOutcome{});
  }
  JobOutcome outcome = stopping.take_outcome();
  if (how == End::kFailed) {
    because("a worker failed by itself, and no restart is left or would cure it");
    outcome.kind = JobOutcome::Kind::kFailed;
    if (auto* never = std::get_if<StoppingRound::Never>(&stopping.retry)) {
      outcome.sentence = std::move(never->why);
    }
    outcome.exit_code = outcome.cause->status.as_shell_code();
    const bool is_curable = policy_.may_be_cured(*outcome.cause, stopping.uptime);
    if (outcome.sentence.empty() && is_curable && !in_vain.empty()) {
      outcome.sentence = in_vain;
      outcome.exit_code = kExitNoProgress;
    }
    return end(std::move(outcome));
  }
  if (how == End::kStopped) {
    because("a stop was asked for, or the leader's own node leaves");
    outcome.sentence = std::move(stopping.stop->asked_by);
    return end(stopped_by(stopping.stop->why, std::move(outcome)));
  }
  const auto pause =
      policy_.round_ended({is_own_fault, stopping.has_lost_node, stopping.uptime, is_paid}, now_);
  because(
      !is_own_fault
          ? "no worker failed by itself, or it failed because a node was lost or left: it costs "
            "no restart"
      : is_paid ? "the restart was paid when the replacement began"
                : "a worker failed by itself, and no other node was lost or left meanwhile: this "
                  "costs a restart");
  if (is_own_fault) {
    if (is_paid) in_place_ -= 1;
    next_.after_failure = std::move(outcome.cause);
    next_.after_failure->stderr_tail.clear();
  }
  round_ = next(round_);
  if (pause.count() > 0) {
    state_ = Pausing{now_ + pause};
  } else {
    open_round_or_gather();
  }
}

// ---- the end

void RoundCore::end(JobOutcome outcome) {
  outcome.restarts = policy_.restarts_in_all();
  outcome.restarts_asked_for = asked_for_;
  outcome.in_place = in_place_;
  outcome.requests = requests_;
  for (const LeftOutHost& each : left_out_.all()) {
    if (outcome.left_out.size() == kRequestsMax) break;
    outcome.left_out.push_back(each.name.host + " (" + each.name.address + "): " + each.why);
  }
  outcome.last_round = round_;
  Ended ended{std::move(outcome), {}, now_ + config_.answer_timeout};
  for (const NodeId id : members_.all()) {
    ended.untold.insert(id);
    out_.push_back({id, JobEnd{ended.outcome}});
  }
  state_ = std::move(ended);
}

}  // namespace ddprun::rdzv
