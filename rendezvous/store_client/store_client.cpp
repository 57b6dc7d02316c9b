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
#include "rendezvous/store_client/store_client_errors.h"

namespace ddprun::rdzv {
namespace {

using wire::Query;
using wire::RequestEncoder;

constexpr std::size_t kReadBytes = 16 * 1024;

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Result<Addresses> look_up(const Endpoint& server) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error =
      ::getaddrinfo(server.host.c_str(), std::to_string(server.port).c_str(), &hints, &list);
  if (error != 0) {
    return fail(ErrorCode::kUnavailable,
                "the name '" + server.host + "' cannot be resolved: " + ::gai_strerror(error));
  }
  return Addresses(list);
}

int milliseconds_until(std::chrono::steady_clock::time_point deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 3'600'000));
}

Result<UniqueFd> connect_to(const addrinfo& address,
                            std::chrono::steady_clock::time_point deadline) {
  UniqueFd socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return fail(error_from_errno(errno, "socket"));
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return socket;
  if (errno != EINPROGRESS) return fail(error_from_errno(errno, "connect"));
  pollfd poller{socket.get(), POLLOUT, 0};
  int ready = 0;
  do {
    ready = ::poll(&poller, 1, milliseconds_until(deadline));
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) return fail(ErrorCode::kTimeout, "connect: no answer");
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return fail(error_from_errno(error, "connect"));
  return socket;
}

Result<UniqueFd> connect_to(const Endpoint& server,
                            std::chrono::steady_clock::time_point deadline) {
  auto addresses = look_up(server);
  if (!addresses) return fail(std::move(addresses.error()));
  Result<UniqueFd> socket = fail(ErrorCode::kUnavailable, "the name has no address");
  for (const addrinfo* at = addresses->get(); at != nullptr && !socket; at = at->ai_next) {
    socket = connect_to(*at, deadline);
  }
  return socket;
}

}  // namespace

// --- connecting -------------------------------------------------------------------------------

