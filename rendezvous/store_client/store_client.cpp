#include "rendezvous/store_client/store_client.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>

#include "rendezvous/common/limits.h"
#include "rendezvous/common/text/durations.h"
#include "rendezvous/common/text/lists.h"

namespace ddprun::rdzv {
namespace {

using std::chrono::milliseconds;
using wire::Query;
using wire::RequestEncoder;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kReadBytes = std::size_t{16} * 1024;
// How long after a wait's own deadline the server may take to confirm that it is cancelled.
constexpr std::chrono::seconds kCancelGrace{10};
constexpr milliseconds kFirstRetry{10};
constexpr milliseconds kLongestRetry{1000};

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 3'600'000));
}

// False: the deadline has passed, or this process cannot wait.
bool wait_for(short events, int socket, Clock::time_point deadline) {
  pollfd poller{socket, events, 0};
  for (;;) {
    const int ready = ::poll(&poller, 1, milliseconds_until(deadline));
    if (ready > 0) return true;
    if (ready < 0 ? errno != EINTR : Clock::now() >= deadline) return false;
  }
}

// ---- connecting

// Whether the server may still become available.
bool may_pass(const Error& error) {
  return error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kClosed ||
         error.code == ErrorCode::kTimeout;
}

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Result<Addresses> look_up(const Endpoint& server) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error =
      ::getaddrinfo(server.host.c_str(), std::to_string(server.port).c_str(), &hints, &list);
  if (error == 0) return Addresses(list, ::freeaddrinfo);
  return fail(ErrorCode::kUnavailable,
              "the name '" + server.host + "' cannot be resolved: " + ::gai_strerror(error));
}

Result<UniqueFd> connect_to(const addrinfo& address, Clock::time_point deadline) {
  UniqueFd socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return fail(error_from_errno(errno, "socket"));
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return socket;
  if (errno != EINPROGRESS) return fail(error_from_errno(errno, "connect"));
  if (!wait_for(POLLOUT, socket.get(), deadline)) {
    return fail(ErrorCode::kTimeout, "connect: no answer");
  }
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return fail(error_from_errno(error, "connect"));
  return socket;
}

Result<UniqueFd> connect_to(const Endpoint& server, Clock::time_point deadline) {
  return look_up(server).and_then([&](const Addresses& addresses) {
    Result<UniqueFd> socket = fail(ErrorCode::kUnavailable, "the name has no address");
    for (const addrinfo* at = addresses.get(); at != nullptr && !socket; at = at->ai_next) {
      socket = connect_to(*at, deadline);
    }
    return socket;
  });
}

Error handshake_error(Error error) {
  if (error.code == ErrorCode::kTimeout)
    error.message = "it accepts connections but does not answer; is it a store?";
  if (error.code == ErrorCode::kClosed)
    error.message = "it closes the connection at the first request; is it a store?";
  return error;
}

// ---- words

std::string in_quotes(std::vector<std::string> keys) {
  constexpr std::size_t kShown = 10;
  for (std::string& key : keys) key = "'" + key + "'";
  return joined_some(keys, kShown);
}

std::string lost() { return std::string("the connection is lost: ") + std::strerror(errno); }

}  // namespace

Result<std::unique_ptr<StoreClient>> StoreClient::connect(const StoreClientOptions& options) {
  const Deadline deadline = Clock::now() + options.connect_timeout;
  std::minstd_rand random(static_cast<unsigned>(Clock::now().time_since_epoch().count()) ^
                          static_cast<unsigned>(::getpid()));
  for (auto pause = kFirstRetry;; pause = std::min(pause * 3 / 2, kLongestRetry)) {
    auto store = try_connect(options, deadline);
    if (store) return store;
    // 0.5 to 1.5 times the pause, at random, because all clients of a job start at the same moment.
    const auto next = Clock::now() + pause / 2 + pause * static_cast<int>(random() % 1024) / 1024;
    if (!may_pass(store.error()) || next >= deadline) {
      const std::string limit =
          may_pass(store.error()) ? " within " + duration_text(options.connect_timeout) : "";
      store.error().message = "cannot connect to the store at " + options.server.to_string() +
                              limit + ": " + store.error().message;
      return store;
    }
    ::poll(nullptr, 0, milliseconds_until(next));
  }
}

StoreClient::StoreClient(StoreClientOptions options, UniqueFd socket)
    : options_(std::move(options)),
      timeout_(options_.timeout),
      socket_(std::move(socket)),
      input_(new char[kReadBytes]) {}

