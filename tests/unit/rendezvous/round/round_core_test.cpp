// What holds for many events: the tables of the RoundCore, limits and queries. tests/scenarios/leader tells its stories.
#include "rendezvous/round/round_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <map>
#include <optional>

#include "rendezvous/common/limits.h"

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr NodeId kOwn{0};
constexpr Round kFirst{0};

WorkerFailure failure(int rank, ExitStatus status) {
  WorkerFailure out;
  out.rank = rank;
  out.local_rank = rank;
  out.pid = 1000 + rank;
  out.status = status;
  return out;
}
WorkerFailure failure() { return failure(0, ExitStatus::exited(1)); }

template <typename Message>
const Message* only(const std::vector<ToNode>& out) {
  return out.size() == 1 ? std::get_if<Message>(&out.front().message) : nullptr;
}

template <typename Message>
std::vector<NodeId> receivers_of(const std::vector<ToNode>& out) {
  std::vector<NodeId> ids;
  for (const ToNode& each : out) {
    if (std::holds_alternative<Message>(each.message)) ids.push_back(each.to);
  }
  return ids;
}

const JobOutcome& outcome_in(const std::vector<ToNode>& out) {
  for (const ToNode& each : out) {
    if (const auto* end = std::get_if<JobEnd>(&each.message)) return end->outcome;
  }
  static const JobOutcome none{};
  ADD_FAILURE() << "the job has not ended";
  return none;
}

RoundConfig config_of(int min_nodes, int max_nodes, int max_restarts = 0) {
  RoundConfig config;
  config.min_nodes = min_nodes;
  config.max_nodes = max_nodes;
  config.restarts.max_restarts = max_restarts;
  return config;
}

// A leader with a clock that the test moves, and nodes named after their numbers.
class Leader {
 public:
  explicit Leader(RoundConfig config) : config_(config), core(std::move(config)) {}

  NodeHello hello(int id, std::optional<int> node_rank = {}) const {
    NodeHello hello;
    hello.role = "r";
    hello.address = "10.0.0." + std::to_string(id);
    hello.host = "node" + std::to_string(id);
    hello.node_rank = node_rank;
    hello.session = 100 + static_cast<std::uint64_t>(id);
    hello.run_id = config_.run_id;
    hello.min_nodes = config_.min_nodes;
    hello.max_nodes = config_.max_nodes;
    hello.max_restarts = config_.restarts.max_restarts;
    return hello;
  }
  std::vector<ToNode> join(int id, std::optional<int> node_rank = {}) {
    return said(id, hello(id, node_rank));
  }
  // It was in the job before this leader was.
  std::vector<ToNode> join_after(int id, LastRound last) {
    NodeHello again = hello(id);
    again.last_round = last;
    return said(id, again);
  }
  std::vector<ToNode> said(int id, const ToLeader& message) {
    return core.step(now, NodeId{static_cast<std::uint32_t>(id)}, message);
  }
  std::vector<ToNode> link(int id, const LinkEvent& event) {
    return core.step(now, NodeId{static_cast<std::uint32_t>(id)}, event);
  }
  // To the next deadline, which is expected to be this far away.
  std::vector<ToNode> wait(std::chrono::milliseconds duration) {
    now += duration;
    return core.tick(now);
  }
  // All of these nodes have joined, and the first round runs.
  Leader& run(int nodes) {
    for (int id = 0; id < nodes; ++id) join(id);
    if (!core.is_running() && core.deadline()) wait(config_.last_call_timeout);
    said(0, StoreOpened{core.round(), 4000});
    EXPECT_TRUE(core.is_running());
    return *this;
  }

 private:
  RoundConfig config_;

 public:
  CoreTime now{};
  RoundCore core;
};

TEST(RoundCore, KeepsEveryConsequenceOfAJobOnOneNode) {
  Leader job(config_of(1, 1));
  job.run(1);
  job.said(0, WorkerFailed{kFirst, failure()});
  const auto out = job.said(0, RoundStopped{kFirst, std::vector<WorkerFailure>(200, failure())});
  EXPECT_THAT(outcome_in(out).consequences, SizeIs(200));
}

