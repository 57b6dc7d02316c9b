#include "rendezvous/leader/admission.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "rendezvous/common/descriptor_limit.h"
#include "rendezvous/common/limits.h"
#include "rendezvous/leader/token.h"

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;
using boost::system::error_code;
using std::chrono::steady_clock;

constexpr auto kTimeLimit = 10s;          // from a connection to its accepted Connect
constexpr auto kDescriptorPause = 100ms;  // when none is left, and no connection can be given up
constexpr int kAcceptsPerTurn = 256;      // then those that are there already have their turn
constexpr std::size_t kNobodiesMax = 16384;
constexpr auto kWarningInterval = 1s;
constexpr char kStoreQuery = 0;  // VALIDATE, which opens a connection of c10d's store protocol

// Half of the descriptors: nodes and workers need some too.
std::size_t most_nobodies() {
  return std::clamp<std::size_t>(descriptor_limit().rlim_cur / 2, 16, kNobodiesMax);
}

constexpr const char* kNoToken =
    "this job asks for a token, and this node has another one or none; give it "
    "--rdzv-conf=token_file=FILE (or DDPRUN_TOKEN_FILE) with what the leader's file holds";

}  // namespace

struct Admission::Nobody {
  std::shared_ptr<Connection> connection;
  std::string address;
  steady_clock::time_point deadline;
  std::list<NobodyPtr>::iterator place;
  bool is_listed = false;
  bool is_dismissed = false;
  wire::FrameReader reader{limits::kMaxConnectBytes};
  std::optional<wire::Nonce> theirs;  // its Opening has come
  wire::Nonce ours{};
};

Admission::Admission(boost::asio::io_context& io, UniqueFd listening, std::string token,
                     Events events)
    : io_(io),
      listening_(io, listening.release()),
      token_(std::move(token)),
      events_(std::move(events)),
      sweep_timer_(io),
      accept_timer_(io),
      nobodies_max_(most_nobodies()) {
  await_connections();
}

Admission::~Admission() {
  for (const NobodyPtr& nobody : nobodies_) nobody->connection->close();
}

// ---- accepting

void Admission::await_connections() {
  listening_.async_wait(listening_.wait_read, [this, life = std::weak_ptr(life_)](error_code ec) {
    if (!ec && !life.expired()) accept_connections();
  });
}

void Admission::accept_connections() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    UniqueFd socket(
        ::accept4(listening_.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == EAGAIN) break;
      const bool is_short =
          errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (is_short && !std::exchange(has_told_of_shortage_, true)) {
        events_.on_warning(
            "no descriptor is left for another connection, those that come now wait: " +
            descriptor_limit_in_words());
      }
      if (is_short && nobodies_.empty()) return await_descriptors();
      if (is_short) turn_away(nobodies_.front(), "there are no descriptors left");
      continue;
    }
    if (nobodies_.size() >= nobodies_max_) {
      turn_away(nobodies_.front(), "there are too many connections that say nothing");
    }
    auto nobody = std::make_shared<Nobody>();
    nobody->connection = std::make_shared<Connection>(io_.get_executor(), std::move(socket));
    nobody->address = nobody->connection->peer_address();
    add(nobody);
    nobody->connection->start({.on_bytes =
                                   [this, nobody](std::string_view bytes) {
                                     if (nobody->is_dismissed) return;
                                     nobody->reader.append(bytes);
                                     read(nobody);
                                   },
                               .on_end = [this, nobody](const Error&) { remove(nobody); }});
  }
  await_connections();
}

void Admission::await_descriptors() {
  accept_timer_.expires_after(kDescriptorPause);
  accept_timer_.async_wait([this, life = std::weak_ptr(life_)](error_code ec) {
    if (!ec && !life.expired()) accept_connections();
  });
}

void Admission::add(const NobodyPtr& nobody) {
  nobody->deadline = steady_clock::now() + kTimeLimit;
  nobody->place = nobodies_.insert(nobodies_.end(), nobody);
  nobody->is_listed = true;
  if (nobodies_.size() == 1) sweep();
}

void Admission::remove(const NobodyPtr& nobody) {
  if (std::exchange(nobody->is_listed, false)) nobodies_.erase(nobody->place);
}

void Admission::turn_away(const NobodyPtr& nobody, const std::string& why) {
  if (!nobody->is_dismissed) warn("turned away " + nobody->address + ": " + why);
  const NobodyPtr keep = nobody;  // the list's own may be the caller's
  remove(keep);
  keep->connection->close();
}