Result<std::unique_ptr<StoreClient>> StoreClient::clone() const {
  StoreClientOptions options = options_;
  options.timeout = timeout_;
  return connect(options);
}

Result<std::unique_ptr<StoreClient>> StoreClient::try_connect(const StoreClientOptions& options,
                                                              Deadline deadline) {
  auto socket = connect_to(options.server, deadline);
  if (!socket) return fail(std::move(socket.error()));
  std::unique_ptr<StoreClient> client(new StoreClient(options, std::move(*socket)));
  const auto nonce = static_cast<std::uint32_t>(::getpid());
  const std::string hello = wire::handshake(nonce);
  if (auto sent = client->send(hello, deadline); !sent) return fail(std::move(sent.error()));
  const auto echo = client->read_number<std::uint32_t>(deadline);
  if (!echo) return fail(handshake_error(echo.error()));
  if (*echo != nonce) return fail(ErrorCode::kProtocol, "what listens there is no store");
  return client;
}

void StoreClient::shut_down() { ::shutdown(socket_.get(), SHUT_RDWR); }

// --- the calls --------------------------------------------------------------------------------

Result<void> StoreClient::set(std::string_view key, std::string_view value) {
  return put(RequestEncoder(Query::kSet).key(key), value);
}

Result<void> StoreClient::append(std::string_view key, std::string_view value) {
  return put(RequestEncoder(Query::kAppend).key(key), value);
}

Result<void> StoreClient::queue_push(std::string_view key, std::string_view value) {
  return put(RequestEncoder(Query::kQueuePush).key(key), value);
}

Result<void> StoreClient::multi_set(const Keys& keys, const std::vector<std::string>& values) {
  if (keys.size() != values.size()) {
    return fail(ErrorCode::kInvalidArgument, "multi_set of " + std::to_string(keys.size()) +
                                                 " keys with " + std::to_string(values.size()) +
                                                 " values");
  }
  RequestEncoder request(Query::kMultiSet);
  request.number<std::uint64_t>(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) request.key(keys[i]).bytes(values[i]);
  const std::scoped_lock lock(mutex_);
  return send(request.str(), in_time());
}

Result<std::string> StoreClient::get(std::string_view key, Milliseconds timeout) {
  const std::scoped_lock lock(mutex_);
  return wait_until({std::string(key)}, timeout, after(timeout)).and_then([&] {
    return ask(RequestEncoder(Query::kGet).key(key), &StoreClient::read_bytes);
  });
}

Result<std::vector<std::string>> StoreClient::multi_get(const Keys& keys, Milliseconds timeout) {
  if (keys.empty()) return Keys();
  const std::scoped_lock lock(mutex_);
  return wait_until(keys, timeout, after(timeout)).and_then([&] {
    const Deadline deadline = in_time();
    return send(RequestEncoder(Query::kMultiGet).keys(keys).str(), deadline).and_then([&] {
      return read_list(keys.size(), deadline);
    });
  });
}

Result<void> StoreClient::wait(const Keys& keys, Milliseconds timeout) {
  const std::scoped_lock lock(mutex_);
  return wait_until(keys, timeout, after(timeout));
}

Result<bool> StoreClient::check(const Keys& keys) {
  const std::scoped_lock lock(mutex_);
  const auto answer =
      ask(RequestEncoder(Query::kCheck).keys(keys), &StoreClient::read_number<char>);
  if (!answer) return fail(answer.error());
  if (*answer != wire::kReady && *answer != wire::kNotReady) return impossible_answer("CHECK");
  return *answer == wire::kReady;
}

Result<std::int64_t> StoreClient::add(std::string_view key, std::int64_t delta) {
  return ask_number(RequestEncoder(Query::kAdd).key(key).number(delta));
}

Result<std::string> StoreClient::compare_set(std::string_view key, std::string_view expected,
                                             std::string_view desired) {
  const std::scoped_lock lock(mutex_);
  const Deadline deadline = in_time();
  RequestEncoder request(Query::kCompareSet);
  request.key(key).bytes(expected).number<std::uint64_t>(desired.size());
  return send(request.str(), deadline, desired).and_then([&] { return read_bytes(deadline); });
}

Result<bool> StoreClient::delete_key(std::string_view key) {
  return ask_number(RequestEncoder(Query::kDeleteKey).key(key)).map([](std::int64_t removed) {
    return removed > 0;
  });
}

Result<std::int64_t> StoreClient::num_keys() {
  return ask_number(RequestEncoder(Query::kGetNumKeys));
}