TEST(RoundCore, RanksAreContiguousOverNodesAndRoles) {
  Leader job(config_of(3, 3));
  const auto hello = [&](int id, int workers, const std::string& role) {
    NodeHello of_role = job.hello(id);
    of_role.local_world_size = workers;
    of_role.role = role;
    return of_role;
  };
  job.said(0, hello(0, 2, "a"));
  job.said(1, hello(1, 3, "b"));
  EXPECT_THAT(job.said(2, hello(2, 1, "a")), Contains(ToNode{kOwn, OpenStore{kFirst}}));
  const auto out = job.said(0, StoreOpened{kFirst, 4000});
  ASSERT_THAT(out, SizeIs(3));
  const auto& last = std::get<RoundStart>(out[2].message);
  EXPECT_EQ(last.node_rank, 2);
  EXPECT_EQ(last.node_count, 3);
  EXPECT_EQ(last.rank_offset, 5);
  EXPECT_EQ(last.world_size, 6);
  EXPECT_EQ(last.role_rank_offset, 2);
  EXPECT_EQ(last.role_world_size, 3);
  EXPECT_EQ(last.master_addr, "10.0.0.0");
}

TEST(RoundCore, TellsAllHowFarTheGatheringIsAfterTenThirtyAndSixtySecondsAndThenEveryMinute) {
  Leader job(config_of(2, 2));
  job.join(0);
  const CoreTime begin = job.now;
  std::vector<std::chrono::seconds> told;
  while (job.now < begin + 200s) {
    if (!receivers_of<WaitForNodes>(job.wait(1s)).empty()) {
      told.push_back(std::chrono::duration_cast<std::chrono::seconds>(job.now - begin));
    }
  }
  EXPECT_THAT(told, ElementsAre(10s, 30s, 60s, 120s, 180s));
}

TEST(RoundCore, SaysWhatItWaitsForBeforeTheFirstNodeComes) {
  Leader job(config_of(2, 3));
  EXPECT_EQ(job.core.wait(job.now + 60s), (WaitForNodes{0, 2, 3, 600s}));
  job.join(0);
  EXPECT_EQ(job.core.wait(job.now + 60s), (WaitForNodes{1, 2, 3, 540s}));
  job.join(1);
  job.join(2);
  EXPECT_EQ(job.core.wait(job.now), std::nullopt);
}

// Without a token, whoever reaches the port can send hellos for the rank of another node.
TEST(RoundCore, HellosThatWaitForATakenRankAreLimited) {
  RoundConfig config = config_of(2, 2);
  config.has_exact_ranks = true;
  config.own_node.reset();  // the leader knows that its own node lives
  Leader job(config);
  job.join(0, 0);
  for (int id = 1; id <= limits::kSparesFloor; ++id) {
    EXPECT_EQ(only<Refused>(job.join(id, 0)), nullptr) << id;
  }
  EXPECT_NE(only<Refused>(job.join(1000, 0)), nullptr);
  EXPECT_THAT(receivers_of<Refused>(job.wait(config.silence_limit)), SizeIs(limits::kSparesFloor));
  EXPECT_EQ(only<Refused>(job.join(1001, 0)), nullptr) << "those before were refused";
}

