#include "rendezvous/round/round_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "rendezvous/common/limits.h"
#include "tests/unit/rendezvous/round/round_frames.h"

namespace ddprun::rdzv::wire {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using namespace ddprun::rdzv::testing;

constexpr std::size_t kLengthBytes = 4;
// In a payload with a message: kind, number, received, and then the message's number and its body.
constexpr std::size_t kMessageNumberAt = 1 + 8 + 8;
constexpr std::size_t kBodyAt = kMessageNumberAt + 1;

std::string payload_of(const AgentFrame& frame) { return encode(frame).substr(kLengthBytes); }
std::string payload_of(const LeaderFrame& frame) { return encode(frame).substr(kLengthBytes); }
std::string payload_of(ToLeader message) {
  return payload_of(AgentFrame(Message<ToLeader>{1, 2, std::move(message)}));
}
std::string payload_of(ToAgent message) {
  return payload_of(LeaderFrame(Message<ToAgent>{1, 2, std::move(message)}));
}

auto decode(const AgentFrame& /*of_the_kind*/, std::string_view payload) {
  return decode_agent_frame(payload);
}
auto decode(const LeaderFrame& /*of_the_kind*/, std::string_view payload) {
  return decode_leader_frame(payload);
}

// With `check(frame)` for each example.
template <typename Check>
void for_each_example(Check check) {
  for (const AgentFrame& frame : example_agent_frames()) check(frame);
  for (const LeaderFrame& frame : example_leader_frames()) check(frame);
}

template <typename Body, typename Frame>
Body body_after_the_wire(const Frame& frame) {
  const std::string bytes = encode(frame);
  EXPECT_LE(bytes.size(), limits::kMaxRoundFrameBytes);
  const auto arrived = decode(frame, std::string_view(bytes).substr(kLengthBytes));
  EXPECT_TRUE(arrived) << arrived.error().to_string();
  if (!arrived) return {};
  if constexpr (std::is_same_v<Frame, AgentFrame>) {
    return std::get<Body>(std::get<Message<ToLeader>>(*arrived).body);
  } else {
    return std::get<Body>(std::get<Message<ToAgent>>(*arrived).body);
  }
}
template <typename Body>
Body at_the_leader(Body body) {
  return body_after_the_wire<Body>(AgentFrame(Message<ToLeader>{1, 2, std::move(body)}));
}
template <typename Body>
Body at_the_agent(Body body) {
  return body_after_the_wire<Body>(LeaderFrame(Message<ToAgent>{1, 2, std::move(body)}));
}

std::string hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

std::string without_spaces(std::string text) {
  std::erase(text, ' ');
  return text;
}

template <typename Frame>
void expect_refused(const Result<Frame>& frame, std::string_view why) {
  ASSERT_FALSE(frame);
  EXPECT_EQ(frame.error().code, ErrorCode::kProtocol);
  EXPECT_THAT(frame.error().message, HasSubstr(std::string(why)));
}

// ---- there and back

TEST(RoundWire, ExamplesHoldEveryKindOfFrameAndMessage) {
  std::set<std::size_t> agent_frames, leader_frames, to_leader, to_agent;
  for (const AgentFrame& frame : example_agent_frames()) {
    agent_frames.insert(frame.index());
    if (const auto* message = std::get_if<Message<ToLeader>>(&frame))
      to_leader.insert(message->body.index());
  }
  for (const LeaderFrame& frame : example_leader_frames()) {
    leader_frames.insert(frame.index());
    if (const auto* message = std::get_if<Message<ToAgent>>(&frame))
      to_agent.insert(message->body.index());
  }
  EXPECT_EQ(agent_frames.size(), std::variant_size_v<AgentFrame>);
  EXPECT_EQ(leader_frames.size(), std::variant_size_v<LeaderFrame>);
  EXPECT_EQ(to_leader.size(), std::variant_size_v<ToLeader>);
  EXPECT_EQ(to_agent.size(), std::variant_size_v<ToAgent>);
}

TEST(RoundWire, EveryFrameComesBackAsItWas) {
  for_each_example([](const auto& frame) {
    const std::string bytes = encode(frame);
    const auto arrived = decode(frame, std::string_view(bytes).substr(kLengthBytes));
    ASSERT_TRUE(arrived) << arrived.error().to_string();
    EXPECT_TRUE(*arrived == frame) << hex(bytes);
  });
}

TEST(RoundWire, EveryValueOfAnEnumerationComesBackAsItWas) {
  using enum NodeGone::How;
  for (const auto how :
       {kDisconnected, kSilent, kReplaced, kLeft, kStuck, kUnresponsive, kLeftOut}) {
    RoundStart start;
    start.after_loss = NodeGone{how, 1, "a"};
    EXPECT_EQ(at_the_agent(start), start);
  }
  using enum JobOutcome::Kind;
  for (const auto kind : {kSucceeded, kFailed, kStopped, kCannotRun}) {
    JobEnd end;
    end.outcome.kind = kind;
    EXPECT_EQ(at_the_agent(end), end);
  }
  for (const auto why : {WaitAsSpare::Why::kNoRoom, WaitAsSpare::Why::kJobIsFinishing})
    EXPECT_EQ(at_the_agent(WaitAsSpare{why}), WaitAsSpare{why});
  for (std::uint32_t phase = 0; phase <= 5; ++phase) {
    WorkerFailed failed;
    failed.failure.progress.emplace().phase = WorkerPhase{phase};
    EXPECT_EQ(at_the_leader(failed), failed);
  }
}

TEST(RoundWire, APhaseThatAWorkerMadeUpIsUnknown) {
  WorkerFailed failed;
  failed.failure.progress.emplace().phase = WorkerPhase{1234};
  EXPECT_EQ(at_the_leader(failed).failure.progress->phase, WorkerPhase::kUnknown);
}

TEST(RoundWire, TimesAreMicrosecondsOfTheEpoch) {
  WorkerFailed failed;
  failed.failure.when = std::chrono::system_clock::time_point(std::chrono::nanoseconds(1'999));
  EXPECT_EQ(at_the_leader(failed).failure.when.time_since_epoch(), std::chrono::microseconds(1));
  failed.failure.when = std::chrono::system_clock::time_point(std::chrono::nanoseconds(-1));
  EXPECT_EQ(at_the_leader(failed).failure.when.time_since_epoch(), std::chrono::microseconds(-1));
}

TEST(RoundWire, ALongWaitIsCutToWhatFits) {
  const WaitForNodes forever{1, 2, 3, std::chrono::seconds::max()};
  EXPECT_EQ(at_the_agent(forever).left, std::chrono::seconds(0x7fffffff));
}

// ---- the layout, which cannot change without another version

TEST(RoundWire, OpeningIsThisInBytes) {
  Opening opening;
  opening.wants = Wants::kToken;
  for (std::size_t i = 0; i < opening.nonce.size(); ++i) opening.nonce[i] = static_cast<char>(i);
  const std::string bytes = encode(opening);
  EXPECT_EQ(hex(bytes),
            "44445052"  // DDPR
            "0a00"      // version
            "0100"      // flags
            "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");
  EXPECT_EQ(decode_opening(bytes), opening);
  opening.wants = Wants::kMunge;
  EXPECT_EQ(hex(encode(opening)).substr(12, 4), "0200");
  EXPECT_EQ(decode_opening(encode(opening)), opening);
}

TEST(RoundWire, ConnectIsThisInBytes) {
  const Connect connect{0x0102030405060708, 9, std::string(32, 'p'), example_hello()};
  EXPECT_EQ(hex(encode(AgentFrame(connect))),
            without_spaces(
                "a6000000 01"       // length, kind
                "0807060504030201"  // session
                "0900000000000000"  // received
                "20000000"          // proof
                "70707070707070707070707070707070"
                "70707070707070707070707070707070"
                "01"                          // there is a hello
                "08000000"                    // local_world_size
                "07000000 747261696e6572"     // role
                "08000000 31302e302e302e37"   // address
                "05000000 6e6f646537"         // host
                "01 06000000"                 // node_rank
                "8877665544332211"            // session
                "05000000 6a6f622d31"         // run_id
                "05000000 747261696e"         // program
                "04000000 31303030"           // user
                "02000000 09000000"           // min_nodes, max_nodes
                "04000000 00000000 00000000"  // max_restarts, no_progress_restarts, restart_window
                "0c000000"                    // shutdown_timeout
                "01 0c000000"                 // last_round: round,
                "05000000 03000000"));        // node_count, restarts
}

TEST(RoundWire, WelcomeAndGoneAreThisInBytes) {
  EXPECT_EQ(hex(encode(LeaderFrame(Welcome{9, 0x0102030405060708, "pp"}))),
            without_spaces("17000000 02"       // length, kind
                           "0900000000000000"  // received
                           "0807060504030201"  // leader_id
                           "02000000 7070"));  // proof
  EXPECT_EQ(hex(encode(LeaderFrame(Gone{0x0102030405060708}))),
            without_spaces("09000000 04"          // length, kind
                           "0807060504030201"));  // leader_id
}

TEST(RoundWire, RoundStartIsThisInBytes) {
  EXPECT_EQ(hex(encode(LeaderFrame(Message<ToAgent>{2, 1, example_start()}))),
            without_spaces("5a010000 06"                 // length, kind
                           "0200000000000000"            // number
                           "0100000000000000"            // received
                           "06"                          // it is a RoundStart
                           "03000000"                    // round
                           "01000000 04000000"           // node_rank, node_count
                           "08000000 20000000"           // rank_offset, world_size
                           "02000000 10000000"           // the same of the role
                           "08000000 31302e302e302e35"   // master_addr
                           "3c73"                        // master_port
                           "01"                          // there is an after_failure
                           "05000000 01000000 02000000"  // rank, local_rank, node_rank
                           "05000000 6e6f646532"         // host
                           "67120000"                    // pid
                           "03000000 0b000000 01"        // code, signal, core_dumped
                           "40222018240a0600"            // when
                           "22000000"                    // message
                           "52756e74696d654572726f723a20"
                           "6772c3b6c39f657220616c732065726c61756274"
                           "11000000"  // error_file
                           "2f746d702f652f6572726f722e6a736f6e"
                           "00000000"  // stderr_tail
                           "16000000"  // log_dir
                           "2f7661722f6c6f672f6a6f622f617474656d70745f31"
                           "01"                   // there is a progress
                           "01 1100000000000000"  // step
                           "6400000000000000"     // total_steps
                           "141a99be1c000000"     // since_step
                           "0710a5d4e8000000"     // collectives
                           "00"                   // step_kind
                           "03 2a00000000000000"  // phase, since_phase
                           "01 01 00"             // killed_for_memory, …
                           "1d000000"             // hang
                           "72616e6b20352069732073746f707065642062792061207369676e616c"
                           "1d000000"  // asked_by
                           "64647063746c207265706c6163652028726f6f742c20706964203137"
                           "29"
                           "01"                           // there is an after_loss
                           "02 03000000 03000000 623132"  // how, node_rank, host
                           "00000000"                     // why
                           "01 01"                        // after_arrival, after_request
                           "02000000 6d65"                // asked_by
                           "02000000 05000000"            // nodes_gone, nodes_joined
                           "06000000 07000000"));         // restarts, max_restarts
}

TEST(RoundWire, WaitForNodesAndRoundStopAreThisInBytes) {
  EXPECT_EQ(hex(payload_of(ToAgent(WaitForNodes{1, 2, 3, std::chrono::seconds(4), "ab"}))
                    .substr(kMessageNumberAt)),
            without_spaces("03 01000000 02000000 03000000 04000000 02000000 6162"));
  const NodeGone gone{NodeGone::How::kLeft, 5, "c"};
  EXPECT_EQ(hex(payload_of(ToAgent(RoundStop{Round{6}, RoundStop::Why::kFailure, gone}))
                    .substr(kMessageNumberAt)),
            without_spaces("07 06000000 01 01 03 05000000 01000000 63 00000000 00"));
  EXPECT_EQ(hex(payload_of(ToAgent(RoundStop{Round{6}, RoundStop::Why::kPlanned, {}, 9}))
                    .substr(kMessageNumberAt)),
            without_spaces("07 06000000 00 00 01 0900000000000000"));
}

TEST(RoundWire, MessagesOfAReplacementAreThisInBytes) {
  EXPECT_EQ(hex(encode(AgentFrame(Message<ToLeader>{2, 1, WorkersRecover{Round{3}}}))),
            without_spaces("16000000 06 0200000000000000 0100000000000000"
                           "0d 03000000"));
  EXPECT_EQ(hex(encode(AgentFrame(Message<ToLeader>{2, 1, Regrouped{Round{3}, 4}}))),
            without_spaces("1a000000 06 0200000000000000 0100000000000000"
                           "0f 03000000 04000000"));  // round, generation
  const std::string failure =
      hex(payload_of(ToLeader(WorkerFailed{Round{3}, example_failure()})).substr(kBodyAt + 4));
  EXPECT_EQ(hex(payload_of(ToLeader(WorkerReplaceable{Round{3}, example_failure(), 5, 6}))
                    .substr(kMessageNumberAt)),
            without_spaces("0e 03000000" + failure + "0500000000000000 06000000 01"));
  EXPECT_EQ(hex(payload_of(ToAgent(ReplaceWorker{Round{3}, 4, 5, example_failure(), 6, 7}))
                    .substr(kMessageNumberAt)),
            without_spaces("0b 03000000 04000000 05000000" + failure + "06000000 07000000"));
}

TEST(RoundWire, NodeLeavingIsThisInBytesAndNeedsNoSignalIfItIsAPreemption) {
  const auto bytes = [](const NodeLeaving& leaving) {
    return hex(payload_of(ToLeader(leaving)).substr(kMessageNumberAt));
  };
  EXPECT_EQ(bytes({15, false}), without_spaces("08 00 0f000000"));
  EXPECT_EQ(bytes({10, true}), without_spaces("08 01 0a000000"));
  EXPECT_EQ(bytes({0, true}), without_spaces("08 01 00000000"));
  EXPECT_TRUE(decode_agent_frame(payload_of(ToLeader(NodeLeaving{0, true}))));
}

TEST(RoundWire, MessagesAboutNodesThatAreLeftOutAreThisInBytes) {
  const DrainAsked asked{{"b", "c"}, DrainAsked::What::kUndrain, "ab"};
  EXPECT_EQ(hex(payload_of(ToLeader(asked)).substr(kMessageNumberAt)),
            without_spaces("14 01000000 62 01000000 63 02 02000000 6162"));
  EXPECT_EQ(hex(payload_of(ToLeader(NodeUnfit{{"ab"}})).substr(kMessageNumberAt)),
            without_spaces("15 02000000 6162"));
  EXPECT_EQ(hex(payload_of(ToLeader(NodeFit{})).substr(kMessageNumberAt)), "16");
  EXPECT_EQ(hex(payload_of(ToAgent(WaitAsSpare{WaitAsSpare::Why::kLeftOut, "ab"}))
                    .substr(kMessageNumberAt)),
            without_spaces("04 02 02000000 6162"));
}

TEST(RoundWire, QuestionsAndAnswersAreThisInBytes) {
  EXPECT_EQ(hex(encode(AgentFrame(PeerRequest{0x0102030405060708, NodeId{9}, "hi"}))),
            without_spaces("14000000 07"       // length, kind
                           "0807060504030201"  // id
                           "01 09000000"       // peer
                           "02000000 6869"));  // text
  EXPECT_EQ(hex(encode(LeaderFrame(PeerReply{1, NodeId{2}, "x"}))),
            without_spaces("12000000 08 0100000000000000 02000000 01000000 78"));
  EXPECT_EQ(hex(encode(LeaderFrame(PeerAck{3, NodeId{9}, example_view()}))),
            without_spaces("93000000 09"                 // length, kind
                           "0300000000000000 09000000"   // id, you
                           "04 04000000"                 // state, round
                           "02000000 08000000 03000000"  // min_nodes, max_nodes, ready
                           "01 002f685900000000"         // left
                           "01000000 05000000 01"        // restarts, max_restarts, has_exact_ranks
                           "01"                          // is_finishing
                           "01000000"                    // left_out
                           "02000000 6233 01000000 63"   // host, address
                           "03000000 416e6e"             // why
                           "02000000"                    // members
                           "00000000"                    // id
                           "05000000 6e6f646531"         // host
                           "08000000 31302e302e302e31"   // address
                           "08000000 01 02000000 03"     // workers, node_rank, place
                           "00"                          // leads
                           "09000000"
                           "05000000 6e6f646532"
                           "08000000 31302e302e302e32"
                           "04000000 00 02 00"
                           "07000000"));  // members_left_out
}

TEST(RoundWire, NumbersOfMessagesStay) {
  std::string kinds, numbers;
  for_each_example([&](const auto& frame) {
    const std::string payload = payload_of(frame);
    kinds += payload[0];
    if (payload[0] == 6) numbers += payload[kMessageNumberAt];
  });
  EXPECT_EQ(
      hex(kinds),
      without_spaces("010105 06060606060606060606060606060606060606060606 070708"  // an agent's
                     "02030405 06060606060606060606060606 070809"));               // the leader's
  EXPECT_EQ(
      hex(numbers),
      without_spaces("0102030405060708090a0b0c0d0e0f10111213141516 0102030405060708090a0b0c0d"));
}

TEST(RoundWire, AnotherVersionAndUnknownFlagsAreReadAllTheSame) {
  std::string bytes = encode(Opening{});
  bytes[4] = '\x07';
  bytes[6] = '\xfc';
  const auto opening = decode_opening(bytes);
  ASSERT_TRUE(opening);
  EXPECT_EQ(opening->version, 7);
  EXPECT_EQ(opening->wants, Wants::kNothing);
}

TEST(RoundWire, WhatIsNoOpeningIsRefused) {
  const std::string bytes = encode(Opening{});
  ASSERT_EQ(bytes.size(), kOpeningBytes);
  expect_refused(decode_opening(""), "does not speak");
  expect_refused(decode_opening(bytes.substr(1)), "does not speak");
  expect_refused(decode_opening(bytes + "x"), "does not speak");
  const std::string http = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n";
  expect_refused(decode_opening(http.substr(0, kOpeningBytes)), "does not speak");
}

// ---- what must not be

TEST(RoundWire, NoBeginningOfAFrameIsAFrame) {
  for_each_example([](const auto& frame) {
    const std::string payload = payload_of(frame);
    for (std::size_t size = 0; size < payload.size(); ++size) {
      // Memory of its own, so that a sanitizer sees a read beyond it.
      const std::vector<char> part(payload.begin(),
                                   payload.begin() + static_cast<std::ptrdiff_t>(size));
      expect_refused(decode(frame, {part.data(), part.size()}), "");
    }
  });
}

TEST(RoundWire, NothingMayFollowAFrame) {
  for_each_example([](const auto& frame) {
    expect_refused(decode(frame, payload_of(frame) + '\0'), "extra bytes at its end");
  });
}

TEST(RoundWire, UnknownKindsAndMessagesAreRefused) {
  for (const int kind : {0, 10, 255}) {
    std::string payload = payload_of(AgentFrame(Heartbeat{}));
    payload[0] = static_cast<char>(kind);
    expect_refused(decode_agent_frame(payload), "kind is unknown");
    expect_refused(decode_leader_frame(payload), "kind is unknown");
  }
  for (const int number : {0, 23, 255}) {
    std::string payload = payload_of(ToLeader(Goodbye{}));
    payload[kMessageNumberAt] = static_cast<char>(number);
    expect_refused(decode_agent_frame(payload), "kind is unknown");
  }
  for (const int number : {0, 14, 255}) {
    std::string payload = payload_of(ToAgent(DeclaredLost{}));
    payload[kMessageNumberAt] = static_cast<char>(number);
    expect_refused(decode_leader_frame(payload), "kind is unknown");
  }
}

TEST(RoundWire, EachSideSaysOnlyWhatIsItsOwn) {
  expect_refused(decode_agent_frame(payload_of(LeaderFrame(Welcome{}))), "kind is unknown");
  expect_refused(decode_agent_frame(payload_of(LeaderFrame(Gone{}))), "kind is unknown");
  expect_refused(decode_leader_frame(payload_of(AgentFrame(Connect{}))), "kind is unknown");
  expect_refused(decode_agent_frame(payload_of(LeaderFrame(PeerAck{}))), "kind is unknown");
}

TEST(RoundWire, ValuesThatAreNoneAreRefused) {
  std::string payload = payload_of(ToAgent(WaitAsSpare{}));
  payload[kBodyAt] = 3;
  expect_refused(decode_leader_frame(payload), "unknown value");
  payload = payload_of(ToLeader(NodeLeaving{15, true}));
  payload[payload.size() - sizeof(std::int32_t) - 1] = 2;
  expect_refused(decode_agent_frame(payload), "neither 0 nor 1");
  payload = payload_of(AgentFrame(Connect{}));
  payload.back() = 2;  // whether there is a hello
  expect_refused(decode_agent_frame(payload), "neither 0 nor 1");
}

TEST(RoundWire, NumbersThatACoreCouldNotBearAreRefused) {
  const auto expect_refused_by_leader = [](ToLeader message) {
    expect_refused(decode_agent_frame(payload_of(std::move(message))), "out of range");
  };
  const auto expect_refused_by_agent = [](ToAgent message) {
    expect_refused(decode_leader_frame(payload_of(std::move(message))), "out of range");
  };
  for (const int workers : {-1, 0, limits::kMaxWorkersOfNode + 1}) {
    NodeHello hello = example_hello();
    hello.local_world_size = workers;
    expect_refused_by_leader(hello);
  }
  for (const auto& [nodes, restarts] : {std::pair{0, 0}, {(1 << 30) + 1, 0}, {1, -1}}) {
    NodeHello hello = example_hello();
    hello.last_round = LastRound{Round{1}, nodes, restarts};
    expect_refused_by_leader(hello);
  }
  for (const int signal : {-1, 0, 65}) {
    expect_refused_by_leader(NodeLeaving{signal, false});
    expect_refused_by_leader(StopAsked{signal});
  }
  for (const int signal : {-1, 65}) expect_refused_by_leader(NodeLeaving{signal, true});
  for (const int signal : {-1, 65}) {
    WorkerFailed failed;
    failed.failure.status.signal = signal;
    expect_refused_by_leader(failed);
    JobEnd end;
    end.outcome.stop_signal = signal;
    expect_refused_by_agent(end);
  }
  for (const int code : {-1, 256}) {
    WorkerFailed failed;
    failed.failure.status.code = code;
    expect_refused_by_leader(failed);
    JobEnd end;
    end.outcome.exit_code = code;
    expect_refused_by_agent(end);
  }
  for (const auto member :
       {&RoundStart::node_rank, &RoundStart::node_count, &RoundStart::rank_offset,
        &RoundStart::world_size, &RoundStart::role_rank_offset, &RoundStart::role_world_size}) {
    for (const int number : {-1, 0x40000001}) {
      RoundStart start;
      start.*member = number;
      expect_refused_by_agent(start);
    }
  }

  constexpr int kLeast = std::numeric_limits<int>::min();
  for (const auto member : {&RoundStart::nodes_gone, &RoundStart::nodes_joined,
                            &RoundStart::restarts, &RoundStart::max_restarts}) {
    for (const int number : {-1, kLeast}) {
      RoundStart start;
      start.*member = number;
      expect_refused_by_agent(start);
    }
  }
  for (const auto member :
       {&ReplaceWorker::rank, &ReplaceWorker::restarts, &ReplaceWorker::max_restarts}) {
    for (const int number : {-1, kLeast}) {
      ReplaceWorker order;
      order.*member = number;
      expect_refused_by_agent(order);
    }
  }
  for (const auto member : {&JobOutcome::consequences_left_out, &JobOutcome::restarts,
                            &JobOutcome::restarts_asked_for, &JobOutcome::in_place}) {
    for (const int number : {-1, kLeast}) {
      JobEnd end;
      end.outcome.*member = number;
      expect_refused_by_agent(end);
    }
  }
  for (const auto member : {&WorkerFailure::rank, &WorkerFailure::local_rank,
                            &WorkerFailure::node_rank, &WorkerFailure::pid}) {
    WorkerFailed failed;
    failed.failure.*member = kLeast;
    expect_refused_by_leader(failed);
  }
  for (const auto member :
       {&WaitForNodes::present, &WaitForNodes::min_nodes, &WaitForNodes::max_nodes}) {
    WaitForNodes wait;
    wait.*member = kLeast;
    expect_refused_by_agent(wait);
  }
  for (const auto member :
       {&NodeHello::min_nodes, &NodeHello::max_nodes, &NodeHello::max_restarts}) {
    NodeHello hello = example_hello();
    hello.*member = kLeast;
    expect_refused_by_leader(hello);
  }
  for (const auto member :
       {&LeaderView::min_nodes, &LeaderView::max_nodes, &LeaderView::ready, &LeaderView::restarts,
        &LeaderView::max_restarts, &LeaderView::members_left_out}) {
    LeaderView view;
    view.*member = kLeast;
    expect_refused(decode_leader_frame(payload_of(LeaderFrame(PeerAck{1, NodeId{2}, view}))),
                   "out of range");
  }
  JobEnd end;
  end.outcome.lost_node = NodeGone{NodeGone::How::kLeft, kLeast, "a"};
  expect_refused_by_agent(end);

  std::string payload = payload_of(ToAgent(WaitForNodes{}));
  payload[payload.size() - 5] = '\x80';  // the last byte of `left`, before the length of the remark
  expect_refused(decode_leader_frame(payload), "out of range");
}

TEST(RoundWire, ATimeThatTheClockCannotShowIsRefused) {
  WorkerFailed failed;
  const std::string with_default = payload_of(ToLeader(failed));
  failed.failure.when += std::chrono::microseconds(1);
  std::string payload = payload_of(ToLeader(failed));
  const auto at = std::mismatch(payload.begin(), payload.end(), with_default.begin()).first;
  at[7] = '\x7f';
  expect_refused(decode_agent_frame(payload), "a time is out of range");
  at[7] = '\x80';
  expect_refused(decode_agent_frame(payload), "a time is out of range");
}

TEST(RoundWire, ACountIsNotBelieved) {
  std::string payload = payload_of(ToLeader(RoundStopped{Round{1}, {}}));
  std::fill(payload.end() - 4, payload.end(), '\xff');
  expect_refused(decode_agent_frame(payload), "ends too early");
  // Nor one that the bytes behind it could just be enough for.
  payload.replace(payload.size() - 4, 4, {'\x00', '\x04', '\x00', '\x00'});
  payload.append(1024, '\0');
  expect_refused(decode_agent_frame(payload), "ends too early");
}

// ---- limits

TEST(RoundWire, NamesAndHostsAreRefusedBeyondTheirLimits) {
  const std::string longest(limits::kMaxNameBytes, 'n');
  const std::string longest_host(limits::kMaxHostBytes, 'h');
  using Name = std::string NodeHello::*;
  NodeHello hello = example_hello();
  const auto expect_limit = [&](Name name, const std::string& most, std::string_view why) {
    NodeHello other = example_hello();
    other.*name = most + "x";
    const Connect connect{1, 0, "", other};
    expect_refused(decode_agent_frame(payload_of(AgentFrame(connect))), why);
    hello.*name = most;
  };
  for (const Name name :
       {&NodeHello::role, &NodeHello::run_id, &NodeHello::program, &NodeHello::user}) {
    expect_limit(name, longest, "a name is too long");
  }
  for (const Name host : {&NodeHello::address, &NodeHello::host}) {
    expect_limit(host, longest_host, "a host is too long");
  }
  const AgentFrame largest = Connect{1, 0, std::string(32, 'p'), hello};
  EXPECT_LE(encode(largest).size(), limits::kMaxConnectBytes);
  EXPECT_EQ(decode_agent_frame(payload_of(largest)), largest);

  const std::string too_long = longest_host + "h";
  WorkerFailed failed;
  failed.failure.host = too_long;
  expect_refused(decode_agent_frame(payload_of(ToLeader(failed))), "a host is too long");
  RoundStart start;
  start.master_addr = too_long;
  expect_refused(decode_leader_frame(payload_of(ToAgent(start))), "a host is too long");
  start = {};
  start.after_loss = NodeGone{NodeGone::How::kLeft, 0, too_long};
  expect_refused(decode_leader_frame(payload_of(ToAgent(start))), "a host is too long");
}

TEST(RoundWire, AProofHasNoMoreThan32BytesAndACredentialNoMoreThan1024) {
  Connect connect{1, 0, std::string(1024, 'p'), {}};
  EXPECT_TRUE(decode_agent_frame(payload_of(AgentFrame(connect))));
  connect.proof += 'p';
  expect_refused(decode_agent_frame(payload_of(AgentFrame(connect))), "too long");
  const Welcome welcome{1, 2, std::string(33, 'p')};
  expect_refused(decode_leader_frame(payload_of(LeaderFrame(welcome))), "too long");
}

TEST(RoundWire, LongTextsAreCutAndSaySo) {
  WorkerFailed failed{Round{1}, example_failure()};
  failed.failure.message = std::string(limits::kMaxTextBytes, 'm');
  EXPECT_EQ(at_the_leader(failed), failed);
  failed.failure.message = std::string(5'000'000, 'm');
  const std::string message = at_the_leader(failed).failure.message;
  EXPECT_EQ(message.size(), limits::kMaxTextBytes);
  EXPECT_THAT(message, EndsWith("m…"));

  failed.failure.message = "short";
  failed.failure.stderr_tail = {std::string(5'000, 'l'), std::string(limits::kMaxLineBytes, 'k')};
  const auto tail = at_the_leader(failed).failure.stderr_tail;
  ASSERT_EQ(tail.size(), 2U);
  EXPECT_EQ(tail[0].size(), limits::kMaxLineBytes);
  EXPECT_THAT(tail[0], EndsWith("l…"));
  EXPECT_EQ(tail[1], failed.failure.stderr_tail[1]);

  const Refused refused = at_the_agent(Refused{std::string(1'000'000, 's')});
  EXPECT_THAT(refused.sentence, EndsWith("s…"));
}

TEST(RoundWire, ATextIsCutBetweenCharacters) {
  std::string characters;
  while (characters.size() <= limits::kMaxTextBytes) characters += "\U0001F600";
  for (std::size_t shift = 0; shift < 4; ++shift) {
    const auto cut = at_the_agent(Refused{std::string(shift, 'x') + characters}).sentence;
    EXPECT_LE(cut.size(), limits::kMaxTextBytes);
    EXPECT_THAT(cut, EndsWith("\U0001F600…"));
    EXPECT_EQ((cut.size() - shift - std::string("…").size()) % 4, 0U) << shift;
  }
  // Where it is no UTF-8, all the same.
  const auto cut = at_the_agent(Refused{std::string(100'000, '\x80')}).sentence;
  EXPECT_THAT(cut, EndsWith("\x80…"));
  EXPECT_GT(cut.size(), limits::kMaxTextBytes - 8);
}

TEST(RoundWire, OfManyLinesTheLastAreKept) {
  WorkerFailed failed;
  for (int i = 0; i < 30'000; ++i) failed.failure.stderr_tail.push_back(std::to_string(i));
  const auto tail = at_the_leader(failed).failure.stderr_tail;
  ASSERT_GT(tail.size(), 7'000U);
  EXPECT_EQ(tail.back(), "29999");
  EXPECT_EQ(tail.front(), std::to_string(30'000 - tail.size()));

  failed.failure.stderr_tail.assign(30'000, "");
  EXPECT_EQ(at_the_leader(failed).failure.stderr_tail.size(), limits::kMaxLinesBytes / 4);
}

WorkerFailure huge_failure() {
  WorkerFailure failure = example_failure();
  failure.message = std::string(200'000, 'm');
  failure.error_file = std::string(10'000, 'e');
  failure.log_dir = std::string(10'000, 'd');
  failure.stderr_tail.assign(1'000, std::string(10'000, 'l'));
  return failure;
}

TEST(RoundWire, AnyFailureFits) {
  EXPECT_THAT(at_the_leader(WorkerFailed{Round{1}, huge_failure()}).failure.message,
              StartsWith("mmm"));
  RoundStart start = example_start();
  start.after_failure = huge_failure();
  EXPECT_THAT(at_the_agent(start).after_failure->message, StartsWith("mmm"));
}

TEST(RoundWire, LaterFailuresLoseTheirTextsFirst) {
  const auto arrived =
      at_the_leader(RoundStopped{Round{1}, std::vector<WorkerFailure>(50, huge_failure())});
  ASSERT_EQ(arrived.failures.size(), 50U);
  const auto has_texts = [](const WorkerFailure& failure) {
    EXPECT_EQ(failure.message.empty(), failure.stderr_tail.empty());
    EXPECT_EQ(failure.message.empty(), failure.error_file.empty());
    return !failure.message.empty();
  };
  const auto first_without =
      std::find_if_not(arrived.failures.begin(), arrived.failures.end(), has_texts);
  EXPECT_GE(first_without - arrived.failures.begin(), 5);
  EXPECT_TRUE(std::none_of(first_without, arrived.failures.end(), has_texts));
  EXPECT_EQ(arrived.failures.back().host, "node2");
  EXPECT_EQ(arrived.failures.back().rank, 5);
}

TEST(RoundWire, FailuresThatDoNotFitAreLeftOutAndCounted) {
  JobEnd end{example_outcome()};
  end.outcome.consequences.assign(20'000, example_failure());
  for (int i = 0; i < 20'000; ++i) end.outcome.consequences[static_cast<std::size_t>(i)].rank = i;
  const JobOutcome outcome = at_the_agent(end).outcome;
  EXPECT_GT(outcome.consequences.size(), 5'000U);
  EXPECT_EQ(outcome.consequences.size() + static_cast<std::size_t>(outcome.consequences_left_out),
            20'000U + 9U);
  EXPECT_EQ(outcome.consequences.back().rank, static_cast<int>(outcome.consequences.size()) - 1);
  EXPECT_EQ(outcome.cause, end.outcome.cause);
  EXPECT_EQ(outcome.sentence, end.outcome.sentence);

  const auto stopped =
      at_the_leader(RoundStopped{Round{1}, std::vector<WorkerFailure>(20'000, example_failure())});
  EXPECT_GT(stopped.failures.size(), 5'000U);
}

TEST(RoundWire, QuestionsAndAnswersHaveTheirLimits) {
  const PeerRequest question{1, {}, std::string(limits::kMaxQuestionBytes + 1, 'q')};
  expect_refused(decode_agent_frame(payload_of(AgentFrame(question))), "too long");
  const PeerReply answer{1, {}, std::string(limits::kMaxAnswerBytes + 1, 'a')};
  expect_refused(decode_leader_frame(payload_of(LeaderFrame(answer))), "too long");
  const PeerReply largest{1, {}, std::string(limits::kMaxAnswerBytes, 'a')};
  EXPECT_EQ(decode_agent_frame(payload_of(AgentFrame(largest))), AgentFrame(largest));
}

TEST(RoundWire, OfVeryManyMembersTheFirstAreKeptAndTheRestCounted) {
  PeerAck asked{1, NodeId{2}, example_view()};
  asked.view.members.assign(40'000, asked.view.members.front());
  for (std::uint32_t i = 0; i < 40'000; ++i) asked.view.members[i].id = NodeId{i};
  const std::string bytes = encode(LeaderFrame(asked));
  EXPECT_LE(bytes.size(), limits::kMaxRoundFrameBytes);
  const auto arrived = decode_leader_frame(std::string_view(bytes).substr(kLengthBytes));
  ASSERT_TRUE(arrived) << arrived.error().to_string();
  const LeaderView view = std::get<PeerAck>(*arrived).view;
  EXPECT_GT(view.members.size(), 20'000U);
  EXPECT_EQ(view.members.size() + static_cast<std::size_t>(view.members_left_out), 40'007U);
  EXPECT_EQ(view.members.back().id, NodeId{static_cast<std::uint32_t>(view.members.size()) - 1});
}

// ---- FrameReader

std::string length_of(std::uint32_t length) {
  return {static_cast<char>(length), static_cast<char>(length >> 8),
          static_cast<char>(length >> 16), static_cast<char>(length >> 24)};
}

// The next payload; "none" while it has not arrived.
std::string next_of(FrameReader& reader) {
  const auto next = reader.next();
  if (!next) return next.error().to_string();
  return *next ? std::string(**next) : "none";
}

// Every payload that `bytes` hold, arriving `step` at a time.
std::vector<std::string> read_in_steps(std::string_view bytes, std::size_t step) {
  FrameReader reader(limits::kMaxRoundFrameBytes);
  std::vector<std::string> payloads;
  while (!bytes.empty()) {
    reader.append(bytes.substr(0, step));
    bytes.remove_prefix(std::min(step, bytes.size()));
    for (auto next = reader.next(); *next; next = reader.next()) payloads.emplace_back(**next);
  }
  EXPECT_EQ(reader.buffered(), 0U);
  return payloads;
}

TEST(FrameReader, CutsBytesIntoFramesHoweverTheyArrive) {
  std::string bytes;
  std::vector<std::string> payloads;
  for_each_example([&](const auto& frame) {
    bytes += encode(frame);
    payloads.push_back(payload_of(frame));
  });
  for (std::size_t step = 1; step <= bytes.size(); ++step)
    ASSERT_EQ(read_in_steps(bytes, step), payloads) << step;
}

TEST(FrameReader, TakesTheSameTimeForEveryFrameOfALongRow) {
  // Some hundred milliseconds; one that moved the rest for each frame would need minutes.
  constexpr std::size_t kFrames = 400'000;
  std::string bytes;
  for (std::size_t i = 0; i < kFrames; ++i) bytes += encode(AgentFrame(Heartbeat{i}));
  EXPECT_EQ(read_in_steps(bytes, bytes.size()).size(), kFrames);
}

TEST(FrameReader, JudgesALengthBeforeAnythingOfItArrives) {
  for (const std::uint32_t length : {0U, 101U, 0xffffffffU}) {
    FrameReader reader(100);
    reader.append(length_of(length));
    for (int again = 0; again < 2; ++again) {
      const auto next = reader.next();
      ASSERT_FALSE(next) << length;
      EXPECT_EQ(next.error().code, ErrorCode::kProtocol);
      EXPECT_THAT(next.error().message, HasSubstr(std::to_string(length) + " bytes"));
    }
  }
  FrameReader reader(100);
  reader.append(length_of(100));
  EXPECT_EQ(next_of(reader), "none");
  reader.append(std::string(100, 'x'));
  EXPECT_EQ(next_of(reader), std::string(100, 'x'));
}

TEST(FrameReader, AllowsMoreWhenItIsTold) {
  FrameReader reader(100);
  reader.append(length_of(200) + std::string(200, 'x'));
  EXPECT_FALSE(reader.next());
  reader.set_max_payload(200);
  EXPECT_EQ(next_of(reader), std::string(200, 'x'));
}

TEST(FrameReader, TakesTheOpeningOffTheFront) {
  const std::string opening = encode(Opening{});
  FrameReader reader(100);
  reader.append(std::string_view(opening).substr(0, 39));
  EXPECT_EQ(reader.take(kOpeningBytes), std::nullopt);
  EXPECT_EQ(reader.buffered(), 39U);
  reader.append(opening.substr(39) + encode(AgentFrame(Heartbeat{5})));
  EXPECT_EQ(reader.take(kOpeningBytes), opening);
  EXPECT_EQ(decode_agent_frame(next_of(reader)), AgentFrame(Heartbeat{5}));
  EXPECT_EQ(next_of(reader), "none");
}

}  // namespace
}  // namespace ddprun::rdzv::wire
