#include "rendezvous/round/round_core.h"

#include <algorithm>
#include <map>
#include <utility>

#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/limits.h"

namespace ddprun::rdzv {
namespace {

constexpr auto kProgressInterval = std::chrono::seconds(10);
// That nodes of another leader's round are waited for: most of the time some died together with it.
constexpr std::chrono::milliseconds kReturnTimeout{10'000};
// That a node may say of the job's past. No job has so many rounds, and no number of them that follow
// makes the round's number go over.
constexpr Round kLastRoundMax{1'000'000'000};
// A timer that comes later than that came late because this process was stopped. What nodes have
// said meanwhile is not read yet.
constexpr auto kOwnPause = std::chrono::milliseconds(100);
// Of a job on several nodes, because each of them gets the whole outcome.
constexpr std::size_t kConsequencesMax = 32;

// The round that a message speaks of, where it speaks of one.
template <typename Message>
std::optional<Round> round_of(const Message& message) {
  if constexpr (requires { message.round; }) {
    return message.round;
  } else {
    return std::nullopt;
  }
}

std::string nodes_in_words(int min_nodes, int max_nodes) {
  return min_nodes == max_nodes ? std::to_string(max_nodes)
                                : std::to_string(min_nodes) + ":" + std::to_string(max_nodes);
}

std::string in_seconds(std::chrono::milliseconds duration) {
  const auto ms = duration.count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

// What is the same on every node is kept once.
NodeHello what_is_its_own(NodeHello hello) {
  hello.run_id = std::string();
  hello.program = std::string();
  hello.user = std::string();
  return hello;
}

}  // namespace

std::optional<std::string> check_hello(const RoundConfig& config, const NodeHello& hello) {
  const std::string who = hello.host.empty() ? "this node" : hello.host;
  if (hello.run_id != config.run_id) {
    return who + " belongs to job '" + hello.run_id +
           "', but the leader at this endpoint leads job '" + config.run_id +
           "'; give all nodes of a job the same --rdzv-id, and every job its own " + "endpoint";
  }
  // Another job that happens to have the same id: many have the default one.
  const auto other_job = [&](const std::string& what, const std::string& its,
                             const std::string& ours) {
    return who + " runs " + what + " " + its + ", but the job '" + config.run_id +
           "' at this endpoint was started with " + what + " " + ours +
           "; if this is another job, give it a --rdzv-id and an endpoint of its own";
  };
  if (!config.program.empty() && hello.program != config.program) {
    return other_job("program", hello.program, config.program);
  }
  if (!config.user.empty() && hello.user != config.user) {
    return other_job("as user", hello.user, config.user);
  }
  const auto other = [&](const std::string& option, const std::string& asked,
                         const std::string& job) {
    return who + " asks for " + option + "=" + asked + ", the job was started with " + option +
           "=" + job + "; give every node the same";
  };
  if (hello.min_nodes != config.min_nodes || hello.max_nodes != config.max_nodes) {
    return other("--nnodes", nodes_in_words(hello.min_nodes, hello.max_nodes),
                 nodes_in_words(config.min_nodes, config.max_nodes));
  }
  if (hello.max_restarts != config.restarts.max_restarts) {
    return other("--max-restarts", std::to_string(hello.max_restarts),
                 std::to_string(config.restarts.max_restarts));
  }
  if (config.has_exact_ranks &&
      (!hello.node_rank || *hello.node_rank < 0 || *hello.node_rank >= config.max_nodes)) {
    return who + " asks for " +
           (hello.node_rank ? "--node-rank=" + std::to_string(*hello.node_rank)
                            : "no --node-rank") +
           "; the " + std::to_string(config.max_nodes) + " nodes of this job have the ranks 0 to " +
           std::to_string(config.max_nodes - 1);
  }
  return {};
}

RoundCore::RoundCore(RoundConfig config)
    : config_(std::move(config)),
      state_(Gathering{}),
      members_(config_.max_nodes),
      policy_(config_.restarts) {}

RoundCore::RoundCore(RoundConfig config, const Resumption& resumption)
    : RoundCore(std::move(config)) {
  round_ = resumption.next;
  policy_ = RestartPolicy(config_.restarts, resumption.history);
  has_run_ = resumption.goes_on;
  if (!resumption.goes_on) return;
  nodes_expected_ = resumption.nodes_expected;
  if (!resumption.uptime) return;
  // A leader that dies again and again must not spin the job any more than another node may.
  const auto pause = policy_.round_ended({.has_lost_node = true, .uptime = *resumption.uptime});
  if (pause.count() > 0) state_ = Pausing{resumption.now + pause};
}

std::vector<ToNode> RoundCore::step(CoreTime now, NodeId from, const ToLeader& message) {
  now_ = now;
  Out out;
  if (is_stale(from, message)) return out;
  std::visit([&](const auto& event) { on(out, from, event); }, message);
  go_on(out);
  return out;
}

std::vector<ToNode> RoundCore::step(CoreTime now, NodeId node, const LinkEvent& event) {
  now_ = now;
  Out out;
  if (!members_.has(node)) return out;
  std::visit([&](const auto& e) { on(out, node, e); }, event);
  go_on(out);
  return out;
}

std::vector<ToNode> RoundCore::tick(CoreTime now) {
  now_ = now;
  Out out;
  for (auto broken = members_.longest_broken();
       broken && broken->since + config_.reconnect_grace <= now;
       broken = members_.longest_broken()) {
    remove(out, broken->id, NodeGone::How::kDisconnected);
  }
  go_on(out);
  return out;
}

std::optional<CoreTime> RoundCore::deadline() const {
  std::optional<CoreTime> earliest;
  const auto consider = [&earliest](std::optional<CoreTime> when) {
    if (when && (!earliest || *when < *earliest)) earliest = when;
  };
  if (const auto broken = members_.longest_broken()) {
    consider(broken->since + config_.reconnect_grace);
  }
  if (const auto* gathering = std::get_if<Gathering>(&state_)) {
    consider(gathering->last_call ? gathering->last_call : gathering->give_up);
    if (gathering->give_up) consider(gathering->next_progress);
  } else if (const auto* pausing = std::get_if<Pausing>(&state_)) {
    consider(pausing->until);
  } else if (const auto* opening = std::get_if<Opening>(&state_)) {
    consider(opening->until);
  } else if (const auto* stopping = std::get_if<Stopping>(&state_)) {
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
  std::optional<CoreTime> until;
  if (const auto* gathering = std::get_if<Gathering>(&state_)) {
    until = gathering->last_call ? gathering->last_call : gathering->give_up;
  } else if (const auto* pausing = std::get_if<Pausing>(&state_)) {
    until = pausing->until;
  }
  if (until) view.left = std::max(*until - now, CoreTime::duration::zero());
  const bool has_group = std::holds_alternative<Opening>(state_) || is_running() ||
                         std::holds_alternative<Stopping>(state_);
  for (const NodeId id : members_.all()) {
    const NodeHello& hello = members_.hello_of(id);
    LeaderView::Member member{id, hello.host, hello.address, hello.local_world_size, {}, {}};
    const bool is_in_round = has_group && members_.is_in_group(id);
    member.node_rank = is_in_round ? members_.rank_of(id) : hello.node_rank;
    using Place = LeaderView::Place;
    member.place = !members_.is_connected(id)                        ? Place::kDisconnected
                   : is_in_round                                     ? Place::kInRound
                   : members_.has_room() || members_.is_in_group(id) ? Place::kWaiting
                                                                     : Place::kSpare;
    view.members.push_back(std::move(member));
  }
  return view;
}

bool RoundCore::is_stale(NodeId from, const ToLeader& message) const {
  if (std::holds_alternative<NodeHello>(message)) return members_.has(from);
  const bool is_of_leader = from == NodeId{0} && !config_.own_node;
  if (is_of_leader && std::holds_alternative<StopAsked>(message)) return false;
  if (!members_.has(from)) return true;
  const auto round = std::visit([](const auto& event) { return round_of(event); }, message);
  return round.has_value() && (*round != round_ || !members_.is_in_group(from));
}

// ---- arrivals

void RoundCore::on(Out& out, NodeId from, const NodeHello& hello) {
  if (auto sentence = check_hello(config_, hello)) {
    out.push_back({from, Refused{std::move(*sentence)}});
    return;
  }
  if (hello.last_round && hello.last_round->round > std::max(round_, kLastRoundMax)) {
    out.push_back(
        {from, Refused{(hello.host.empty() ? "this node" : hello.host) +
                       " says that it took part in round " + to_string(hello.last_round->round) +
                       ", and no job has so many; start it again"}});
    return;
  }
  if (config_.program.empty()) config_.program = hello.program;
  if (config_.user.empty()) config_.user = hello.user;
  if (auto* ended = std::get_if<Ended>(&state_)) {
    if (!may_wait(out, from)) return;
    members_.add(from, what_is_its_own(hello));
    ended->untold.insert(from);
    ended->until = now_ + config_.answer_timeout;
    out.push_back({from, JobEnd{ended->outcome}});
    return;
  }
  if (!may_have_its_rank(out, from, hello) || !may_wait(out, from)) return;
  members_.add(from, what_is_its_own(hello));
  if (hello.last_round) learn_from(*hello.last_round);
  if (auto* gathering = std::get_if<Gathering>(&state_)) {
    gathering->newcomers.push_back(from);
    return;
  }
  if (!members_.has_room()) {
    out.push_back({from, WaitAsSpare{WaitAsSpare::Why::kNoRoom}});
    return;
  }
  const auto* running = std::get_if<Running>(&state_);
  if (running != nullptr && running->are_some_done) {
    out.push_back({from, WaitAsSpare{WaitAsSpare::Why::kJobIsFinishing}});
  }
}

// Nothing is new where this leader itself led that round.
void RoundCore::learn_from(const LastRound& last) {
  round_min_ = std::max(round_min_, next(last.round));
  policy_.already_spent(last.restarts);
  if (has_run_ && !knows_by_nodes_) return;
  has_run_ = knows_by_nodes_ = true;
  nodes_expected_ = std::max(nodes_expected_, std::min(last.node_count, config_.max_nodes));
  auto* gathering = std::get_if<Gathering>(&state_);
  if (gathering != nullptr && gathering->last_call) {
    gathering->last_call = std::min(*gathering->last_call, now_ + kReturnTimeout);
  }
}

bool RoundCore::may_wait(Out& out, NodeId from) const {
  const int spares_max = std::max(config_.max_nodes, limits::kSparesFloor);
  if (members_.count() - config_.max_nodes < spares_max) return true;
  out.push_back({from, Refused{"the job has all its nodes, " + std::to_string(config_.max_nodes) +
                               ", and " + std::to_string(spares_max) +
                               " spares wait already; start fewer nodes, or give another job a "
                               "--rdzv-id and an endpoint of its own"}});
  return false;
}

// The node whose place it takes, if any, goes.
bool RoundCore::may_have_its_rank(Out& out, NodeId from, const NodeHello& hello) {
  if (!hello.node_rank) return true;
  const std::string rank = std::to_string(*hello.node_rank);
  if (const auto holder = members_.broken_claimant(*hello.node_rank)) {
    remove(out, *holder, NodeGone::How::kReplaced);
  } else if (const auto other = members_.connected_claimant(*hello.node_rank)) {
    const std::string& other_host = members_.hello_of(*other).host;
    if (config_.has_exact_ranks) {
      out.push_back({from, Refused{"--node-rank=" + rank + " is taken by " + other_host +
                                   "; give every node a rank of its own"}});
      return false;
    }
    out.push_back({from, Warning{"--node-rank=" + rank + " was asked for by " + other_host +
                                 " too; nodes that ask for the same are ordered as they came"}});
  }
  return true;
}

void RoundCore::tell_progress(Out& out, NodeId to) const {
  const auto& gathering = std::get<Gathering>(state_);
  const auto until = gathering.last_call ? gathering.last_call : gathering.give_up;
  const auto left = std::chrono::ceil<std::chrono::seconds>(until.value_or(now_) - now_);
  out.push_back({to, WaitForNodes{members_.ready(), config_.min_nodes, config_.max_nodes, left}});
}

// ---- what a round brings

void RoundCore::on(Out& out, NodeId from, const StoreOpened& opened) {
  const auto* opening = std::get_if<Opening>(&state_);
  if (opening == nullptr || opening->host != from) return;
  next_.nodes_joined += members_.form_group().joined;  // who came meanwhile is in
  if (members_.group().front() == from && round_ >= round_min_) {
    announce_round(out, opened.port);
  } else {
    round_ = next(round_);
    open_round(out);
  }
}

void RoundCore::on(Out& out, NodeId from, const StoreNotOpened& refused) {
  const auto* opening = std::get_if<Opening>(&state_);
  if (opening == nullptr || opening->host != from) return;
  JobOutcome outcome;
  outcome.kind = JobOutcome::Kind::kCannotRun;
  outcome.exit_code = kExitCannotRun;
  outcome.sentence = refused.why;
  end(out, std::move(outcome));
}

void RoundCore::on(Out& out, NodeId from, const WorkerFailed& failed) {
  if (auto* stopping = std::get_if<Stopping>(&state_)) {
    keep_consequences(*stopping, {failed.failure});
  } else if (std::holds_alternative<Running>(state_)) {
    Stopping next_state;
    next_state.cause = failed.failure;
    next_state.cause_node = from;
    stop_round(out, std::move(next_state));
  }
}

void RoundCore::on(Out&, NodeId, const SomeWorkersDone&) {
  if (auto* running = std::get_if<Running>(&state_)) running->are_some_done = true;
}

void RoundCore::on(Out&, NodeId from, const WorkersDone&) {
  auto* running = std::get_if<Running>(&state_);
  if (running == nullptr) return;
  running->are_some_done = true;
  running->done.insert(from);
}

void RoundCore::on(Out&, NodeId from, const RoundStopped& stopped) {
  auto* stopping = std::get_if<Stopping>(&state_);
  if (stopping == nullptr || !stopping->awaited.erase(from)) return;
  keep_consequences(*stopping, stopped.failures);
}

void RoundCore::keep_consequences(Stopping& stopping,
                                  const std::vector<WorkerFailure>& failures) const {
  for (const WorkerFailure& failure : failures) {
    if (config_.max_nodes > 1 && stopping.consequences.size() == kConsequencesMax) {
      stopping.consequences_left_out += 1;
      continue;
    }
    stopping.consequences.push_back(failure);
    stopping.consequences.back().stderr_tail.clear();  // the report has those of the cause
  }
}

// ---- nodes that go

void RoundCore::on(Out& out, NodeId from, const NodeLeaving& leaving) {
  if (has_ended()) return;
  if (from == config_.own_node) {
    make_last(out, leaving, from);
  } else {
    // It ends by itself: its workers are signalled, and nobody has to wait for them.
    remove(out, from, NodeGone::How::kLeft);
  }
}

// No round follows the one that runs or is being stopped.
void RoundCore::make_last(Out& out, const NodeLeaving& why, std::optional<NodeId> leaver) {
  auto* stopping = std::get_if<Stopping>(&state_);
  Stopping fresh;
  if (stopping == nullptr) stopping = &fresh;
  if (stopping->last) return;
  stopping->last = why;
  if (leaver) stopping->gone.insert(*leaver);
  if (stopping != &fresh) return;
  if (is_running()) {
    stop_round(out, std::move(fresh));
  } else {
    state_ = std::move(fresh);  // nobody to wait for
  }
}

void RoundCore::on(Out& out, NodeId from, const NodeStuck& stuck) {
  if (has_ended()) return;
  JobOutcome outcome;
  outcome.kind = JobOutcome::Kind::kCannotRun;
  outcome.exit_code = kExitWorkerStuck;
  outcome.sentence = stuck.sentence;
  if (from != config_.own_node) {
    outcome.last_round = round_;
    outcome.restarts = restarts();
    out.push_back({from, JobEnd{std::move(outcome)}});
    remove(out, from, NodeGone::How::kStuck);
    return;
  }
  if (auto* stopping = std::get_if<Stopping>(&state_)) {
    outcome.cause = std::move(stopping->cause);
    outcome.consequences = std::move(stopping->consequences);
  }
  end(out, std::move(outcome));
}

void RoundCore::on(Out&, NodeId from, const Goodbye&) {
  if (auto* ended = std::get_if<Ended>(&state_)) ended->untold.erase(from);
}

void RoundCore::on(Out&, NodeId node, const NodeDisconnected&) {
  members_.disconnected(node, now_);
}

void RoundCore::on(Out&, NodeId node, const NodeResumed&) { members_.resumed(node); }

void RoundCore::on(Out& out, NodeId node, const NodeSilent&) {
  remove(out, node, NodeGone::How::kSilent);
  out.push_back({node, DeclaredLost{}});
}

// Nothing is decided here but that a round which loses a member cannot go on.
void RoundCore::remove(Out& out, NodeId node, NodeGone::How how) {
  const bool was_in_group = members_.is_in_group(node);
  const bool is_loss = how != NodeGone::How::kLeft;
  if (was_in_group) {
    next_.nodes_gone += 1;
    if (!next_.after_loss) {
      next_.after_loss = NodeGone{how, members_.rank_of(node), members_.hello_of(node).host};
    }
  }
  members_.remove(node);
  if (auto* ended = std::get_if<Ended>(&state_)) ended->untold.erase(node);
  if (is_running() && was_in_group) {
    Stopping next_state;
    next_state.has_lost_node = is_loss;
    stop_round(out, std::move(next_state));
  }
  if (auto* stopping = std::get_if<Stopping>(&state_); stopping != nullptr && was_in_group) {
    stopping->awaited.erase(node);
    stopping->gone.insert(node);
    stopping->has_lost_node |= is_loss;
  }
}

// Its agent is heard, and does not do what it was told to.
void RoundCore::give_up_on(Out& out, NodeId node) {
  remove(out, node, NodeGone::How::kUnresponsive);
  out.push_back({node, DeclaredLost{}});
}

bool RoundCore::was_paused(CoreTime until) const { return now_ - until > kOwnPause; }

void RoundCore::Awaited::insert(NodeId node, CoreTime until) {
  erase(node);
  until_[node] = until;
  if (until != CoreTime::max()) by_time_.emplace(until, node);
}

bool RoundCore::Awaited::erase(NodeId node) {
  const auto found = until_.find(node);
  if (found == until_.end()) return false;
  by_time_.erase({found->second, node});
  until_.erase(found);
  return true;
}

std::optional<std::pair<CoreTime, NodeId>> RoundCore::Awaited::next() const {
  if (by_time_.empty()) return {};
  return *by_time_.begin();
}

// ---- what a person asks for

// Where none runs, one is to come or none is wanted.
void RoundCore::on(Out& out, NodeId, const RestartAsked&) {
  if (!is_running()) return;
  next_.after_request = true;
  asked_for_ += 1;
  stop_round(out, {});
}

void RoundCore::on(Out& out, NodeId, const StopAsked& asked) {
  if (!has_ended()) make_last(out, {asked.signal, /*is_preemption=*/false}, std::nullopt);
}

// ---- from state to state

void RoundCore::go_on(Out& out) {
  // Each call makes at most one step; a step may make the next one possible.
  for (auto before = state_.index();; before = state_.index()) {
    std::visit([&](auto& state) { go_on(out, state); }, state_);
    if (state_.index() == before) return;
  }
}

void RoundCore::go_on(Out& out, Gathering& gathering) {
  const bool is_enough = members_.ready() >= config_.min_nodes;
  const bool is_full = members_.ready() >= config_.max_nodes;
  const bool is_complete = has_run_ && members_.ready() >= nodes_expected_;
  if (is_enough && !gathering.last_call) {
    gathering.last_call = now_ + (has_run_ ? std::min(config_.last_call_timeout, kReturnTimeout)
                                           : config_.last_call_timeout);
  }
  if (!is_enough) gathering.last_call.reset();
  if (is_full || (is_enough && (is_complete || now_ >= *gathering.last_call))) {
    return open_round(out);
  }

  // Before the first node comes, nobody's patience is tried.
  const bool is_counting = !members_.is_empty() || round_ != Round{};
  if (!gathering.give_up && is_counting) gathering.give_up = now_ + config_.join_timeout;
  if (!gathering.give_up) return;
  if (!is_enough && now_ >= *gathering.give_up) return end_for_want_of_nodes(out);
  if (now_ >= gathering.next_progress) {
    gathering.next_progress = now_ + kProgressInterval;
    gathering.newcomers = members_.all();
  }
  for (const NodeId id : std::exchange(gathering.newcomers, {})) tell_progress(out, id);
}

void RoundCore::go_on(Out& out, Pausing& pausing) {
  if (now_ >= pausing.until) open_round_or_gather(out);
}

void RoundCore::go_on(Out& out, Opening& opening) {
  if (members_.has(opening.host) && members_.ready() >= config_.min_nodes) {
    if (now_ < opening.until) return;
    if (was_paused(opening.until)) {
      opening.until = now_ + config_.answer_timeout;
      return;
    }
    if (opening.host == config_.own_node) return end_without_store(out);
    give_up_on(out, opening.host);
  }
  round_ = next(round_);
  open_round_or_gather(out);
}

void RoundCore::go_on(Out& out, Running& running) {
  if (running.done.size() == members_.group().size()) {
    end(out, JobOutcome{});
  } else if (!running.are_some_done && members_.has_room() && members_.has_connected_outsider()) {
    next_.after_arrival = true;
    stop_round(out, {});
  }
}

void RoundCore::go_on(Out& out, Stopping& stopping) {
  for (auto late = stopping.awaited.next(); late && late->first <= now_;
       late = stopping.awaited.next()) {
    const auto [until, node] = *late;
    stopping.awaited.erase(node);
    if (was_paused(until)) {
      stopping.awaited.insert(node, now_ + config_.answer_timeout);
    } else {
      give_up_on(out, node);
    }
  }
  if (stopping.awaited.is_empty()) settle(out, std::move(stopping));
}

// Who is told of the end says Goodbye at once, whatever it does.
void RoundCore::go_on(Out&, Ended& ended) {
  if (now_ >= ended.until) ended.untold.clear();
}

void RoundCore::open_round_or_gather(Out& out) {
  if (members_.ready() >= config_.min_nodes) {
    open_round(out);
  } else {
    state_ = Gathering{};
  }
}

void RoundCore::open_round(Out& out) {
  round_ = std::max(round_, round_min_);
  next_.nodes_joined += members_.form_group().joined;
  const NodeId host = members_.group().front();
  state_ = Opening{host, now_ + config_.answer_timeout};
  out.push_back({host, OpenStore{round_}});
}

void RoundCore::announce_round(Out& out, std::uint16_t port) {
  const std::vector<NodeId>& group = members_.group();
  RoundStart start = std::exchange(next_, {});
  if (!std::exchange(has_run_, true)) start = {};  // nothing has changed for anybody
  knows_by_nodes_ = false;
  // To this leader all of them are new, which is nothing to tell.
  if (std::exchange(nodes_expected_, 0) > 0) start.nodes_joined = 0;
  start.round = round_;
  start.restarts = restarts();
  start.max_restarts = policy_.max_restarts();
  start.node_count = static_cast<int>(group.size());
  start.master_addr = members_.hello_of(group.front()).address;
  start.master_port = port;
  start.world_size = 0;
  struct Role {
    int size = 0;
    int offset = 0;
  };
  std::map<std::string, Role> roles;
  for (const NodeId id : group) {
    const NodeHello& hello = members_.hello_of(id);
    start.world_size += hello.local_world_size;
    roles[hello.role].size += hello.local_world_size;
  }
  for (const NodeId id : group) {
    const NodeHello& hello = members_.hello_of(id);
    Role& role = roles[hello.role];
    start.role_rank_offset = role.offset;
    start.role_world_size = role.size;
    out.push_back({id, start});
    start.node_rank += 1;
    start.rank_offset += hello.local_world_size;
    role.offset += hello.local_world_size;
  }
  state_ = Running{now_, {}, false};
}

void RoundCore::stop_round(Out& out, Stopping stopping) {
  stopping.uptime = now_ - std::get<Running>(state_).since;
  const bool is_failure = stopping.cause || stopping.has_lost_node;
  const auto why = is_failure ? RoundStop::Why::kFailure : RoundStop::Why::kPlanned;
  for (const NodeId id : members_.group()) {
    if (!members_.has(id)) continue;
    // The leader's own is preempted, perhaps, and leaves its workers their time.
    const auto limit = members_.hello_of(id).shutdown_timeout + config_.stop_margin;
    stopping.awaited.insert(id, id == config_.own_node ? CoreTime::max() : now_ + limit);
    out.push_back({id, RoundStop{round_, why}});
  }
  state_ = std::move(stopping);
}

void RoundCore::settle(Out& out, Stopping stopping) {
  JobOutcome outcome;
  outcome.cause = std::move(stopping.cause);
  outcome.consequences = std::move(stopping.consequences);
  outcome.consequences_left_out = stopping.consequences_left_out;
  // Where another node went, it is a consequence.
  stopping.gone.erase(stopping.cause_node);
  const bool is_own_fault = outcome.cause && stopping.gone.empty();
  if (is_own_fault && !policy_.allows_retry(*outcome.cause, stopping.uptime)) {
    outcome.kind = JobOutcome::Kind::kFailed;
    outcome.exit_code = outcome.cause->status.as_shell_code();
    return end(out, std::move(outcome));
  }
  if (stopping.last) {
    outcome.kind = JobOutcome::Kind::kStopped;
    outcome.stop_signal = stopping.last->signal;
    outcome.exit_code = stopping.last->is_preemption ? kExitPreempted : 128 + outcome.stop_signal;
    return end(out, std::move(outcome));
  }
  const auto pause = policy_.round_ended({is_own_fault, stopping.has_lost_node, stopping.uptime});
  if (is_own_fault) {
    next_.after_failure = std::move(outcome.cause);
    next_.after_failure->stderr_tail.clear();
  }
  round_ = next(round_);
  if (pause.count() > 0) {
    state_ = Pausing{now_ + pause};
  } else {
    open_round_or_gather(out);
  }
}

// ---- the end

void RoundCore::end_without_store(Out& out) {
  JobOutcome outcome;
  outcome.kind = JobOutcome::Kind::kCannotRun;
  outcome.exit_code = kExitCannotRun;
  outcome.sentence = "this node did not open the store that workers meet at within " +
                     in_seconds(config_.answer_timeout);
  end(out, std::move(outcome));
}

void RoundCore::end_for_want_of_nodes(Out& out) {
  JobOutcome outcome;
  outcome.kind = JobOutcome::Kind::kCannotRun;
  outcome.exit_code = has_run_ ? kExitBelowMinimum : kExitRendezvousTimeout;
  outcome.lost_node = next_.after_loss;
  const std::string there = std::to_string(members_.ready()) + " of " +
                            nodes_in_words(config_.min_nodes, config_.max_nodes) + " nodes ";
  const std::string limit = in_seconds(config_.join_timeout);
  if (!has_run_) {
    outcome.sentence =
        there + "came within " + limit +
        "; start the others, or give them longer by --rdzv-conf=join_timeout=SECONDS";
  } else {
    outcome.sentence = there + "are left, and no other came within " + limit;
    if (outcome.lost_node) outcome.sentence += "; " + describe(*outcome.lost_node);
  }
  end(out, std::move(outcome));
}

void RoundCore::end(Out& out, JobOutcome outcome) {
  outcome.restarts = restarts();
  outcome.restarts_asked_for = asked_for_;
  outcome.last_round = round_;
  Ended ended{std::move(outcome), {}, now_ + config_.answer_timeout};
  for (const NodeId id : members_.all()) {
    ended.untold.insert(id);
    out.push_back({id, JobEnd{ended.outcome}});
  }
  state_ = std::move(ended);
}

}  // namespace ddprun::rdzv