Result<std::unique_ptr<StoreClient>> StoreClient::connect(const StoreClientOptions& options) {
  const Deadline deadline = Clock::now() + options.connect_timeout;
  std::minstd_rand random(static_cast<unsigned>(Clock::now().time_since_epoch().count()) ^
                          static_cast<unsigned>(::getpid()));
  for (auto pause = client::kFirstRetry;; pause = client::next_retry(pause)) {
    auto store = try_connect(options, deadline);
    if (store) return store;
    const auto next = Clock::now() + client::spread(pause, random());
    if (!client::may_pass(store.error()) || next >= deadline) {
      return fail(client::connect_error(std::move(store.error()), options));
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
  auto greeted = client->handshake(deadline);
  if (!greeted) return fail(std::move(greeted.error()));
  return client;
}

Result<void> StoreClient::handshake(Deadline deadline) {
  const auto nonce = static_cast<std::uint32_t>(::getpid());
  const std::string hello = wire::handshake(nonce);
  const std::string_view part = hello;
  if (auto sent = send({&part, 1}, deadline); !sent) return sent;
  const auto echo = read_number<std::uint32_t>(deadline);
  if (!echo) return fail(client::handshake_error(echo.error()));
  if (*echo != nonce) return fail(client::no_store());
  return {};
}

void StoreClient::shut_down() { ::shutdown(socket_.get(), SHUT_RDWR); }

// --- the calls --------------------------------------------------------------------------------

Result<void> StoreClient::set(std::string_view key, std::string_view value) {
  const std::scoped_lock lock(mutex_);
  return send_with_value(std::move(RequestEncoder(Query::kSet).key(key)), value,
                         after(timeout_.load()));
}

Result<void> StoreClient::append(std::string_view key, std::string_view value) {
  const std::scoped_lock lock(mutex_);
  return send_with_value(std::move(RequestEncoder(Query::kAppend).key(key)), value,
                         after(timeout_.load()));
}

Result<void> StoreClient::multi_set(const Keys& keys, const std::vector<std::string>& values) {
  if (keys.size() != values.size()) {
    return fail(client::uneven_lists(keys.size(), values.size()));
  }
  RequestEncoder request(Query::kMultiSet);
  request.number<std::uint64_t>(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) request.key(keys[i]).bytes(values[i]);
  const std::scoped_lock lock(mutex_);
  return send(request, after(timeout_.load()));
}

Result<std::string> StoreClient::get(std::string_view key, Milliseconds timeout) {
  const std::scoped_lock lock(mutex_);
  const Deadline deadline = after(timeout);
  if (auto waited = wait_until({std::string(key)}, timeout, deadline); !waited)
    return fail(waited.error());
  const Deadline answer = after(timeout_.load());
  if (auto sent = send(RequestEncoder(Query::kGet).key(key), answer); !sent)
    return fail(sent.error());
  return read_bytes(answer);
}

Result<std::vector<std::string>> StoreClient::multi_get(const Keys& keys, Milliseconds timeout) {
  std::vector<std::string> values;
  if (keys.empty()) return values;
  const std::scoped_lock lock(mutex_);
  if (auto waited = wait_until(keys, timeout, after(timeout)); !waited) return fail(waited.error());
  const Deadline answer = after(timeout_.load());
  if (auto sent = send(RequestEncoder(Query::kMultiGet).keys(keys), answer); !sent)
    return fail(sent.error());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    auto value = read_bytes(answer);
    if (!value) return fail(std::move(value.error()));
    values.push_back(std::move(*value));
  }
  return values;
}

Result<void> StoreClient::wait(const Keys& keys, Milliseconds timeout) {
  const std::scoped_lock lock(mutex_);
  return wait_until(keys, timeout, after(timeout));
}

Result<bool> StoreClient::check(const Keys& keys) {
  const std::scoped_lock lock(mutex_);
  const Deadline deadline = after(timeout_.load());
  if (auto sent = send(RequestEncoder(Query::kCheck).keys(keys), deadline); !sent)
    return fail(sent.error());
  const auto answer = read_number<char>(deadline);
  if (!answer) return fail(answer.error());
  if (*answer != wire::kReady && *answer != wire::kNotReady)
    return give_up(ErrorCode::kProtocol, "an impossible answer to CHECK");
  return *answer == wire::kReady;
}

Result<std::int64_t> StoreClient::add(std::string_view key, std::int64_t delta) {
  return ask_number(RequestEncoder(Query::kAdd).key(key).number(delta));
}

Result<std::string> StoreClient::compare_set(std::string_view key, std::string_view expected,
                                             std::string_view desired) {
  const std::scoped_lock lock(mutex_);
  const Deadline deadline = after(timeout_.load());
  RequestEncoder request(Query::kCompareSet);
  request.key(key).bytes(expected);
  if (auto sent = send_with_value(std::move(request), desired, deadline); !sent)
    return fail(sent.error());
  return read_bytes(deadline);
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
  const Deadline deadline = after(timeout_.load());
  if (auto sent = send(RequestEncoder(Query::kListKeys), deadline); !sent)
    return fail(sent.error());
  const auto count = read_number<std::int64_t>(deadline);
  if (!count) return fail(count.error());
  Keys keys;
  for (std::int64_t i = 0; i < *count; ++i) {
    auto key = read_bytes(deadline);
    if (!key) return fail(std::move(key.error()));
    if (key->starts_with('/')) keys.push_back(key->substr(1));
  }
  return keys;
}

Result<void> StoreClient::queue_push(std::string_view key, std::string_view value) {
  const std::scoped_lock lock(mutex_);
  return send_with_value(std::move(RequestEncoder(Query::kQueuePush).key(key)), value,
                         after(timeout_.load()));
}

Result<std::string> StoreClient::queue_pop(std::string_view key, Milliseconds timeout) {
  const std::scoped_lock lock(mutex_);
  const Deadline deadline = after(timeout);
  for (;;) {
    if (auto waited = wait_until({std::string(key)}, timeout, deadline); !waited)
      return fail(waited.error());
    auto item = pop(key, after(timeout_.load()));
    if (!item) return fail(std::move(item.error()));
    if (*item) return std::move(**item);
  }
}

Result<std::optional<std::string>> StoreClient::try_queue_pop(std::string_view key) {
  const std::scoped_lock lock(mutex_);
  return pop(key, after(timeout_.load()));
}

Result<std::optional<std::string>> StoreClient::pop(std::string_view key, Deadline deadline) {
  if (auto sent = send(RequestEncoder(Query::kQueuePop).key(key), deadline); !sent)
    return fail(sent.error());
  const auto length = read_number<std::int64_t>(deadline);
  if (!length) return fail(length.error());
  if (*length <= 0) return std::nullopt;
  auto item = read_bytes(deadline);
  if (!item) return fail(std::move(item.error()));
  return std::move(*item);
}

Result<std::int64_t> StoreClient::queue_len(std::string_view key) {
  return ask_number(RequestEncoder(Query::kQueueLen).key(key));
}

Result<void> StoreClient::barrier(std::string_view key, std::int64_t world_size,
                                  Milliseconds timeout) {
  const std::scoped_lock lock(mutex_);
  const Deadline deadline = after(timeout);
  if (auto sent =
          send(RequestEncoder(Query::kBarrier).key(key).number(world_size), after(timeout_.load()));
      !sent) {
    return sent;
  }
  return await_release(deadline, client::not_reached(key, world_size, timeout));
}

Result<void> StoreClient::ping() {
  const std::scoped_lock lock(mutex_);
  const Deadline deadline = after(timeout_.load());
  constexpr std::uint32_t kNonce = 0x676e6970;
  if (auto sent = send(RequestEncoder(Query::kPing).number(kNonce), deadline); !sent) return sent;
  const auto echo = read_number<std::uint32_t>(deadline);
  if (!echo) return fail(echo.error());
  if (*echo != kNonce) return give_up(ErrorCode::kProtocol, "a wrong answer to PING");
  return {};
}

Result<std::int64_t> StoreClient::count_in() {
  return ask_number(RequestEncoder(Query::kAdd).bytes("init/").number<std::int64_t>(1));
}

// --- requests and replies ---------------------------------------------------------------------

Result<void> StoreClient::wait_until(const Keys& keys, Milliseconds timeout, Deadline deadline) {
  if (auto sent = send(RequestEncoder(Query::kWait).keys(keys), after(timeout_.load())); !sent)
    return sent;
  return await_release(deadline, client::not_set(keys, timeout));
}

// Reads the answer to WAIT or BARRIER; at the deadline, sends the cancellation and reads its
// answer. The release may cross the cancellation: then both answers come, and the keys are set.
Result<void> StoreClient::await_release(Deadline deadline, const std::string& missed) {
  if (input_begin_ == input_end_) {
    const auto ready = poll_for(POLLIN, deadline);
    if (!ready) return fail(ready.error());
    if (*ready == Readiness::kTimeout) {
      const Deadline grace = after(client::kCancelGrace);
      if (auto sent = send(RequestEncoder(Query::kCancelWait), grace); !sent) return sent;
      auto answer = read_number<char>(grace);
      if (!answer) return fail(answer.error());
      if (*answer == wire::kWaitCanceled) {
        return fail(Error{ErrorCode::kTimeout, missed, {{"store", options_.server.to_string()}}});
      }
      if (*answer != wire::kStopWaiting)
        return give_up(ErrorCode::kProtocol, "an impossible answer to WAIT");
      answer = read_number<char>(grace);
      if (!answer) return fail(answer.error());
      if (*answer != wire::kWaitCanceled)
        return give_up(ErrorCode::kProtocol, "an impossible answer to CANCEL_WAIT");
      return {};
    }
  }
  const auto answer = read_number<char>(after(timeout_.load()));
  if (!answer) return fail(answer.error());
  if (*answer != wire::kStopWaiting)
    return give_up(ErrorCode::kProtocol, "an impossible answer to WAIT");
  return {};
}

Result<std::int64_t> StoreClient::ask_number(const RequestEncoder& request) {
  const std::scoped_lock lock(mutex_);
  const Deadline deadline = after(timeout_.load());
  if (auto sent = send(request, deadline); !sent) return fail(sent.error());
  return read_number<std::int64_t>(deadline);
}

Result<void> StoreClient::send(const RequestEncoder& request, Deadline deadline) {
  const std::string_view part = request.str();
  return send({&part, 1}, deadline);
}

// Sends the value without copying it.
Result<void> StoreClient::send_with_value(RequestEncoder request, std::string_view value,
                                          Deadline deadline) {
  request.number<std::uint64_t>(value.size());
  const std::array<std::string_view, 2> parts{request.str(), value};
  return send(parts, deadline);
}

Result<void> StoreClient::send(Parts parts, Deadline deadline) {
  if (given_up_) return fail(*given_up_);
  std::array<iovec, 2> vectors{};
  std::size_t left = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    vectors[i] = {const_cast<char*>(parts[i].data()), parts[i].size()};
    left += parts[i].size();
  }
  while (left > 0) {
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = parts.size();
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      const auto ready = poll_for(POLLOUT, deadline);
      if (!ready) return fail(ready.error());
      if (*ready == Readiness::kTimeout)
        return give_up(ErrorCode::kTimeout, "it takes no more requests");
      continue;
    }
    if (sent < 0)
      return give_up(ErrorCode::kClosed, client::lost(/*is_closed=*/false, std::strerror(errno)));
    left -= static_cast<std::size_t>(sent);
    auto done = static_cast<std::size_t>(sent);
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
    if (got == 0) return give_up(ErrorCode::kClosed, client::lost(/*is_closed=*/true, ""));
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      return give_up(ErrorCode::kClosed, client::lost(/*is_closed=*/false, std::strerror(errno)));
    }
    const auto ready = poll_for(POLLIN, deadline);
    if (!ready) return fail(ready.error());
    if (*ready == Readiness::kTimeout) return give_up(ErrorCode::kTimeout, "it does not answer");
  }
  return {};
}

