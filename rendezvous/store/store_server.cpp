#include "rendezvous/store/store_server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "rendezvous/common/descriptor_limit.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/scheduling.h"
#include "rendezvous/common/thread.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/store/store_connection.h"
#include "rendezvous/store/store_core.h"
#include "rendezvous/store_wire/store_decoder.h"

namespace ddprun::rdzv {
namespace {

using wire::ReplyQueue;
using wire::Request;
using wire::RequestDecoder;

// One buffer for all connections: nearly every request is decoded and finished in it before the
// next read.
constexpr std::size_t kReadBytes = std::size_t{64} * 1024;
// A client that sends much gives way to the others after this many reads.
constexpr int kReadsInARow = 4;
constexpr int kAcceptsInARow = 64;
constexpr int kEventsAtOnce = 64;
// Replies to requests that came together are sent together, up to about this many bytes.
constexpr std::size_t kSendFrom = std::size_t{256} * 1024;
// Without a free descriptor, accepting is tried again after this long (and whenever a client
// leaves).
constexpr std::chrono::milliseconds kAcceptPause{100};
// With more clients than this, their connections are closed in the background.
constexpr std::size_t kClosedAtOnce = 500;
// Descriptors that clients cannot use: the rest of the process needs them to start workers.
constexpr std::size_t kSpareDescriptors = 64;
constexpr std::chrono::seconds kLogInterval{1};

std::size_t most_sessions() {
  return std::max<std::size_t>(descriptor_limit().rlim_cur, 2 * kSpareDescriptors) -
         kSpareDescriptors;
}

class Loop final : public StoreServer {
 public:
  static Result<std::unique_ptr<StoreServer>> start(Listener listener,
                                                    const StoreServerOptions& options) {
    std::unique_ptr<Loop> loop(new Loop(std::move(listener), options));
    if (!loop->epoll_ || !loop->wake_) return fail(error_from_errno(errno, "epoll"));
    loop->watch(EPOLL_CTL_ADD, loop->wake_.get(), EPOLLIN, kWakeEvent);
    if (loop->listener_) loop->resume_accepting();
    auto thread = Thread::start("ddprun-store", [loop = loop.get()] { loop->run(); });
    if (!thread) return fail(std::move(thread.error()));
    loop->thread_ = std::move(*thread);
    return Result<std::unique_ptr<StoreServer>>(std::move(loop));
  }

  ~Loop() override {
    is_stopping_ = true;
    wake();
    thread_.join();
    listener_.reset();
    if (open_sessions_ > kClosedAtOnce) close_in_background();
  }

  const Endpoint& bound() const override { return bound_; }

  StoreStats stats() const override {
    constexpr auto kRelaxed = std::memory_order_relaxed;
    return {shown_.requests.load(kRelaxed), shown_.connections.load(kRelaxed),
            shown_.keys.load(kRelaxed), shown_.memory_bytes.load(kRelaxed)};
  }

  std::vector<StoreWait> waits() override {
    std::vector<StoreWait> seen;
    const bool somebody_waits = shown_.waiting.load(std::memory_order_relaxed) > 0;
    {
      const std::scoped_lock lock(adopted_mutex_);
      if (somebody_waits) seen = waits_;
      waits_are_asked_for_ = somebody_waits;
    }
    if (somebody_waits) wake();
    return seen;
  }

  void adopt(UniqueFd connection, std::string received) override {
    {
      const std::scoped_lock lock(adopted_mutex_);
      adopted_.emplace_back(std::move(connection), std::move(received));
    }
    wake();
  }

  void erase_if(std::function<bool(std::string_view)> is_obsolete) override {
    {
      const std::scoped_lock lock(adopted_mutex_);
      is_obsolete_ = std::move(is_obsolete);
    }
    wake();
  }

 private:
  using Adopted = std::pair<UniqueFd, std::string>;  // with the bytes already read

  // The sockets' data in epoll: the session's ClientId, or one of these.
  static constexpr std::uint64_t kWakeEvent = std::uint64_t{1} << 32;
  static constexpr std::uint64_t kListenerEvent = kWakeEvent + 1;

  Loop(Listener listener, const StoreServerOptions& options)
      : bound_(std::move(listener.bound)),
        listener_(std::move(listener.socket)),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        max_sessions_(most_sessions()),
        core_(options.memory_limit),
        log_(options.log),
        read_buffer_(new char[kReadBytes]) {}