Result<StoreClient::Keys> StoreClient::list_keys() {
  const std::scoped_lock lock(mutex_);
  const Deadline deadline = in_time();
  auto keys = send(RequestEncoder(Query::kListKeys).str(), deadline)
                  .and_then([&] { return read_number<std::int64_t>(deadline); })
                  .and_then([&](std::int64_t count) { return read_list(count, deadline); });
  if (!keys) return keys;
  std::erase_if(*keys, [](const std::string& key) { return !key.starts_with('/'); });
  for (std::string& key : *keys) key.erase(0, 1);
  return keys;
}

Result<std::string> StoreClient::queue_pop(std::string_view key, Milliseconds timeout) {
  const std::scoped_lock lock(mutex_);
  const Deadline deadline = after(timeout);
  for (;;) {
    auto item =
        wait_until({std::string(key)}, timeout, deadline).and_then([&] { return pop(key); });
    if (!item) return fail(std::move(item.error()));
    if (*item) return std::move(**item);
  }
}

Result<std::optional<std::string>> StoreClient::try_queue_pop(std::string_view key) {
  const std::scoped_lock lock(mutex_);
  return pop(key);
}

Result<std::optional<std::string>> StoreClient::pop(std::string_view key) {
  const Deadline deadline = in_time();
  const auto length = send(RequestEncoder(Query::kQueuePop).key(key).str(), deadline).and_then([&] {
    return read_number<std::int64_t>(deadline);
  });
  if (!length) return fail(length.error());
  if (*length <= 0) return std::nullopt;
  return read_bytes(deadline).map([](std::string item) { return std::optional(std::move(item)); });
}

Result<std::int64_t> StoreClient::queue_len(std::string_view key) {
  return ask_number(RequestEncoder(Query::kQueueLen).key(key));
}

Result<void> StoreClient::barrier(std::string_view key, std::int64_t world_size,
                                  Milliseconds timeout) {
  const std::scoped_lock lock(mutex_);
  const Deadline deadline = after(timeout);
  return send(RequestEncoder(Query::kBarrier).key(key).number(world_size).str(), in_time())
      .and_then([&] {
        return await_release(deadline, "the barrier '" + std::string(key) +
                                           "' was not reached by " + std::to_string(world_size) +
                                           " clients within " + duration_text(timeout));
      });
}

Result<void> StoreClient::ping() {
  const std::scoped_lock lock(mutex_);
  constexpr std::uint32_t kNonce = 0x676e6970;
  const auto echo =
      ask(RequestEncoder(Query::kPing).number(kNonce), &StoreClient::read_number<std::uint32_t>);
  if (!echo) return fail(echo.error());
  if (*echo != kNonce) return give_up(ErrorCode::kProtocol, "a wrong answer to PING");
  return {};
}

Result<std::int64_t> StoreClient::count_in() {
  return ask_number(RequestEncoder(Query::kAdd).bytes("init/").number<std::int64_t>(1));
}

// --- requests and replies ---------------------------------------------------------------------

Result<void> StoreClient::put(RequestEncoder& request, std::string_view value) {
  const std::scoped_lock lock(mutex_);
  return send(request.number<std::uint64_t>(value.size()).str(), in_time(), value);
}

template <typename T>
Result<T> StoreClient::ask(const RequestEncoder& request,
                           Result<T> (StoreClient::*take)(Deadline)) {
  const Deadline deadline = in_time();
  return send(request.str(), deadline).and_then([&] { return (this->*take)(deadline); });
}

Result<std::int64_t> StoreClient::ask_number(const RequestEncoder& request) {
  const std::scoped_lock lock(mutex_);
  return ask(request, &StoreClient::read_number<std::int64_t>);
}

Result<void> StoreClient::wait_until(const Keys& keys, Milliseconds timeout, Deadline deadline) {
  return send(RequestEncoder(Query::kWait).keys(keys).str(), in_time()).and_then([&] {
    return await_release(deadline,
                         "not set within " + duration_text(timeout) + ": " + in_quotes(keys));
  });
}