void Admission::sweep() {
  while (!nobodies_.empty() && nobodies_.front()->deadline <= steady_clock::now()) {
    turn_away(nobodies_.front(), "it did not say in time who it is");
  }
  if (nobodies_.empty()) return;
  sweep_timer_.expires_at(nobodies_.front()->deadline);
  sweep_timer_.async_wait([this, life = std::weak_ptr(life_)](error_code ec) {
    if (!ec && !life.expired()) sweep();
  });
}

void Admission::warn(const std::string& line) {
  const auto now = steady_clock::now();
  if (last_warning_ && now - *last_warning_ < kWarningInterval) {
    ++warnings_left_out_;
    return;
  }
  last_warning_ = now;
  const int left_out = std::exchange(warnings_left_out_, 0);
  events_.on_warning(left_out == 0 ? line : line + " (and " + std::to_string(left_out) + " more)");
}

// ---- what comes over a connection

void Admission::read(const NobodyPtr& nobody) {
  if (!nobody->theirs) take_opening(nobody);
  if (nobody->theirs && nobody->connection->is_open() && !nobody->is_dismissed)
    take_connect(nobody);
}

void Admission::take_opening(const NobodyPtr& nobody) {
  const char first = nobody->reader.front();
  if (first == kStoreQuery && events_.on_store_client) {
    std::string received = *nobody->reader.take(nobody->reader.buffered());
    remove(nobody);
    return events_.on_store_client(nobody->connection, std::move(received));
  }
  if (first != wire::kRoundMagic.front()) {
    return turn_away(nobody, first == kStoreQuery
                                 ? "it looks for a c10d store, and this is the leader's port; "
                                   "workers find theirs at MASTER_ADDR:MASTER_PORT"
                                 : "it does not speak the round protocol");
  }
  const auto bytes = nobody->reader.take(wire::kOpeningBytes);
  if (!bytes) return;
  const auto opening = wire::decode_opening(*bytes);
  if (!opening) return turn_away(nobody, "it does not speak the round protocol");
  nobody->theirs = opening->nonce;
  nobody->ours = random_nonce();
  nobody->connection->send(
      wire::encode(wire::Opening{.wants_proof = !token_.empty(), .nonce = nobody->ours}));
  if (opening->version == wire::kRoundProtocolVersion) return;
  warn("turned away " + nobody->address + ": it speaks version " +
       std::to_string(opening->version) + " of the round protocol, this is version " +
       std::to_string(wire::kRoundProtocolVersion) + "; run one version of ddprun on all nodes");
  part_from(nobody);
}

// Its last word was said; the other side's end is awaited.
void Admission::part_from(const NobodyPtr& nobody) {
  nobody->is_dismissed = true;
  nobody->connection->finish_sending();
}

void Admission::take_connect(const NobodyPtr& nobody) {
  const auto payload = nobody->reader.next();
  if (!payload) return turn_away(nobody, payload.error().to_string());
  if (!*payload) return;
  auto frame = wire::decode_agent_frame(**payload);
  if (!frame) return turn_away(nobody, frame.error().to_string());
  auto* connect = std::get_if<wire::Connect>(&*frame);
  if (connect == nullptr) return turn_away(nobody, "it does not say who it is");
  std::string proof;
  if (!token_.empty()) {
    const auto expected = proof_of(ProofOf::kAgent, token_, *nobody->theirs, nobody->ours);
    if (!are_equal(connect->proof, expected)) {
      warn("turned away " + nobody->address + ": it does not know the token");
      nobody->connection->send(wire::encode(wire::LeaderFrame(wire::Rejected{kNoToken})));
      return part_from(nobody);
    }
    proof = proof_of(ProofOf::kLeader, token_, *nobody->theirs, nobody->ours);
  }
  remove(nobody);
  events_.on_applicant({nobody->connection, std::move(nobody->reader), std::move(*connect),
                        nobody->address, std::move(proof)});
}

// ---- what the leader thinks of them

void Admission::dismiss(const std::shared_ptr<Connection>& connection) {
  if (!connection->is_open()) return;
  auto nobody = std::make_shared<Nobody>();
  nobody->connection = connection;
  nobody->address = connection->peer_address();
  add(nobody);
  connection->start({.on_bytes = [](std::string_view) {},
                     .on_end = [this, nobody](const Error&) { remove(nobody); }});
  part_from(nobody);
}

void Admission::drop(const std::shared_ptr<Connection>& connection, const std::string& why) {
  warn("closed the connection from " + connection->peer_address() + ": " + why);
  connection->close();
}

}  // namespace ddprun::rdzv