  void run() {
    wake_at_once();
    std::array<epoll_event, kEventsAtOnce> events;
    for (;;) {
      const int timeout = is_paused_ ? static_cast<int>(kAcceptPause.count()) : -1;
      const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsAtOnce, timeout);
      if (count < 0 && errno != EINTR) {
        return log(error_from_errno(errno, "it cannot wait for requests").to_string());
      }
      if (is_paused_) resume_accepting();
      for (int i = 0; i < count; ++i) {
        const epoll_event& event = events[static_cast<std::size_t>(i)];
        if (event.data.u64 == kWakeEvent) {
          if (is_stopping_) return;
          open_adopted();
        } else if (event.data.u64 == kListenerEvent) {
          accept_some();
        } else {
          on_ready(static_cast<ClientId>(event.data.u64), event.events);
        }
        deliver_releases();
      }
      show_stats();
    }
  }

  // Called once per batch of events, so that a single request costs nothing more.
  void show_stats() {
    constexpr auto kRelaxed = std::memory_order_relaxed;
    const auto stats = core_.stats();
    shown_.requests.store(requests_, kRelaxed);
    shown_.connections.store(open_sessions_, kRelaxed);
    shown_.keys.store(stats.keys + stats.queues, kRelaxed);
    shown_.waiting.store(stats.waiting_clients, kRelaxed);
    shown_.memory_bytes.store(stats.bytes + outside_bytes_, kRelaxed);
  }

  // An event of a session that ended earlier in the same batch may still come, even for the next
  // session with that number: reading without data does no harm.
  void on_ready(ClientId client, std::uint32_t events) {
    try {
      StoreConnection* session = sessions_[client].get();
      const bool is_paused = session != nullptr && session->is_paused();
      if (session != nullptr && ((events & EPOLLOUT) != 0 || is_paused)) {
        session = send_waiting(*session);
      }
      if (session != nullptr && (events & ~EPOLLOUT) != 0 && !session->is_finished && !is_paused) {
        receive(*session);
      }
    } catch (const std::bad_alloc&) {
      // The system has less memory than our limit allows: close this client only.
      if (sessions_[client]) reject(*sessions_[client], "asked for more memory than there is");
    }
  }

  bool watch(int operation, int fd, std::uint32_t events, std::uint64_t name) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = name;
    return ::epoll_ctl(epoll_.get(), operation, fd, &event) == 0;
  }

  // --- accepting ---

