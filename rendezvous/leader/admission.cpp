#include "rendezvous/leader/admission.h"

#include <algorithm>
#include <utility>

#include "rendezvous/common/descriptor_limit.h"
#include "rendezvous/common/limits.h"
#include "rendezvous/leader/token.h"

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;

constexpr auto kTimeLimit = 10s;  // from a connection to its accepted Connect
constexpr std::size_t kPendingMax = 16384;
constexpr auto kWarningInterval = 1s;
constexpr char kStoreQuery = 0;  // VALIDATE, which opens a connection of c10d's store protocol

// Half of the descriptors, because nodes and workers need some too.
std::size_t most_pending() {
  return std::clamp<std::size_t>(descriptor_limit().rlim_cur / 2, 16, kPendingMax);
}

constexpr const char* kNoMunge =
    "this job's nodes prove by munge that they are the same user's, and this node cannot; start "
    "munged here (munge -n | unmunge tells what is wrong), or give all nodes the same --token-file";
constexpr const char* kNoToken =
    "this job asks for a token, and this node has none or a different one; give it the leader's by "
    "--token-file=FILE (or DDPRUN_TOKEN_FILE)";

// Why an agent goes away by itself when it has read our Opening; null: it does not.
const char* why_it_leaves(wire::Wants its, wire::Wants ours) {
  if (its == wire::Wants::kToken && ours != its)
    return "it was given a token, and this leader was not; give all nodes the same --token-file";
  if (its == wire::Wants::kMunge && ours == wire::Wants::kNothing)
    return "it proves by munge whose it is, and this leader does not; start munged here, and the "
           "leader in the same Slurm job";
  return nullptr;
}

}  // namespace

struct Admission::PendingConnection {
  StreamPtr stream;
  std::string address;
  CoreTime deadline;
  std::list<PendingPtr>::iterator place;
  bool is_listed = false;
  bool is_dismissed = false;
  wire::FrameReader reader{limits::kMaxConnectBytes};
  std::optional<wire::Nonce> theirs;  // from its Opening; nullopt before
  wire::Nonce ours{};
  std::optional<wire::Connect> connect;  // its credential is to be checked
};

Admission::Admission(std::shared_ptr<Transport> transport, Listener listener, NodeProof proof,
                     Events events)
    : transport_(std::move(transport)),
      proof_(std::move(proof)),
      events_(std::move(events)),
      sweep_timer_(transport_->make_timer()),
      pending_max_(most_pending()),
      accepting_(transport_->accept(std::move(listener),
                                    {.on_stream = [this](const StreamPtr& stream) { take(stream); },
                                     .on_shortage = [this] { return free_descriptor(); }})) {}

Admission::~Admission() {
  for (const PendingPtr& pending : pending_) pending->stream->close();
}

// ---- accepting

void Admission::take(const StreamPtr& stream) {
  if (pending_.size() >= pending_max_) {
    turn_away(pending_.front(), "too many connections have not identified themselves");
  }
  const PendingPtr pending = add(stream);
  stream->start({.on_bytes =
                     [this, pending](std::string_view bytes) {
                       if (pending->is_dismissed) return;
                       pending->reader.append(bytes);
                       read(pending);
                     },
                 .on_end = [this, pending](const Error&) { remove(pending); }});
}

// Closes the oldest pending connection to make room for the next one.
bool Admission::free_descriptor() {
  if (!std::exchange(has_told_of_shortage_, true)) {
    events_.on_warning("no file descriptor is left for another connection, new ones wait: " +
                       descriptor_limit_in_words());
  }
  if (pending_.empty()) return false;
  turn_away(pending_.front(), "there are no descriptors left");
  return true;
}

Admission::PendingPtr Admission::add(const StreamPtr& stream) {
  const auto pending = std::make_shared<PendingConnection>();
  pending->stream = stream;
  pending->address = stream->peer_address();
  pending->deadline = transport_->now() + kTimeLimit;
  pending->place = pending_.insert(pending_.end(), pending);
  pending->is_listed = true;
  if (pending_.size() == 1) sweep();
  return pending;
}

void Admission::remove(const PendingPtr& pending) {
  if (std::exchange(pending->is_listed, false)) pending_.erase(pending->place);
}

void Admission::turn_away(const PendingPtr& pending, const std::string& why) {
  if (!pending->is_dismissed) warn("turned away " + pending->address + ": " + why);
  const PendingPtr keep = pending;  // `pending` may refer to the list's element
  remove(keep);
  keep->stream->close();
}

void Admission::sweep() {
  while (!pending_.empty() && pending_.front()->deadline <= transport_->now()) {
    turn_away(pending_.front(), "it did not identify itself in time");
  }
  if (pending_.empty()) return;
  sweep_timer_->at(pending_.front()->deadline, [this] { sweep(); });
}

void Admission::warn(const std::string& line) {
  const auto now = transport_->now();
  if (last_warning_ && now - *last_warning_ < kWarningInterval) {
    ++warnings_left_out_;
    return;
  }
  last_warning_ = now;
  const int left_out = std::exchange(warnings_left_out_, 0);
  events_.on_warning(left_out == 0 ? line : line + " (and " + std::to_string(left_out) + " more)");
}

// ---- what comes over a connection

void Admission::read(const PendingPtr& pending) {
  if (!pending->theirs) take_opening(pending);
  if (pending->theirs && pending->stream->is_open() && !pending->is_dismissed)
    take_connect(pending);
}