template <typename T>
Result<T> StoreClient::read_number(Deadline deadline) {
  char bytes[sizeof(T)];
  if (auto got = read(bytes, sizeof bytes, deadline); !got) return fail(got.error());
  return wire::load<T>(bytes);
}

Result<std::string> StoreClient::read_bytes(Deadline deadline) {
  const auto size = read_number<std::uint64_t>(deadline);
  if (!size) return fail(size.error());
  if (*size > limits::kMaxReplyBytes)
    return give_up(ErrorCode::kProtocol, client::kImpossibleLength);
  std::string bytes(*size, '\0');
  if (auto got = read(bytes.data(), bytes.size(), deadline); !got) return fail(got.error());
  return bytes;
}

Result<StoreClient::Readiness> StoreClient::poll_for(short events, Deadline deadline) {
  pollfd poller{socket_.get(), events, 0};
  for (;;) {
    const int ready = ::poll(&poller, 1, milliseconds_until(deadline));
    if (ready > 0) return Readiness::kReady;
    if (ready == 0 && Clock::now() >= deadline) return Readiness::kTimeout;
    if (ready < 0 && errno != EINTR)
      return give_up(ErrorCode::kIo, std::string("poll: ") + std::strerror(errno));
  }
}

tl::unexpected<Error> StoreClient::give_up(ErrorCode code, const std::string& what) {
  given_up_ = client::failure(options_.server, code, what);
  ::shutdown(socket_.get(), SHUT_RDWR);
  return fail(*given_up_);
}

}  // namespace ddprun::rdzv
