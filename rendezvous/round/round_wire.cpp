#include "rendezvous/round/round_wire.h"

#include <limits>

#include "rendezvous/common/archive.h"
#include "rendezvous/common/limits.h"

namespace ddprun::rdzv::wire {

// The kinds of frames. Do not use an old number for something new.
template <>
inline constexpr std::array<std::uint8_t, 5> kNumbers<AgentFrame> = {1, 5, 6, 7, 8};
template <>
inline constexpr std::array<std::uint8_t, 8> kNumbers<LeaderFrame> = {2, 3, 4, 5, 6, 7, 8, 9};

// ---- layouts

namespace {

constexpr std::size_t kLengthBytes = sizeof(std::uint32_t);
constexpr std::size_t kProofBytes = 32;
constexpr std::size_t kCredentialBytes = 1024;  // of munge: about 300
constexpr int kMaxExitCode = 255;
constexpr int kMaxSignal = 64;
constexpr int kMaxRanks = 1 << 30;  // adding a local rank does not overflow
constexpr int kMaxCount = 1 << 30;
constexpr int kMaxInt = std::numeric_limits<int>::max();

}  // namespace

// Messages and frames whose fields need no limits: none, one, two or three.
template <typename T, typename... Messages>
concept IsOneOf = (Is<T, Messages> || ...);
static void fields(auto& /*archive*/, IsOneOf<Goodbye, DeclaredLost, NodeFit> auto& /*message*/) {}
static void fields(auto& archive, IsOneOf<SomeWorkersDone, OpenStore, WorkersRecover, LeaveWanted,
                                          StopWanted, JobEnd, Gone, Heartbeat> auto& message) {
  auto& [only] = message;
  archive(only);
}
static void fields(auto& archive, IsOneOf<StoreOpened, WorkerFailed, WorkersDone, Regrouped,
                                          CannotRegroup, LeaveAt> auto& message) {
  auto& [round, what] = message;
  archive(round, what);
}
static void fields(auto& archive,
                   IsOneOf<PeerAck, Message<ToLeader>, Message<ToAgent>> auto& message) {
  auto& [id, other, what] = message;
  archive(id, other, what);
}

static void fields(auto& archive, Is<ExitStatus> auto& status) {
  archive.within(0, kMaxExitCode, status.code);
  archive.within(0, kMaxSignal, status.signal);
  archive(status.core_dumped);
}

static void fields(auto& archive, Is<WorkerProgress> auto& progress) {
  archive(progress.step, progress.total_steps, progress.since_step, progress.collectives);
  archive.choice(progress.step_kind, StepKind::kCounted);
  archive.choice(progress.phase, WorkerPhase::kLeaving);
  archive(progress.since_phase);
}

static void fields(auto& archive, Is<WorkerFailure> auto& failure) {
  archive.within(0, kMaxRanks, failure.rank, failure.local_rank, failure.node_rank);
  archive.host(failure.host);
  archive.within(0, kMaxInt, failure.pid);
  archive(failure.status, failure.when);
  archive.text(failure.message);
  archive.path(failure.error_file);
  archive.lines(failure.stderr_tail);
  archive.path(failure.log_dir);
  archive(failure.progress, failure.killed_for_memory, failure.was_told_to_stop,
          failure.is_worth_a_retry);
  archive.text(failure.hang);
  archive.text(failure.asked_by);
}

static void fields(auto& archive, Is<NodeGone> auto& gone) {
  archive.choice(gone.how, NodeGone::How::kLeftOut);
  archive.within(0, kMaxRanks, gone.node_rank);
  archive.host(gone.host);
  archive.text(gone.why);
}

static void fields(auto& archive, Is<JobOutcome> auto& outcome) {
  archive.choice(outcome.kind, JobOutcome::Kind::kCannotRun);
  archive.within(0, kMaxExitCode, outcome.exit_code);
  archive(outcome.cause, outcome.consequences);
  archive.within(0, kMaxCount, outcome.consequences_left_out);
  archive(outcome.lost_node);
  archive.within(0, kMaxSignal, outcome.stop_signal);
  archive.text(outcome.sentence);
  archive.within(0, kMaxInt, outcome.restarts);
  archive.within(0, kMaxCount, outcome.restarts_asked_for, outcome.in_place);
  archive(outcome.last_round);
  archive.lines(outcome.requests);
  archive.lines(outcome.left_out);
  archive(outcome.done);
}

// Agent to leader.

static void fields(auto& archive, Is<LastRound> auto& last) {
  archive(last.round);
  archive.within(1, kMaxRanks, last.node_count);
  archive.within(0, kMaxInt, last.restarts);
}

static void fields(auto& archive, Is<NodeHello> auto& hello) {
  archive.within(1, limits::kMaxWorkersOfNode, hello.local_world_size);
  archive.name(hello.role);
  archive.host(hello.address, hello.host);
  archive(hello.node_rank, hello.session);
  archive.name(hello.run_id, hello.program, hello.user);
  archive.within(1, kMaxInt, hello.min_nodes, hello.max_nodes);
  archive.within(0, kMaxInt, hello.max_restarts, hello.no_progress_restarts);
  archive(hello.restart_window);
  archive(hello.shutdown_timeout, hello.last_round);
}

static void fields(auto& archive, Is<StoreNotOpened> auto& message) {
  archive(message.round);
  archive.text(message.why);
}

static void fields(auto& archive, Is<NodeLeaving> auto& message) {
  archive(message.is_preemption);
  archive.within(message.is_preemption ? 0 : 1, kMaxSignal, message.signal);
}

static void fields(auto& archive, Is<RoundStopped> auto& message) {
  archive(message.round, message.failures, message.done);
}

static void fields(auto& archive, Is<RestartAsked> auto& message) {
  archive(message.round);
  archive.text(message.by);
}

static void fields(auto& archive, Is<StopAsked> auto& message) {
  archive.within(1, kMaxSignal, message.signal);
  archive.text(message.by);
}

static void fields(auto& archive, Is<DrainAsked> auto& message) {
  archive.host(message.name.host, message.name.address);
  archive.choice(message.what, DrainAsked::What::kUndrain);
  archive.text(message.by);
}

static void fields(auto& archive, Is<WorkerReplaceable> auto& message) {
  archive(message.round, message.failure, message.committed, message.generation,
          message.has_standby);
}

static void fields(auto& archive,
                   IsOneOf<Rejected, Refused, Warning, NodeStuck, NodeUnfit> auto& message) {
  archive.text(message.sentence);
}

// Leader to agent.

static void fields(auto& archive, Is<WaitForNodes> auto& message) {
  archive.within(0, kMaxCount, message.present);
  archive.within(1, kMaxInt, message.min_nodes, message.max_nodes);
  archive(message.left);
  archive.text(message.remark);
}

static void fields(auto& archive, Is<WaitAsSpare> auto& message) {
  archive.choice(message.why, WaitAsSpare::Why::kLeftOut);
  archive.text(message.left_out);
}

static void fields(auto& archive, Is<RoundStop> auto& message) {
  archive(message.round);
  archive.choice(message.why, RoundStop::Why::kFailure);
  archive(message.gone, message.after_step);
}

static void fields(auto& archive, Is<StepsHeld> auto& message) {
  archive(message.round, message.passed);
  archive.choice(message.until, HoldSteps::Until::kRoundStop);
}

static void fields(auto& archive, Is<HoldSteps> auto& message) {
  archive(message.round);
  archive.choice(message.until, HoldSteps::Until::kNow);
}

static void fields(auto& archive, Is<GroupBroken> auto& message) {
  archive(message.round);
  archive.within(0, kMaxRanks, message.rank);
}

static void fields(auto& archive, Is<ReplaceWorker> auto& message) {
  archive(message.round, message.generation);
  archive.within(0, kMaxRanks, message.rank);
  archive(message.failure);
  archive.within(0, kMaxInt, message.restarts, message.max_restarts);
}

static void fields(auto& archive, Is<RoundStart> auto& start) {
  archive(start.round);
  archive.within(0, kMaxRanks, start.node_rank);
  archive.within(1, kMaxRanks, start.node_count);
  archive.within(0, kMaxRanks, start.rank_offset);
  archive.within(1, kMaxRanks, start.world_size);
  archive.within(0, kMaxRanks, start.role_rank_offset);
  archive.within(1, kMaxRanks, start.role_world_size);
  archive.host(start.master_addr);
  archive(start.master_port, start.after_failure, start.after_loss, start.after_arrival,
          start.after_request);
  archive.text(start.asked_by);
  archive.within(0, kMaxCount, start.nodes_gone, start.nodes_joined);
  archive.within(0, kMaxInt, start.restarts, start.max_restarts);
}

// Frames.

static void fields(auto& archive, Is<Connect> auto& connect) {
  archive(connect.session, connect.received);
  archive.opaque(connect.proof, kCredentialBytes);
  archive(connect.hello);
}

static void fields(auto& archive, Is<Welcome> auto& welcome) {
  archive(welcome.received, welcome.leader_id);
  archive.opaque(welcome.proof, kProofBytes);
}

// Requests.

static void fields(auto& archive, Is<PeerRequest> auto& question) {
  archive(question.id, question.peer);
  archive.opaque(question.text, limits::kMaxQuestionBytes);
}

static void fields(auto& archive, Is<PeerReply> auto& answer) {
  archive(answer.id, answer.peer);
  archive.opaque(answer.text, limits::kMaxAnswerBytes);
}

static void fields(auto& archive, Is<LeaderView::Member> auto& member) {
  archive(member.id);
  archive.host(member.host, member.address);
  archive.within(1, limits::kMaxWorkersOfNode, member.workers);
  archive(member.node_rank);
  archive.choice(member.place, LeaderView::Place::kLeftOut);
  archive(member.leads);
}

static void fields(auto& archive, Is<LeaderView::LeftOut> auto& host) {
  archive.host(host.host, host.address);
  archive.text(host.why);
}

static void fields(auto& archive, Is<LeaderView> auto& view) {
  archive.choice(view.state, LeaderView::State::kEnded);
  archive(view.round);
  archive.within(1, kMaxInt, view.min_nodes, view.max_nodes);
  archive.within(0, kMaxCount, view.ready);
  archive(view.left);
  archive.within(0, kMaxInt, view.restarts, view.max_restarts);
  archive(view.has_exact_ranks, view.is_finishing, view.left_out, view.members);
  archive.within(0, kMaxCount, view.members_left_out);
}

// ---- frames that are too large

namespace {

std::size_t size_of(const WorkerFailure& failure) {
  Writer writer;
  writer(failure);
  return writer.bytes().size();
}

// Makes them `excess` bytes smaller if possible: first the texts of the later ones are removed,
// then those failures. Returns how many were left out.
int shorten(std::vector<WorkerFailure>& failures, std::size_t excess) {
  std::size_t saved = 0;
  for (auto failure = failures.rbegin(); failure != failures.rend() && saved < excess; ++failure) {
    const std::size_t before = size_of(*failure);
    failure->message.clear();
    failure->hang.clear();
    failure->asked_by.clear();
    failure->error_file.clear();
    failure->stderr_tail.clear();
    saved += before - size_of(*failure);
  }
  int left_out = 0;
  for (; !failures.empty() && saved < excess; ++left_out) {
    saved += size_of(failures.back());
    failures.pop_back();
  }
  return left_out;
}

void shorten(ToLeader& message, std::size_t excess) {
  if (auto* stopped = std::get_if<RoundStopped>(&message)) shorten(stopped->failures, excess);
}

void shorten(ToAgent& message, std::size_t excess) {
  if (auto* end = std::get_if<JobEnd>(&message))
    end->outcome.consequences_left_out += shorten(end->outcome.consequences, excess);
}

// ---- frames

template <typename Frame>
std::string with_length(const Frame& frame) {
  Writer writer;
  writer(std::uint32_t{0}, frame);
  std::string& bytes = writer.bytes();
  const auto length = static_cast<std::uint32_t>(bytes.size() - kLengthBytes);
  std::memcpy(bytes.data(), &length, sizeof length);
  return std::move(bytes);
}

template <typename Body, typename Frame>
std::string encode_within_limits(const Frame& frame) {
  std::string bytes = with_length(frame);
  const auto* message = std::get_if<Message<Body>>(&frame);
  if (bytes.size() <= limits::kMaxRoundFrameBytes || message == nullptr) return bytes;
  Message<Body> shorter = *message;
  shorten(shorter.body, bytes.size() - limits::kMaxRoundFrameBytes);
  return with_length(Frame(std::move(shorter)));
}

// Keeps the first members that fit.
std::string encode_within_limits(PeerAck asked) {
  for (;;) {
    std::string bytes = with_length(LeaderFrame(asked));
    if (bytes.size() <= limits::kMaxRoundFrameBytes) return bytes;
    auto& members = asked.view.members;
    const std::size_t fewer = members.size() * limits::kMaxRoundFrameBytes / bytes.size();
    const std::size_t kept = std::min(fewer, members.size() - 1);
    asked.view.members_left_out += static_cast<int>(members.size() - kept);
    members.resize(kept);
  }
}

template <typename Frame>
Result<Frame> decode_frame(std::string_view payload, std::string_view from) {
  Frame frame;
  Reader reader(payload);
  reader(frame);
  reader.end();
  if (reader.error().empty()) return frame;
  return fail(ErrorCode::kProtocol, std::string(from) + " sent a frame that cannot be read: " +
                                        std::string(reader.error()));
}

}  // namespace

std::string encode(const AgentFrame& frame) { return encode_within_limits<ToLeader>(frame); }

std::string encode(const LeaderFrame& frame) {
  const auto* asked = std::get_if<PeerAck>(&frame);
  return asked == nullptr ? encode_within_limits<ToAgent>(frame) : encode_within_limits(*asked);
}

Result<AgentFrame> decode_agent_frame(std::string_view payload) {
  return decode_frame<AgentFrame>(payload, "the agent");
}
Result<LeaderFrame> decode_leader_frame(std::string_view payload) {
  return decode_frame<LeaderFrame>(payload, "the leader");
}

// ---- the opening

namespace {
// Bits of the flags; at most one of them is set.
constexpr std::uint16_t kWantsToken = 1;
constexpr std::uint16_t kWantsMunge = 2;

std::uint16_t flags_of(Wants wants) {
  if (wants == Wants::kNothing) return 0;
  return wants == Wants::kMunge ? kWantsMunge : kWantsToken;
}
}  // namespace

std::string encode(const Opening& opening) {
  std::string bytes(kRoundMagic);
  append(bytes, opening.version);
  append(bytes, flags_of(opening.wants));
  bytes.append(opening.nonce.data(), opening.nonce.size());
  return bytes;
}

Result<Opening> decode_opening(std::string_view bytes) {
  if (bytes.size() != kOpeningBytes || !bytes.starts_with(kRoundMagic)) {
    return fail(ErrorCode::kProtocol,
                "what answers there does not speak ddprun's round protocol; check host and port");
  }
  bytes.remove_prefix(kRoundMagic.size());
  Opening opening;
  opening.version = load<std::uint16_t>(bytes.data());
  const auto flags = load<std::uint16_t>(bytes.data() + 2);
  if ((flags & kWantsToken) != 0) opening.wants = Wants::kToken;
  if ((flags & kWantsMunge) != 0) opening.wants = Wants::kMunge;
  bytes.copy(opening.nonce.data(), opening.nonce.size(), 4);
  return opening;
}

// ---- FrameReader

namespace {
// For an idle connection, because a leader has thousands of them.
constexpr std::size_t kMaxIdleCapacity = std::size_t{4} * 1024;
}  // namespace

void FrameReader::append(std::string_view bytes) {
  // Amortised: at most one byte is moved for each byte that was returned.
  if (begin_ == buffer_.size() && buffer_.capacity() > kMaxIdleCapacity) {
    buffer_ = std::string();
    begin_ = 0;
  } else if (begin_ >= buffer_.size() - begin_) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  buffer_.append(bytes);
}

Result<std::optional<std::string_view>> FrameReader::next() {
  if (buffered() < kLengthBytes) return std::nullopt;
  const auto length = load<std::uint32_t>(buffer_.data() + begin_);
  if (length == 0 || length > max_payload_) {
    return fail(ErrorCode::kProtocol, "a frame of " + std::to_string(length) +
                                          " bytes arrived, where 1 to " +
                                          std::to_string(max_payload_) + " are allowed");
  }
  if (buffered() - kLengthBytes < length) return std::nullopt;
  const std::string_view payload(buffer_.data() + begin_ + kLengthBytes, length);
  begin_ += kLengthBytes + length;
  return payload;
}

std::optional<std::string> FrameReader::take(std::size_t count) {
  if (buffered() < count) return std::nullopt;
  std::string taken = buffer_.substr(begin_, count);
  begin_ += count;
  return taken;
}

}  // namespace ddprun::rdzv::wire