// Reads the answer to WAIT or BARRIER; at the deadline, sends the cancellation and reads its
// answer. The release may cross the cancellation: then both answers come, and the keys are set.
Result<void> StoreClient::await_release(Deadline deadline, const std::string& missed) {
  if (input_begin_ < input_end_ || wait_for(POLLIN, socket_.get(), deadline)) {
    return read_answer(wire::kStopWaiting, "WAIT", in_time());
  }
  const Deadline grace = after(kCancelGrace);
  const auto answer = send(RequestEncoder(Query::kCancelWait).str(), grace).and_then([&] {
    return read_number<char>(grace);
  });
  if (!answer) return fail(answer.error());
  if (*answer == wire::kWaitCanceled) {
    return fail(Error{ErrorCode::kTimeout, missed, {{"store", options_.server.to_string()}}});
  }
  if (*answer != wire::kStopWaiting) return impossible_answer("WAIT");
  return read_answer(wire::kWaitCanceled, "CANCEL_WAIT", grace);
}

Result<void> StoreClient::read_answer(char only, const char* to, Deadline deadline) {
  const auto answer = read_number<char>(deadline);
  if (!answer) return fail(answer.error());
  if (*answer != only) return impossible_answer(to);
  return {};
}

// The value is sent without being copied.
Result<void> StoreClient::send(std::string_view request, Deadline deadline,
                               std::string_view value) {
  if (given_up_) return fail(*given_up_);
  std::array<iovec, 2> vectors{{{const_cast<char*>(request.data()), request.size()},
                                {const_cast<char*>(value.data()), value.size()}}};
  for (std::size_t left = request.size() + value.size(); left > 0;) {
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = vectors.size();
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) {
      if (wait_for(POLLOUT, socket_.get(), deadline)) continue;
      return give_up(ErrorCode::kTimeout, "it takes no more requests");
    }
    if (sent < 0) return give_up(ErrorCode::kClosed, lost());
    auto done = static_cast<std::size_t>(sent);
    left -= done;
    for (iovec& vector : vectors) {
      const std::size_t part = std::min(done, vector.iov_len);
      vector.iov_base = static_cast<char*>(vector.iov_base) + part;
      vector.iov_len -= part;
      done -= part;
    }
  }
  return {};
}

Result<void> StoreClient::read(char* to, std::size_t count, Deadline deadline) {
  if (given_up_) return fail(*given_up_);
  while (count > 0) {
    if (input_begin_ < input_end_) {
      const std::size_t taken = std::min(count, input_end_ - input_begin_);
      std::memcpy(to, input_.get() + input_begin_, taken);
      input_begin_ += taken;
      to += taken;
      count -= taken;
      continue;
    }
    // Long replies are read directly into place, short ones through a buffer that saves system
    // calls.
    const bool is_direct = count >= kReadBytes;
    const ssize_t got =
        ::recv(socket_.get(), is_direct ? to : input_.get(), is_direct ? count : kReadBytes, 0);
    if (got > 0 && is_direct) {
      to += got;
      count -= static_cast<std::size_t>(got);
    } else if (got > 0) {
      input_begin_ = 0;
      input_end_ = static_cast<std::size_t>(got);
    }
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    if (got == 0) return give_up(ErrorCode::kClosed, "it closed the connection");
    if (errno != EAGAIN) return give_up(ErrorCode::kClosed, lost());
    if (!wait_for(POLLIN, socket_.get(), deadline)) {
      return give_up(ErrorCode::kTimeout, "it does not answer");
    }
  }
  return {};
}

template <typename T>
Result<T> StoreClient::read_number(Deadline deadline) {
  char bytes[sizeof(T)];
  return read(bytes, sizeof bytes, deadline).map([&] { return wire::load<T>(bytes); });
}

Result<std::string> StoreClient::read_bytes(Deadline deadline) {
  const auto size = read_number<std::uint64_t>(deadline);
  if (!size) return fail(size.error());
  if (*size > limits::kMaxReplyBytes)
    return give_up(ErrorCode::kProtocol, "a reply of an impossible length");
  std::string bytes(*size, '\0');
  if (auto got = read(bytes.data(), bytes.size(), deadline); !got) return fail(got.error());
  return bytes;
}

Result<std::vector<std::string>> StoreClient::read_list(std::int64_t count, Deadline deadline) {
  std::vector<std::string> list;
  for (; count > 0; --count) {
    auto each = read_bytes(deadline);
    if (!each) return fail(std::move(each.error()));
    list.push_back(std::move(*each));
  }
  return list;
}

tl::unexpected<Error> StoreClient::impossible_answer(const std::string& to) {
  return give_up(ErrorCode::kProtocol, "an impossible answer to " + to);
}

tl::unexpected<Error> StoreClient::give_up(ErrorCode code, const std::string& what) {
  given_up_ = Error{code, "the store at " + options_.server.to_string() + ": " + what};
  shut_down();
  return fail(*given_up_);
}

}  // namespace ddprun::rdzv
