// What a core was told, as a line and back.
#include "agent/events/core_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <set>
#include <vector>

#include "launcher/ctl/core_text.h"
#include "tests/unit/rendezvous/round/round_frames.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

RecordedStep again(Recorded what) {
  const std::string line = record_line({1'700'000'000'000'001, std::move(what), 3});
  EXPECT_TRUE(line.ends_with('\n'));
  const auto read = recorded_step_from(line);
  EXPECT_TRUE(read) << read.error().to_string() << "\n" << line;
  if (!read) return {};
  EXPECT_EQ(read->unix_us, 1'700'000'000'000'001);
  EXPECT_EQ(read->decisions, 3U);
  return *read;
}

template <typename T>
T of(const RecordedStep& step) {
  EXPECT_TRUE(std::holds_alternative<T>(step.what));
  return std::holds_alternative<T>(step.what) ? std::get<T>(step.what) : T{};
}

TEST(CoreRecord, WhatFollowsAVerdictComesBackAsItWas) {
  namespace response = hang_response;
  constexpr response::CaseId kCase{7};
  rdzv::Hung hung;
  hung.basis = rdzv::Hung::Basis::kAutomatic;
  hung.ranks = {3, 5};
  rdzv::WaitingFor wait;
  wait.missing = {4};
  const std::vector<response::Event> events = {
      response::Found{kCase, hung},
      response::Waits{kCase, wait},
      response::StacksTaken{kCase},
      response::Reported{kCase, {{3}, {5}}},
      response::Confirmed{kCase, true},
      response::EndAnswered{kCase, {3}, {{{5}, "it is not to be"}}},
      response::TimerExpired{kCase},
      response::RoundOver{}};
  EXPECT_EQ(events.size(), std::variant_size_v<response::Event>) << "there is one of each";
  for (const response::Event& event : events) {
    const auto back = of<ResponseInput>(again(ResponseInput{event})).event;
    EXPECT_EQ(back.index(), event.index());
    EXPECT_EQ(in_words(back), in_words(event));
  }
  const auto found = of<ResponseInput>(again(ResponseInput{events[0]})).event;
  EXPECT_FALSE(std::get<response::Found>(found).hung.is_verdict());
  EXPECT_TRUE(of<ResponseBegan>(again(ResponseBegan{true})).ends);
}

TEST(CoreRecord, EveryEventOfAnAgentComesBackAsItWas) {
  const rdzv::WorkerFailure failure = rdzv::testing::example_failure();
  std::vector<NodeEvent> events = {
      StoreResult{Round{1}, 4711, ""},
      StoreResult{Round{1}, 0, "no port"},
      WorkerEnded{Round{2}, 1, std::nullopt},
      WorkerEnded{Round{2}, 1, failure},
      WorkerHung{Round{2}, 1},
      StopSignal{SIGTERM},
      PreemptSignal{SIGUSR1},
      TimerExpired{TimerId{3}},
      StacksTaken{Round{3}},
      RoundClosed{Round{4}},
      LeaderLost{"it died", false},
      LeaderReplaced{},
      LeaderFound{true},
      CannotRun{2, "no"},
      StepTaken{EndStep::kConsole},
      WorkersCanRecover{Round{5}},
      WorkerRegrouped{Round{6}, 2, 7},
      WorkerEnded{Round{2}, 1, failure, Replaceable{8, 9}},
      WorkerCannotRegroup{Round{6}, 2},
      RegroupIsLate{Round{6}, 3},
      WorkerStarted{Round{6}, 2},
      StartIsLate{Round{6}},
      WorkersHeld{Round{6}, 1'000'000'000'007, 12ms, rdzv::HoldSteps::Until::kRoundStop},
      WorkersParked{Round{6}},
      WorkerTold{Round{6}, 2},
      WorkerEnded{Round{2}, 1, std::nullopt, {}, /*has_left=*/true},
      WorkersSeen{Round{6}, {{true, true, true, 40ms}, {}}}};
  for (const auto& frame : rdzv::testing::example_leader_frames()) {
    const auto* message = std::get_if<rdzv::wire::Message<rdzv::ToAgent>>(&frame);
    if (message == nullptr) continue;
    std::visit([&](const auto& each) { events.emplace_back(each); }, message->body);
  }
  std::set<std::size_t> kinds;
  for (const NodeEvent& event : events) {
    const NodeEvent back = of<NodeInput>(again(NodeInput{event})).event;
    EXPECT_EQ(back.index(), event.index());
    EXPECT_EQ(in_words(back), in_words(event));
    kinds.insert(event.index());
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<NodeEvent>) << "there is one of each";
  const auto ended = std::get<WorkerEnded>(of<NodeInput>(again(NodeInput{events[3]})).event);
  EXPECT_EQ(ended.failure, failure);
  EXPECT_FALSE(ended.replaceable);
  const auto replaceable = std::get<WorkerEnded>(of<NodeInput>(again(NodeInput{events[17]})).event);
  ASSERT_TRUE(replaceable.replaceable);
  EXPECT_EQ(replaceable.replaceable->committed, 8);
  EXPECT_EQ(replaceable.replaceable->generation, 9U);
}

TEST(CoreRecord, WhatRanksWereDoingComesBackAsItWas) {
  CallsSeen seen;
  seen.round = Round{3};
  seen.world_size = 2;
  seen.rules = {.patience = 1s, .gap = 2ms, .timeout = 60s, .needs_step = true};
  GroupCalls group{"ddprun", record::id_of("ddprun"), 2, 1, 17};
  group.at = GroupCall{{.operation = record::Operation::kBroadcast, .root = 1}, 17, false, 2s};
  group.since_entry = 2s;
  seen.ranks = {{0, RankState::kFrozen, 3s, 4s, {group}}, {}};
  seen.ranks[1].rank = 1;
  const auto back = of<CallsSeen>(again(seen));
  EXPECT_EQ(back.round, seen.round);
  EXPECT_EQ(back.rules, seen.rules);
  ASSERT_EQ(back.ranks.size(), 2U);
  EXPECT_EQ(back.ranks[0].state, RankState::kFrozen);
  EXPECT_EQ(back.ranks[0].held_for, 3s);
  EXPECT_EQ(back.ranks[0].since_step, 4s);
  EXPECT_EQ(back.ranks[0].groups, seen.ranks[0].groups);
  EXPECT_EQ(in_words(back.ranks[0]),
            "rank 0: frozen, in broadcast (call 17 of ddprun) for 2.000 s");
  EXPECT_EQ(in_words(back.ranks[1]), "rank 1: no record");
}

TEST(CoreRecord, EveryInputOfALeaderComesBackAsItWas) {
  std::vector<rdzv::RoundInput> inputs = {
      {CoreTime(5s), NodeId{}, rdzv::Tick{}},
      {CoreTime(5s), NodeId{7}, rdzv::LinkEvent(rdzv::NodeDisconnected{})},
      {CoreTime(5s), NodeId{7}, rdzv::LinkEvent(rdzv::NodeResumed{})},
      {CoreTime(5s), NodeId{7}, rdzv::LinkEvent(rdzv::NodeSilent{})},
      {CoreTime(5s), NodeId{}, rdzv::LinkEvent(rdzv::NodeTurnedAway{"b", "10.0.0.1", "why", 3})}};
  for (const auto& frame : rdzv::testing::example_agent_frames()) {
    const auto* message = std::get_if<rdzv::wire::Message<rdzv::ToLeader>>(&frame);
    if (message != nullptr) inputs.push_back({CoreTime(1us), NodeId{9}, message->body});
  }
  for (const rdzv::RoundInput& input : inputs) {
    const auto back = of<rdzv::RoundInput>(again(input));
    EXPECT_EQ(back.at, input.at);
    EXPECT_EQ(back.node, input.node);
    EXPECT_EQ(back.what.index(), input.what.index());
    EXPECT_EQ(in_words(back), in_words(input));
  }
}

TEST(CoreRecord, HowACoreWasSetUpComesBackAsItWas) {
  const auto group =
      of<NodeBegan>(again(NodeBegan{{8, 1500ms, 200ms, false, 700ms, 9s, true}})).config;
  EXPECT_EQ(group.local_world_size, 8);
  EXPECT_EQ(group.shutdown_timeout, 1500ms);
  EXPECT_EQ(group.kill_timeout, 200ms);
  EXPECT_FALSE(group.hosts_leader);
  EXPECT_EQ(group.failure_shutdown_timeout, 700ms);
  EXPECT_TRUE(group.kills_orphans);

  rdzv::RoundConfig config;
  config.run_id = "job";
  config.program = "train";
  config.min_nodes = 2;
  config.max_nodes = 5;
  config.restarts = {3, 70ms, 2, 10ms, {1, 137}, {20ms, 30ms}, 40ms, {50ms, 60ms}};
  config.has_exact_ranks = true;
  config.own_node.reset();
  config.join_timeout = 70ms;
  config.last_call_timeout = 80ms;
  config.reconnect_grace = 90ms;
  config.silence_limit = 93ms;
  config.answer_timeout = 95ms;
  config.stop_margin = 99ms;
  config.replace_timeout = 101ms;
  rdzv::Resumption resumption{Round{4},    {1, 2, 3, 4, 500, StepKind::kOptimizer}, true, 2, 100us,
                              CoreTime(7s)};
  const auto began = of<RoundBegan>(again(RoundBegan{config, resumption}));
  EXPECT_EQ(began.config.run_id, "job");
  EXPECT_EQ(began.config.restarts, config.restarts);
  EXPECT_EQ(began.config.own_node, std::nullopt);
  EXPECT_EQ(began.config.join_timeout, 70ms);
  EXPECT_EQ(began.config.last_call_timeout, 80ms);
  EXPECT_EQ(began.config.reconnect_grace, 90ms);
  EXPECT_EQ(began.config.silence_limit, 93ms);
  EXPECT_EQ(began.config.answer_timeout, 95ms);
  EXPECT_EQ(began.config.stop_margin, 99ms);
  EXPECT_EQ(began.config.replace_timeout, 101ms);
  EXPECT_TRUE(began.config.has_exact_ranks);
  ASSERT_TRUE(began.resumption);
  EXPECT_EQ(began.resumption->next, Round{4});
  EXPECT_EQ(began.resumption->history, resumption.history);
  EXPECT_EQ(began.resumption->uptime, resumption.uptime);
  EXPECT_EQ(began.resumption->now, resumption.now);
  EXPECT_FALSE(of<RoundBegan>(again(RoundBegan{})).resumption);
  EXPECT_EQ(of<RoundBegan>(again(RoundBegan{})).config.own_node, NodeId{0});
}

TEST(CoreRecord, WhatIsNoLineOfARecordingIsRefused) {
  const std::string whole =
      record_line({1, NodeInput{WorkerEnded{Round{2}, 1, rdzv::testing::example_failure()}}, 1});
  for (std::size_t size = 0; size + 1 < whole.size(); ++size) {
    ASSERT_FALSE(recorded_step_from(std::string_view(whole).substr(0, size))) << size;
  }
  for (const char* line :
       {"[]", "7", R"({"event":"job_started"})", R"({"unix_us":1,"core":"other","decisions":0})",
        R"({"unix_us":1,"core":"group","message":"!","decisions":0})",
        R"({"unix_us":1,"core":"group","message":"AAAAAAAA","decisions":0})",
        R"({"unix_us":1,"core":"round","at_us":-9223372036854775808,"node":0,"decisions":0})"}) {
    EXPECT_FALSE(recorded_step_from(line)) << line;
  }
}

}  // namespace
}  // namespace ddprun::agent