  void accept_some() {
    for (int i = 0; i < kAcceptsInARow; ++i) {
      if (open_sessions_ >= max_sessions_) {
        return pause_accepting("it serves " + std::to_string(open_sessions_) +
                               " clients and leaves " + std::to_string(kSpareDescriptors) +
                               " descriptors to the rest of the process; " +
                               descriptor_limit_in_words());
      }
      UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket) {
        open(std::move(socket));
      } else if (errno == EAGAIN) {
        return;
      } else if (errno == EMFILE) {
        return pause_accepting("no descriptor is left; " + descriptor_limit_in_words());
      } else if (errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        return pause_accepting(error_from_errno(errno, "accept").message);
      }  // any other error concerns one client, which is gone already
    }
  }

  // Clients wait in the kernel's queue meanwhile. Without the pause the loop would spin. Logged
  // once, because usually all workers of a round wait.
  void pause_accepting(const std::string& why) {
    if (!std::exchange(has_told_of_shortage_, true)) {
      next_log_ = {};
      log("cannot accept another client, new ones wait: " + why);
    }
    watch(EPOLL_CTL_DEL, listener_.get(), 0, kListenerEvent);
    is_paused_ = true;
  }

  void resume_accepting() {
    is_paused_ = !watch(EPOLL_CTL_ADD, listener_.get(), EPOLLIN, kListenerEvent);
  }

  void wake() {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(wake_.get(), &one, sizeof one));
  }

  void open_adopted() {
    std::uint64_t count;
    static_cast<void>(!::read(wake_.get(), &count, sizeof count));
    std::vector<Adopted> adopted;
    std::function<bool(std::string_view)> is_obsolete;
    {
      const std::scoped_lock lock(adopted_mutex_);
      adopted.swap(adopted_);
      is_obsolete.swap(is_obsolete_);
    }
    if (is_obsolete) core_.erase_if(is_obsolete);
    look_at_waits();
    for (auto& [connection, received] : adopted) {
      prepare_connection(connection.get());
      if (StoreConnection* session = open(std::move(connection))) serve(*session, received);
    }
  }

  void look_at_waits() {
    constexpr std::size_t kShown = 100;
    {
      const std::scoped_lock lock(adopted_mutex_);
      if (!std::exchange(waits_are_asked_for_, false)) return;
    }
    std::vector<StoreWait> found;
    for (const auto& session : sessions_) {
      if (!session || found.size() == kShown) continue;
      const std::string_view key = core_.awaited(session->client);
      if (!key.empty()) found.push_back({session->peer(), std::string(key), session->asked_at});
    }
    const std::scoped_lock lock(adopted_mutex_);
    waits_ = std::move(found);
  }

  // Null: epoll has no memory.
  StoreConnection* open(UniqueFd socket) {
    const ClientId client = core_.connect();
    if (client >= sessions_.size()) sessions_.resize(client + 1);
    auto session = std::make_unique<StoreConnection>();
    session->socket = std::move(socket);
    session->client = client;
    if (!watch(EPOLL_CTL_ADD, session->socket.get(), EPOLLIN, client)) {
      core_.disconnect(client, released_);
      return nullptr;
    }
    sessions_[client] = std::move(session);
    ++open_sessions_;
    return sessions_[client].get();
  }

  // --- receiving ---

  void receive(StoreConnection& session) {
    for (int i = 0; i < kReadsInARow; ++i) {
      const auto direct = session.decoder.direct_space();
      const std::span<char> space =
          direct.empty() ? std::span(read_buffer_.get(), kReadBytes) : direct;
      const ssize_t got = ::recv(session.socket.get(), space.data(), space.size(), 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (got <= 0) return finish(session);
      std::string_view input;
      if (direct.empty()) {
        input = {space.data(), static_cast<std::size_t>(got)};
      } else {
        session.decoder.commit_direct(static_cast<std::size_t>(got));
      }
      if (!serve(session, input) || session.backlog) return;
      if (static_cast<std::size_t>(got) < space.size()) return;
    }
  }

  // False if this has ended the session.
  bool serve(StoreConnection& session, std::string_view input) {
    Request request;
    for (;;) {
      // A few bytes of request may cause megabytes of replies: send them early, so that a client
      // that is gone or does not read is noticed early.
      if (replies_of(session).unsent() > kSendFrom) {
        if (!send(session)) return false;
        if (replies_of(session).unsent() > limits::kMaxUnreadReplyBytes) {
          return pause(session, input);
        }
      }
      const auto status = session.decoder.next(input, request);
      if (status == RequestDecoder::Status::kNeedMore) break;
      if (status == RequestDecoder::Status::kBroken)
        return reject(session, session.decoder.fault());
      ++requests_;
      const auto verdict = core_.handle(session.client, request, replies_of(session), released_);
      if (verdict != StoreCore::Verdict::kServed)
        return reject(session, StoreCore::reason_of(verdict));
    }
    session.asked_at = std::chrono::steady_clock::now();
    return send(session) && account(session);
  }

  // The client sends requests but does not read the replies. Its requests are not processed, and
  // finally not received, until it has read.
  bool pause(StoreConnection& session, std::string_view input) {
    session.backlog = std::make_unique<std::string>(input);
    watch(EPOLL_CTL_MOD, session.socket.get(), EPOLLOUT, session.client);
    return account(session);
  }

  // Null if this has ended the session.
  StoreConnection* go_on(StoreConnection& session) {
    const auto backlog = std::exchange(session.backlog, nullptr);
    if (!serve(session, *backlog)) return nullptr;
    if (session.backlog) return &session;
    const std::uint32_t more = session.unsent ? EPOLLOUT : 0U;
    watch(EPOLL_CTL_MOD, session.socket.get(), EPOLLIN | more, session.client);
    return &session;
  }

  // Counts the session's memory for the store's limit; ends the session if it asked for too much.
  bool account(StoreConnection& session) {
    const std::size_t before = session.held_bytes;
    session.held_bytes = session.bytes_in_memory();
    if (session.held_bytes == before) return true;
    outside_bytes_ += session.held_bytes - before;
    core_.set_outside_bytes(outside_bytes_);
    if (session.held_bytes < before || core_.bytes() + outside_bytes_ <= core_.memory_limit())
      return true;
    return reject(session, StoreCore::reason_of(StoreCore::Verdict::kNoMemory));
  }

  // --- sending ---

  ReplyQueue& replies_of(StoreConnection& session) {
    return session.unsent ? *session.unsent : reply_;
  }

  // Sends the replies gathered for this session, as far as the client takes them. False if this has
  // ended the session.
  bool send(StoreConnection& session) {
    // Older unsent replies go first, when the socket is ready. Beyond the limit, try to send now,
    // so that the limit applies to the true amount.
    ReplyQueue& replies = replies_of(session);
    if (session.unsent && replies.unsent() <= limits::kMaxUnreadReplyBytes) return true;
    if (!session.flush(replies)) {
      reply_ = ReplyQueue();
      close(session);
      return false;
    }
    if (session.unsent || reply_.empty()) return true;
    session.unsent = std::make_unique<ReplyQueue>(std::exchange(reply_, ReplyQueue()));
    watch(EPOLL_CTL_MOD, session.socket.get(), EPOLLIN | EPOLLOUT, session.client);
    return true;
  }

  // The socket takes more. Null if this has ended the session.
  StoreConnection* send_waiting(StoreConnection& session) {
    if (!session.unsent) return &session;
    const bool is_alive = session.flush(*session.unsent);
    const bool is_empty = session.unsent->empty();
    if (!is_alive || (is_empty && session.is_finished)) {
      close(session);
      return nullptr;
    }
    const bool has_read = session.unsent->unsent() <= kSendFrom;
    if (is_empty) {
      session.unsent.reset();
      watch(EPOLL_CTL_MOD, session.socket.get(), EPOLLIN, session.client);
    }
    if (session.backlog && has_read) return go_on(session);
    return account(session) ? &session : nullptr;
  }

  void deliver_releases() {
    for (std::size_t i = 0; i < released_.size(); ++i) {  // one that ends here may release more
      StoreConnection* session = sessions_[released_[i]].get();
      if (session == nullptr || session->is_finished) continue;
      replies_of(*session).byte(wire::kStopWaiting);
      if (send(*session)) account(*session);
    }
    released_.clear();
  }

  // --- ending ---

  // The client sends nothing more: its waiting ends, its replies are still sent.
  void finish(StoreConnection& session) {
    if (!session.unsent) return close(session);
    session.is_finished = true;
    Request cancel;
    cancel.query = wire::Query::kCancelWait;
    ReplyQueue unheard;
    core_.handle(session.client, cancel, unheard, released_);
    watch(EPOLL_CTL_MOD, session.socket.get(), EPOLLOUT, session.client);
  }

  bool reject(StoreConnection& session, const char* reason) {
    log("closed " + session.peer_name() + ": it " + reason);
    if (!session.unsent) session.flush(reply_);  // replies to the requests before the bad one
    reply_ = ReplyQueue();
    close(session);
    return false;
  }

  void close(StoreConnection& session) {
    outside_bytes_ -= session.held_bytes;
    core_.set_outside_bytes(outside_bytes_);
    core_.disconnect(session.client, released_);
    --open_sessions_;
    sessions_[session.client].reset();
  }

  // Closing a connection takes the kernel about 5 us, mostly for notifying the peer: 10,000 clients
  // must not delay the next round. They are not served any more; only their sockets are still open.
  void close_in_background() {
    std::vector<UniqueFd> descriptors;
    descriptors.reserve(open_sessions_ + 1);
    descriptors.push_back(std::move(epoll_));
    for (const auto& session : sessions_) {
      if (session) descriptors.push_back(std::move(session->socket));
    }
    destroy_on_thread(std::move(descriptors));
  }

  void log(const std::string& line) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_log_) {
      ++lines_dropped_;
      return;
    }
    next_log_ = now + kLogInterval;
    std::string text = "store " + bound_.to_string() + ": " + line;
    if (lines_dropped_ > 0) {
      text += " (and " + std::to_string(std::exchange(lines_dropped_, 0)) +
              " more since the last line)";
    }
    if (log_) return log_(text);
    std::fprintf(stderr, "ddprun: %s\n", printable(text).c_str());
  }

  Endpoint bound_;
  UniqueFd listener_;
  UniqueFd epoll_;
  UniqueFd wake_;
  std::atomic<bool> is_stopping_ = false;
  std::mutex adopted_mutex_;
  std::vector<Adopted> adopted_;
  std::function<bool(std::string_view)> is_obsolete_;  // the latest that was asked for
  bool waits_are_asked_for_ = false;                   // guarded likewise
  std::vector<StoreWait> waits_;                       // likewise
  bool is_paused_ = false;
  bool has_told_of_shortage_ = false;
  std::size_t max_sessions_;
  std::size_t open_sessions_ = 0;

  StoreCore core_;
  std::function<void(std::string_view)> log_;
  std::chrono::steady_clock::time_point next_log_;
  std::size_t lines_dropped_ = 0;

  std::unique_ptr<char[]> read_buffer_;
  ReplyQueue reply_;  // of the session being served; empty between sessions
  std::vector<ClientId> released_;
  std::vector<std::unique_ptr<StoreConnection>> sessions_;  // by ClientId
  std::size_t outside_bytes_ = 0;
  std::uint64_t requests_ = 0;
  struct {
    std::atomic<std::uint64_t> requests = 0, connections = 0, keys = 0, waiting = 0,
                               memory_bytes = 0;
  } shown_;
  Thread thread_;  // last: it ends before the members that it uses
};

}  // namespace

Result<std::unique_ptr<StoreServer>> StoreServer::start(const StoreServerOptions& options) {
  if (!options.listens) return Loop::start({}, options);
  auto listener =
      open_listener({options.address, options.port, options.port_range, options.listen_fd});
  if (!listener) return fail(std::move(listener.error()));
  return Loop::start(std::move(*listener), options);
}

}  // namespace ddprun::rdzv