TEST(RoundCore, OnlySoManySparesWait) {
  Leader job(config_of(2, 2));
  job.run(2);
  int refused = 0;
  for (int id = 2; id < 4'000; ++id) {
    const auto out = job.join(id);
    if (const auto* refusal = only<Refused>(out)) {
      refused += 1;
      EXPECT_THAT(refusal->sentence, HasSubstr("2, and 64 spares wait already"));
    }
  }
  EXPECT_EQ(refused, 4'000 - 2 - 64);
  EXPECT_THAT(job.core.view(job.now).members, SizeIs(2 + 64));
  // As many as the job has nodes, where it has more.
  Leader large(config_of(1, 100));
  for (int id = 0; id < 200; ++id) EXPECT_EQ(only<Refused>(large.join(id)), nullptr) << id;
  EXPECT_NE(only<Refused>(large.join(200)), nullptr);
  // Nor are all the nodes of a large network told of the end of a job that was never theirs.
  job.said(0, NodeLeaving{SIGTERM});
  for (const int id : {0, 1}) job.said(id, RoundStopped{kFirst, {}});
  ASSERT_TRUE(job.core.has_ended());
  EXPECT_NE(only<Refused>(job.join(5'000)), nullptr);
}

TEST(RoundCore, WhatANodeSaysOfThePastHasBounds) {
  Leader job(config_of(2, 2, /*max_restarts=*/3));
  job.join(0);
  for (const std::uint32_t round : {1'000'000'001U, 0xFFFFFFFEU, 0xFFFFFFFFU}) {
    const auto refused = job.join_after(1, {Round{round}, 2, 0});
    ASSERT_NE(only<Refused>(refused), nullptr) << round;
    EXPECT_THAT(only<Refused>(refused)->sentence,
                HasSubstr("node1 says that it took part in round"));
  }
  job.join_after(1, {Round{1'000'000'000}, 1 << 30, 0x7FFFFFFF});
  EXPECT_EQ(job.core.round(), Round{1'000'000'001});
  EXPECT_EQ(job.core.restarts(), 3);
}

TEST(RoundCore, ALargeJobsOutcomeStaysSmall) {
  Leader job(config_of(2, 2));
  job.run(2);
  job.said(0, WorkerFailed{kFirst, failure()});
  job.said(0, RoundStopped{kFirst, std::vector<WorkerFailure>(60, failure())});
  const auto out = job.said(1, RoundStopped{kFirst, {}});
  EXPECT_THAT(outcome_in(out).consequences, SizeIs(32));
  EXPECT_EQ(outcome_in(out).consequences_left_out, 28);
}

TEST(RoundCore, ShowsWhoIsThereAndWhatItWaitsFor) {
  using Place = LeaderView::Place;
  using State = LeaderView::State;
  const auto places = [](const LeaderView& view) {
    std::vector<Place> found;
    for (const auto& member : view.members) found.push_back(member.place);
    return found;
  };
  RoundConfig config = config_of(2, 2, 3);
  config.join_timeout = 60s;
  Leader job(config);
  job.join(0);
  LeaderView view = job.core.view(job.now + 10s);
  EXPECT_EQ(view.state, State::kGathering);
  EXPECT_EQ(view.left, std::chrono::nanoseconds(50s));
  EXPECT_EQ(view.ready, 1);
  EXPECT_THAT(places(view), ElementsAre(Place::kWaiting));

  job.run(2);
  job.join(2);
  view = job.core.view(job.now);
  EXPECT_EQ(view.state, State::kRunning);
  EXPECT_EQ(view.left, std::nullopt);
  EXPECT_EQ(view.max_restarts, 3);
  EXPECT_THAT(places(view), ElementsAre(Place::kInRound, Place::kInRound, Place::kSpare));
  EXPECT_EQ(view.members[1].host, "node1");
  EXPECT_EQ(view.members[1].node_rank, 1);
  EXPECT_EQ(view.members[2].node_rank, std::nullopt);

  job.link(1, NodeDisconnected{});
  EXPECT_EQ(job.core.view(job.now).members[1].place, Place::kDisconnected);
  job.wait(300ms);  // it is lost
  view = job.core.view(job.now);
  EXPECT_EQ(view.state, State::kStopping);
  EXPECT_THAT(places(view), ElementsAre(Place::kInRound, Place::kWaiting)) << "its place is free";
  job.said(0, NodeLeaving{SIGTERM});
  job.said(0, RoundStopped{kFirst, {}});
  EXPECT_EQ(job.core.view(job.now).state, State::kEnded);
}

TEST(RoundCore, TenThousandNodesCostNoMoreThanTheyMust) {
  constexpr int kNodes = 10'000;
  Leader job(config_of(1, kNodes));
  std::size_t messages = 0;
  for (int id = 0; id < kNodes; ++id) messages += job.join(id).size();
  messages += job.said(0, StoreOpened{kFirst, 1}).size();
  EXPECT_LE(messages, 2U * kNodes + 1);
  for (int id = 1; id < kNodes; ++id) job.link(id, NodeDisconnected{});
  EXPECT_THAT(receivers_of<RoundStop>(job.wait(300ms)), SizeIs(kNodes - 1));
  EXPECT_THAT(receivers_of<OpenStore>(job.said(0, RoundStopped{kFirst, {}})), SizeIs(1));
}

TEST(RoundCore, ABrokenConnectionIsResumedInItsSessionAndInTime) {
  Leader job(config_of(1, 2));
  job.run(2);
  job.link(1, NodeDisconnected{});
  EXPECT_TRUE(job.core.can_resume(NodeId{1}, 101));
  EXPECT_FALSE(job.core.can_resume(NodeId{1}, 102));
  job.wait(300ms);
  EXPECT_FALSE(job.core.can_resume(NodeId{1}, 101));
}

// ---- the table in the header: every event in every state

enum State { kGathering, kPausing, kOpening, kRunning, kStopping, kEnded, kStates };

// Two nodes of at most three, 0 is the leader's own and group rank 0; node 1 is the one that acts.
Leader in_state(State state) {
  RoundConfig config = config_of(2, 3, 5);
  config.restarts.pause_after_failure = {1s, 1s};
  Leader job(config);
  job.join(0);
  if (state == kGathering) return job;
  job.join(1);
  job.wait(30s);
  if (state == kOpening) return job;
  job.said(0, StoreOpened{kFirst, 1});
  if (state == kRunning) return job;
  if (state == kEnded) {
    job.said(0, NodeLeaving{SIGTERM});
  } else {
    job.said(0, WorkerFailed{kFirst, failure()});
  }
  if (state == kStopping) return job;
  job.said(0, RoundStopped{kFirst, {}});
  job.said(1, RoundStopped{kFirst, {}});
  return job;
}

std::string names_of(const std::vector<ToNode>& out) {
  constexpr const char* kNames[] = {"Refused",   "Warning",     "WaitForNodes",  "WaitAsSpare",
                                    "OpenStore", "RoundStart",  "RoundStop",     "DeclaredLost",
                                    "JobEnd",    "GroupBroken", "ReplaceWorker", "HoldSteps",
                                    "LeaveAt"};
  static_assert(std::size(kNames) == std::variant_size_v<ToAgent>);
  std::string text;
  for (const ToNode& each : out) {
    text += (text.empty() ? "" : " ") + std::string(kNames[each.message.index()]) + ">" +
            std::to_string(number(each.to));
  }
  return text;
}

struct Row {
  const char* event;
  int from;
  std::function<std::vector<ToNode>(Leader&, int from)> happen;
  const char* answers[kStates];  // Gathering, Pausing, Opening, Running, Stopping, Ended
};

template <typename Message>
auto says(Message message) {
  return [message](Leader& job, int from) {
    Message copy = message;
    if constexpr (requires { copy.round; }) copy.round = job.core.round();
    return job.said(from, copy);
  };
}
template <typename Event>
auto link(Event event) {
  return [event](Leader& job, int from) { return job.link(from, event); };
}

constexpr const char* kBoth = "RoundStop>0 RoundStop>1";
constexpr char kHold[] = "HoldSteps>0 HoldSteps>1";
constexpr const char* kEndBoth = "JobEnd>0 JobEnd>1";

const Row kTable[] = {
    {"NodeHello",
     2,
     [](Leader& job, int from) { return job.join(from); },
     {"WaitForNodes>2", "", "", kHold, "", "JobEnd>2"}},
    {"NodeHello of a node of the past",
     2,
     [](Leader& job, int from) {
       return job.join_after(from, {Round{6}, 2, 0});
     },
     {"OpenStore>0", "", "", kHold, "", "JobEnd>2"}},
    {"NodeHello again",
     0,
     [](Leader& job, int from) { return job.join(from); },
     {"", "", "", "", "", ""}},
    {"StoreOpened by the host",
     0,
     says(StoreOpened{}),
     {"", "", "RoundStart>0 RoundStart>1", "", "", ""}},
    {"StoreOpened by another", 1, says(StoreOpened{}), {"", "", "", "", "", ""}},
    {"StoreNotOpened by the host", 0, says(StoreNotOpened{}), {"", "", kEndBoth, "", "", ""}},
    {"StoreNotOpened by another", 1, says(StoreNotOpened{}), {"", "", "", "", "", ""}},
    {"WorkerFailed",
     1,
     says(WorkerFailed{{}, failure()}),
     {"", "", "", "GroupBroken>0 RoundStop>0 RoundStop>1", "", ""}},
    {"WorkerReplaceable",
     1,
     says(WorkerReplaceable{{}, failure(), 5, 0}),
     {"", "", "", "GroupBroken>0 GroupBroken>1 RoundStop>0 RoundStop>1", "", ""}},
    {"WorkersRecover", 1, says(WorkersRecover{}), {"", "", "", "", "", ""}},
    {"Regrouped", 1, says(Regrouped{{}, 1}), {"", "", "", "", "", ""}},
    {"CannotRegroup", 1, says(CannotRegroup{{}, 1}), {"", "", "", "", "", ""}},
    {"LeaveWanted", 1, says(LeaveWanted{}), {"", "", "", kHold, "", ""}},
    {"StepsHeld without a question", 1, says(StepsHeld{{}, 7}), {"", "", "", "", "", ""}},
    {"StepsHeld of all",
     1,
     [](Leader& job, int from) {
       job.said(from, LeaveWanted{job.core.round()});
       job.said(0, StepsHeld{job.core.round(), 7});
       return job.said(from, StepsHeld{job.core.round(), 9});
     },
     {"", "", "", "LeaveAt>0 LeaveAt>1", "", ""}},
    {"StopWanted", 1, says(StopWanted{}), {"", "", "", kHold, "", ""}},
    {"StepsHeld of all before a stop",
     1,
     [](Leader& job, int from) {
       job.said(from, StopWanted{job.core.round()});
       job.said(0, StepsHeld{job.core.round(), 7, HoldSteps::Until::kRoundStop});
       return job.said(from, StepsHeld{job.core.round(), 9, HoldSteps::Until::kRoundStop});
     },
     {"", "", "", kBoth, "", ""}},
    {"StepsHeld before a stop, which cannot wait",
     1,
     [](Leader& job, int from) {
       job.said(from, StopWanted{job.core.round()});
       return job.said(from, StepsHeld{job.core.round(), -1, HoldSteps::Until::kRoundStop});
     },
     {"", "", "", kBoth, "", ""}},
    {"SomeWorkersDone", 1, says(SomeWorkersDone{}), {"", "", "", "", "", ""}},
    {"WorkersDone", 1, says(WorkersDone{}), {"", "", "", "", "", ""}},
    {"RoundStopped", 1, says(RoundStopped{}), {"", "", "", "", "", ""}},
    {"NodeLeaving",
     1,
     says(NodeLeaving{SIGTERM}),
     {"", "", "WaitForNodes>0", "RoundStop>0", "", ""}},
    {"NodeLeaving of the own node",
     0,
     says(NodeLeaving{SIGTERM}),
     {"JobEnd>0", kEndBoth, kEndBoth, kBoth, "", ""}},
    {"NodeStuck",
     1,
     says(NodeStuck{}),
     {"", "JobEnd>1", "JobEnd>1 WaitForNodes>0", "JobEnd>1 GroupBroken>0 RoundStop>0", "JobEnd>1",
      ""}},
    {"NodeStuck of the own node",
     0,
     says(NodeStuck{}),
     {"JobEnd>0", kEndBoth, kEndBoth, kEndBoth, kEndBoth, ""}},
    {"Goodbye", 1, says(Goodbye{}), {"", "", "", "", "", ""}},
    {"RestartAsked", 1, says(RestartAsked{}), {"", "", "", kHold, "", ""}},
    {"RestartAsked by an unknown node", 9, says(RestartAsked{}), {"", "", "", "", "", ""}},
    {"StopAsked", 0, says(StopAsked{SIGTERM}), {"JobEnd>0", kEndBoth, kEndBoth, kHold, "", ""}},
    {"NodeDisconnected", 1, link(NodeDisconnected{}), {"", "", "", "", "", ""}},
    {"NodeResumed", 1, link(NodeResumed{}), {"", "", "", "", "", ""}},
    {"NodeTurnedAway", 0, link(NodeTurnedAway{"", "10.0.0.9", "why"}), {"", "", "", "", "", ""}},
    {"NodeSilent",
     1,
     link(NodeSilent{}),
     {"", "DeclaredLost>1", "DeclaredLost>1 WaitForNodes>0",
      "GroupBroken>0 RoundStop>0 DeclaredLost>1", "DeclaredLost>1", "DeclaredLost>1"}},
    {"the grace is over",
     1,
     [](Leader& job, int from) {
       job.link(from, NodeDisconnected{});
       return job.wait(300ms);
     },
     {"", "", "WaitForNodes>0", "GroupBroken>0 RoundStop>0", "", ""}},
    {"tick", 0, [](Leader& job, int) { return job.wait(2s); }, {"", "OpenStore>0", "", "", "", ""}},
    {"an unknown node's word", 9, says(WorkerFailed{{}, failure()}), {"", "", "", "", "", ""}},
    {"another round's failure",
     1,
     [](Leader& job, int from) {
       return job.said(from, WorkerFailed{Round{99}, failure()});
     },
     {"", "", "", "", "", ""}},
    {"another round's end",
     1,
     [](Leader& job, int from) { return job.said(from, WorkersDone{Round{99}}); },
     {"", "", "", "", "", ""}},
};

TEST(RoundCore, AnswersEveryEventInEveryStateAsItsTableSays) {
  for (const Row& row : kTable) {
    for (int state = 0; state < kStates; ++state) {
      Leader job = in_state(static_cast<State>(state));
      EXPECT_EQ(names_of(row.happen(job, row.from)), row.answers[state])
          << row.event << " in state " << state;
    }
  }
}

// While a worker is replaced: what differs from Running.
TEST(RoundCore, AnswersEveryEventWhileAWorkerIsReplacedAsItsTableSays) {
  constexpr const char* kBroken = "GroupBroken>0 GroupBroken>1 RoundStop>0 RoundStop>1";
  const std::map<std::string_view, const char*> answers = {
      {"WorkerReplaceable", kBroken},  // the other rank's: none has the state
      {"CannotRegroup", kBroken},
      {"SomeWorkersDone", kBroken},
      {"WorkersDone", kBroken},
      // The round is stopped at once.
      {"NodeHello", kBoth},
      {"NodeHello of a node of the past", kBoth},
      {"StopWanted", kBoth},
      {"StepsHeld of all before a stop", ""},
      {"StepsHeld before a stop, which cannot wait", ""},
      {"RestartAsked", kBoth},
      {"StopAsked", kBoth}};
  for (const Row& row : kTable) {
    Leader job = in_state(kRunning);
    for (int id = 0; id < 2; ++id) job.said(id, WorkersRecover{kFirst});
    ASSERT_EQ(
        names_of(job.said(1, WorkerReplaceable{kFirst, failure(1, ExitStatus::exited(1)), 5, 0})),
        "ReplaceWorker>0 ReplaceWorker>1");
    const auto its = answers.find(row.event);
    EXPECT_EQ(names_of(row.happen(job, row.from)),
              its == answers.end() ? row.answers[kRunning] : its->second)
        << row.event;
  }
}

}  // namespace
}  // namespace ddprun::rdzv