void Admission::take_opening(const PendingPtr& pending) {
  const char first = pending->reader.front();
  if (first == kStoreQuery && events_.on_store_client) {
    std::string received = *pending->reader.take(pending->reader.buffered());
    remove(pending);
    return events_.on_store_client(pending->stream, std::move(received));
  }
  if (first != wire::kRoundMagic.front()) {
    return turn_away(pending,
                     first == kStoreQuery
                         ? "it is a client of a c10d store, but this is the leader's port; "
                           "workers find theirs at MASTER_ADDR:MASTER_PORT"
                         : "it does not speak the round protocol");
  }
  const auto bytes = pending->reader.take(wire::kOpeningBytes);
  if (!bytes) return;
  const auto opening = wire::decode_opening(*bytes);
  if (!opening) return turn_away(pending, "it does not speak the round protocol");
  pending->theirs = opening->nonce;
  pending->ours = random_nonce();
  pending->stream->send(
      wire::encode(wire::Opening{.wants = proof_.wants(), .nonce = pending->ours}));
  std::string why;
  if (opening->version != wire::kRoundProtocolVersion) {
    why = "it speaks version " + std::to_string(opening->version) +
          " of the round protocol, this is version " + std::to_string(wire::kRoundProtocolVersion) +
          "; run one version of ddprun on all nodes";
  } else if (const char* const it_leaves = why_it_leaves(opening->wants, proof_.wants())) {
    why = it_leaves;
  } else {
    return;
  }
  part_from(pending);
  events_.on_turned_away({"", pending->address, std::move(why)});
}

// Everything has been sent; waits for the other side to close.
void Admission::part_from(const PendingPtr& pending) {
  pending->is_dismissed = true;
  pending->stream->finish_sending();
}

void Admission::take_connect(const PendingPtr& pending) {
  if (pending->connect) {  // nothing more is expected before the Welcome
    if (pending->reader.buffered() > limits::kMaxConnectBytes)
      turn_away(pending, "it sends more than it was asked for");
    return;
  }
  const auto payload = pending->reader.next();
  if (!payload) return turn_away(pending, payload.error().to_string());
  if (!*payload) return;
  auto frame = wire::decode_agent_frame(**payload);
  if (!frame) return turn_away(pending, frame.error().to_string());
  auto* connect = std::get_if<wire::Connect>(&*frame);
  if (connect == nullptr) return turn_away(pending, "its first message does not identify it");
  pending->connect = std::move(*connect);
  const std::string& proof = pending->connect->proof;
  switch (proof_.wants()) {
    case wire::Wants::kNothing:
      return admit(pending, {});
    case wire::Wants::kToken: {
      const auto of = [&](ProofOf side) {
        return proof_of(side, proof_.token, *pending->theirs, pending->ours);
      };
      if (!are_equal(proof, of(ProofOf::kAgent)))
        return reject(pending, proof.empty() ? "it has no token" : "its token is a different one",
                      kNoToken);
      return admit(pending, of(ProofOf::kLeader));
    }
    case wire::Wants::kMunge:
      if (proof.empty()) return reject(pending, "it has no munge, which this job uses", kNoMunge);
      unchecked_.push_back(pending);
      if (unchecked_.size() == 1) check_next_credential();
  }
}

// One at a time: a flood of them must not become a flood of threads.
void Admission::check_next_credential() {
  while (!unchecked_.empty()) {
    const PendingPtr pending = unchecked_.front().lock();
    if (pending && pending->is_listed) {
      checking_ = transport_->call(
          [munge = proof_.munge, credential = pending->connect->proof] {
            return munge->decode(credential);
          },
          [this, pending](const Result<std::string>& contents) {
            unchecked_.pop_front();
            if (pending->is_listed) check_contents(pending, contents);
            check_next_credential();
          });
      return;
    }
    unchecked_.pop_front();
  }
}

void Admission::check_contents(const PendingPtr& pending, const Result<std::string>& contents) {
  if (!contents) {
    return reject(pending, contents.error().message,
                  "the leader does not accept this node's credential: " + contents.error().message);
  }
  const auto secret = secret_in(*contents, *pending->theirs, pending->ours);
  if (!secret) {
    return reject(pending, "its credential is of another connection",
                  "the leader does not accept this node's credential: it is of another connection");
  }
  admit(pending, proof_of(ProofOf::kLeader, *secret, *pending->theirs, pending->ours));
}

void Admission::reject(const PendingPtr& pending, const std::string& why,
                       const std::string& sentence) {
  const auto& hello = pending->connect->hello;
  pending->stream->send(wire::encode(wire::LeaderFrame(wire::Rejected{sentence})));
  part_from(pending);
  events_.on_turned_away(
      {hello ? hello->host : "", pending->address, why, hello ? hello->node_rank : std::nullopt});
}

void Admission::admit(const PendingPtr& pending, std::string proof) {
  remove(pending);
  events_.on_applicant({pending->stream, std::move(pending->reader), std::move(*pending->connect),
                        pending->address, std::move(proof)});
}

// ---- what the leader thinks of them

void Admission::dismiss(const StreamPtr& stream) {
  if (!stream->is_open()) return;
  const PendingPtr pending = add(stream);
  stream->start({.on_bytes = [](std::string_view) {},
                 .on_end = [this, pending](const Error&) { remove(pending); }});
  part_from(pending);
}

void Admission::drop(const StreamPtr& stream, const std::string& why) {
  warn("closed the connection from " + stream->peer_address() + ": " + why);
  stream->close();
}

}  // namespace ddprun::rdzv
