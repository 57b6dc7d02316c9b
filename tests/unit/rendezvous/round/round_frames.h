// One frame of every kind and with every message, no field of which has its default value: for the
// tests of the wire, and the first inputs of its fuzzer. Any thread.
#pragma once

#include <vector>

#include "rendezvous/round/round_wire.h"

namespace ddprun::rdzv::testing {

inline WorkerFailure example_failure() {
  WorkerFailure failure;
  failure.rank = 5;
  failure.local_rank = 1;
  failure.node_rank = 2;
  failure.host = "node2";
  failure.pid = 4711;
  failure.status = {.code = 3, .signal = 11, .core_dumped = true};
  failure.when =
      std::chrono::system_clock::time_point(std::chrono::microseconds(1'700'000'000'123'456));
  failure.message = "RuntimeError: größer als erlaubt";
  failure.error_file = "/tmp/e/error.json";
  failure.stderr_tail = {"Traceback", "", "  File \"t.py\", line 3"};
  failure.log_dir = "/var/log/job/attempt_1";
  failure.progress = WorkerProgress{.step = 17,
                                    .total_steps = 100,
                                    .since_step = std::chrono::nanoseconds(123'456'789'012),
                                    .collectives = 1'000'000'000'007,
                                    .phase = WorkerPhase::kCollective,
                                    .since_phase = std::chrono::nanoseconds(42)};
  failure.killed_for_memory = true;
  failure.was_told_to_stop = true;
  failure.is_worth_a_retry = false;
  failure.hang = "rank 5 is stopped by a signal";
  failure.asked_by = "ddpctl replace (root, pid 17)";
  return failure;
}

inline NodeGone example_loss() {
  return {.how = NodeGone::How::kReplaced, .node_rank = 3, .host = "b12"};
}

inline NodeHello example_hello() {
  return {.local_world_size = 8,
          .role = "trainer",
          .address = "10.0.0.7",
          .host = "node7",
          .node_rank = 6,
          .session = 0x1122334455667788,
          .run_id = "job-1",
          .program = "train",
          .user = "1000",
          .min_nodes = 2,
          .max_nodes = 9,
          .max_restarts = 4,
          .shutdown_timeout = std::chrono::seconds(12),
          .last_round = LastRound{.round = Round{12}, .node_count = 5, .restarts = 3}};
}

inline RoundStart example_start() {
  RoundStart start;
  start.round = Round{3};
  start.node_rank = 1;
  start.node_count = 4;
  start.rank_offset = 8;
  start.world_size = 32;
  start.role_rank_offset = 2;
  start.role_world_size = 16;
  start.master_addr = "10.0.0.5";
  start.master_port = 29500;
  start.after_failure = example_failure();
  start.after_failure->stderr_tail.clear();
  start.after_loss = example_loss();
  start.after_arrival = true;
  start.after_request = true;
  start.asked_by = "me";
  start.nodes_gone = 2;
  start.nodes_joined = 5;
  start.restarts = 6;
  start.max_restarts = 7;
  return start;
}

inline JobOutcome example_outcome() {
  JobOutcome outcome;
  outcome.kind = JobOutcome::Kind::kCannotRun;
  outcome.exit_code = 112;
  outcome.cause = example_failure();
  outcome.consequences = {example_failure(), example_failure()};
  outcome.consequences[1].progress.reset();
  outcome.consequences_left_out = 9;
  outcome.lost_node = example_loss();
  outcome.stop_signal = 15;
  outcome.sentence = "too few nodes are left";
  outcome.restarts = 2;
  outcome.restarts_asked_for = 3;
  outcome.requests = {"ddpctl restart (root, pid 18)", "ddpctl replace (root, pid 17)"};
  outcome.done = {0, 7};
  outcome.in_place = 1;
  outcome.last_round = Round{12};
  return outcome;
}

inline LeaderView example_view() {
  LeaderView view;
  view.state = LeaderView::State::kStopping;
  view.round = Round{4};
  view.min_nodes = 2;
  view.max_nodes = 8;
  view.ready = 3;
  view.left = std::chrono::milliseconds(1500);
  view.restarts = 1;
  view.max_restarts = 5;
  view.has_exact_ranks = true;
  view.is_finishing = true;
  view.left_out = {{"b3", "c", "Ann"}};
  view.members = {{NodeId{0}, "node1", "10.0.0.1", 8, 2, LeaderView::Place::kDisconnected},
                  {NodeId{9}, "node2", "10.0.0.2", 4, {}, LeaderView::Place::kSpare}};
  view.members_left_out = 7;
  return view;
}

inline std::vector<wire::AgentFrame> example_agent_frames() {
  std::vector<wire::AgentFrame> frames = {
      wire::Connect{77, 78, "0123456789abcdef0123456789abcdef", example_hello()},
      wire::Connect{77, 78, "", std::nullopt},
      wire::Heartbeat{79},
  };
  WorkerFailure bare;
  for (const ToLeader& message : std::vector<ToLeader>{
           example_hello(),
           StoreOpened{Round{1}, 40123},
           StoreNotOpened{Round{2}, "every port is taken"},
           WorkerFailed{Round{3}, example_failure()},
           SomeWorkersDone{Round{4}},
           WorkersDone{Round{5}, true},
           RoundStopped{Round{6}, {example_failure(), bare, example_failure()}, {3, 4}},
           NodeLeaving{10, true},
           NodeStuck{"worker 3 does not end"},
           Goodbye{},
           RestartAsked{Round{9}, "ddpctl restart (root, pid 18)"},
           StopAsked{2, "ddpctl stop (root, pid 19)"},
           WorkersRecover{Round{10}},
           WorkerReplaceable{Round{11}, example_failure(), 1'000'000'000'009, 12, false},
           Regrouped{Round{13}, 14},
           CannotRegroup{Round{15}, 16},
           LeaveWanted{Round{17}},
           StepsHeld{Round{18}, 1'000'000'000'019, HoldSteps::Until::kRoundStop},
           StopWanted{Round{19}},
           DrainAsked{
               {"b3", "10.0.0.3"}, DrainAsked::What::kUndrain, "ddpctl undrain (root, pid 21)"},
           NodeUnfit{"a GPU is gone"},
           NodeFit{},
       }) {
    frames.emplace_back(wire::Message<ToLeader>{80, 81, message});
  }
  frames.emplace_back(PeerRequest{82, std::nullopt, R"({"ask":"status"})"});
  frames.emplace_back(PeerRequest{83, NodeId{4}, "to one"});
  frames.emplace_back(PeerReply{84, NodeId{5}, R"({"host":"node7"})"});
  return frames;
}

inline std::vector<wire::LeaderFrame> example_leader_frames() {
  std::vector<wire::LeaderFrame> frames = {
      wire::Welcome{90, 0x8877665544332211, "fedcba9876543210fedcba9876543210"},
      wire::Rejected{"the token is another one"},
      wire::Gone{0x8877665544332211},
      wire::Heartbeat{91},
  };
  for (const ToAgent& message : std::vector<ToAgent>{
           Refused{"give every node the same --nnodes"},
           Warning{"the rank was taken"},
           WaitForNodes{3, 4, 8, std::chrono::seconds(40), "node rank 2 is missing"},
           WaitAsSpare{WaitAsSpare::Why::kJobIsFinishing},
           OpenStore{Round{7}},
           example_start(),
           RoundStop{Round{8}, RoundStop::Why::kFailure, example_loss(), 1'000'000'000'023},
           DeclaredLost{},
           JobEnd{example_outcome()},
           GroupBroken{Round{8}, 11},
           ReplaceWorker{Round{15}, 16, 17, example_failure(), 18, 19},
           HoldSteps{Round{20}, HoldSteps::Until::kRoundStop},
           LeaveAt{Round{21}, 1'000'000'000'022},
       }) {
    frames.emplace_back(wire::Message<ToAgent>{92, 93, message});
  }
  frames.emplace_back(PeerRequest{94, NodeId{6}, "of one"});
  frames.emplace_back(PeerReply{95, NodeId{7}, ""});
  frames.emplace_back(PeerAck{96, NodeId{9}, example_view()});
  return frames;
}

}  // namespace ddprun::rdzv::testing
