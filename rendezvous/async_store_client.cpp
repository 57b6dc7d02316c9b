#include "rendezvous/async_store_client.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <random>
#include <utility>

#include "rendezvous/base/limits.h"
#include "rendezvous/store_client_common.h"

namespace ddprun::rdzv {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using wire::Query;
using wire::RequestEncoder;

constexpr auto kToken = asio::as_tuple(asio::use_awaitable);

// Cancels an operation when its time is up. It holds a flag instead of the operation's own memory:
// a timer that fired may run its handler when the operation has completed and its frame is gone.
class Alarm {
 public:
  template <typename Cancel>
  Alarm(const asio::any_io_executor& executor, std::chrono::steady_clock::time_point deadline,
        Cancel cancel)
      : timer_(executor, deadline), state_(std::make_shared<State>()) {
    timer_.async_wait([state = state_, cancel](error_code error) {
      if (error || state->is_over) return;
      state->has_fired = true;
      cancel();
    });
  }
  ~Alarm() { state_->is_over = true; }
  bool has_fired() const { return state_->has_fired; }

 private:
  struct State {
    bool is_over = false;
    bool has_fired = false;
  };
  asio::steady_timer timer_;
  std::shared_ptr<State> state_;
};

Error error_of(const error_code& code, std::string_view what) {
  return error_from_errno(code.value(), what);
}

std::string impossible_answer(const char* request) {
  return std::string("an impossible answer to ") + request;
}

}  // namespace

AsyncStoreClient::AsyncStoreClient(StoreClientOptions options, Socket socket)
    : options_(std::move(options)), socket_(std::move(socket)) {}

// --- connecting -------------------------------------------------------------------------------

AsyncStoreClient::Awaitable<std::unique_ptr<AsyncStoreClient>> AsyncStoreClient::connect(
    StoreClientOptions options) {
  const auto executor = co_await asio::this_coro::executor;
  const Deadline deadline = Clock::now() + options.connect_timeout;
  std::minstd_rand random(static_cast<unsigned>(Clock::now().time_since_epoch().count()));
  for (auto pause = client::kFirstRetry;; pause = client::next_retry(pause)) {
    auto store = co_await try_connect(options, deadline);
    if (store) co_return store;
    const auto next = Clock::now() + client::spread(pause, random());
    if (!client::may_pass(store.error()) || next >= deadline) {
      co_return fail(client::connect_error(std::move(store.error()), options));
    }
    asio::steady_timer timer(executor, next);
    co_await timer.async_wait(kToken);
  }
}

AsyncStoreClient::Awaitable<std::unique_ptr<AsyncStoreClient>> AsyncStoreClient::clone() const {
  return connect(options_);
}

AsyncStoreClient::Awaitable<std::unique_ptr<AsyncStoreClient>> AsyncStoreClient::try_connect(
    const StoreClientOptions& options, Deadline deadline) {
  const auto executor = co_await asio::this_coro::executor;
  tcp::resolver resolver(executor);
  tcp::resolver::results_type addresses;
  {
    const Alarm alarm(executor, deadline, [&resolver] { resolver.cancel(); });
    const auto [error, found] =
        co_await resolver.async_resolve(options.server.host, std::to_string(options.server.port),
                                        tcp::resolver::numeric_service, kToken);
    if (error) {
      co_return fail(ErrorCode::kUnavailable, "the name '" + options.server.host +
                                                  "' cannot be resolved: " + error.message());
    }
    addresses = found;
  }
  Socket socket(executor);
  {
    const Alarm alarm(executor, deadline, [&socket] { socket.close(); });
    const auto [error, endpoint] = co_await asio::async_connect(socket, addresses, kToken);
    if (alarm.has_fired()) co_return fail(ErrorCode::kTimeout, "connect: no answer");
    if (error) co_return fail(error_of(error, "connect"));
  }
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  std::unique_ptr<AsyncStoreClient> store(new AsyncStoreClient(options, std::move(socket)));
  auto greeted = co_await store->handshake(deadline);
  if (!greeted) co_return fail(std::move(greeted.error()));
  co_return store;
}

AsyncStoreClient::Awaitable<void> AsyncStoreClient::handshake(Deadline deadline) {
  const auto nonce = static_cast<std::uint32_t>(::getpid());
  auto sent = co_await send(wire::handshake(nonce), deadline);
  if (!sent) co_return sent;
  const auto echo = co_await read_number<std::uint32_t>(deadline);
  if (!echo) co_return fail(client::handshake_error(echo.error()));
  if (*echo != nonce) co_return fail(client::no_store());
  co_return Result<void>();
}

void AsyncStoreClient::shut_down() {
  error_code ignored;
  socket_.shutdown(Socket::shutdown_both, ignored);
}

// --- the calls --------------------------------------------------------------------------------

AsyncStoreClient::Awaitable<void> AsyncStoreClient::set(std::string key, std::string value) {
  return send(RequestEncoder(Query::kSet).key(key).bytes(value).str(), reply_deadline());
}

AsyncStoreClient::Awaitable<void> AsyncStoreClient::append(std::string key, std::string value) {
  return send(RequestEncoder(Query::kAppend).key(key).bytes(value).str(), reply_deadline());
}

AsyncStoreClient::Awaitable<void> AsyncStoreClient::multi_set(Keys keys,
                                                              std::vector<std::string> values) {
  if (keys.size() != values.size())
    co_return fail(client::uneven_lists(keys.size(), values.size()));
  RequestEncoder request(Query::kMultiSet);
  request.number<std::uint64_t>(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) request.key(keys[i]).bytes(values[i]);
  co_return co_await send(request.str(), reply_deadline());
}

AsyncStoreClient::Awaitable<std::string> AsyncStoreClient::get(
    std::string key, std::optional<Milliseconds> timeout) {
  const auto waited = co_await wait(Keys(1, key), timeout);
  if (!waited) co_return fail(waited.error());
  const Deadline deadline = reply_deadline();
  const auto sent = co_await send(RequestEncoder(Query::kGet).key(key).str(), deadline);
  if (!sent) co_return fail(sent.error());
  co_return co_await read_bytes(deadline);
}

AsyncStoreClient::Awaitable<std::vector<std::string>> AsyncStoreClient::multi_get(
    Keys keys, std::optional<Milliseconds> timeout) {
  std::vector<std::string> values;
  if (keys.empty()) co_return values;
  const auto waited = co_await wait(keys, timeout);
  if (!waited) co_return fail(waited.error());
  const Deadline deadline = reply_deadline();
  const auto sent = co_await send(RequestEncoder(Query::kMultiGet).keys(keys).str(), deadline);
  if (!sent) co_return fail(sent.error());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    auto value = co_await read_bytes(deadline);
    if (!value) co_return fail(std::move(value.error()));
    values.push_back(std::move(*value));
  }
  co_return values;
}

AsyncStoreClient::Awaitable<void> AsyncStoreClient::wait(Keys keys,
                                                         std::optional<Milliseconds> timeout) {
  const Milliseconds time = timeout.value_or(options_.timeout);
  const Deadline deadline = Clock::now() + time;
  auto sent = co_await send(RequestEncoder(Query::kWait).keys(keys).str(), reply_deadline());
  if (!sent) co_return sent;
  co_return co_await await_release(deadline, client::not_set(keys, time));
}

AsyncStoreClient::Awaitable<bool> AsyncStoreClient::check(Keys keys) {
  const Deadline deadline = reply_deadline();
  const auto sent = co_await send(RequestEncoder(Query::kCheck).keys(keys).str(), deadline);
  if (!sent) co_return fail(sent.error());
  const auto answer = co_await read_number<char>(deadline);
  if (!answer) co_return fail(answer.error());
  if (*answer != wire::kReady && *answer != wire::kNotReady) {
    co_return give_up(ErrorCode::kProtocol, impossible_answer("CHECK"));
  }
  co_return *answer == wire::kReady;
}

AsyncStoreClient::Awaitable<std::int64_t> AsyncStoreClient::add(std::string key,
                                                                std::int64_t delta) {
  return ask_number(RequestEncoder(Query::kAdd).key(key).number(delta).str());
}

AsyncStoreClient::Awaitable<std::string> AsyncStoreClient::compare_set(std::string key,
                                                                       std::string expected,
                                                                       std::string desired) {
  const Deadline deadline = reply_deadline();
  const auto sent = co_await send(
      RequestEncoder(Query::kCompareSet).key(key).bytes(expected).bytes(desired).str(), deadline);
  if (!sent) co_return fail(sent.error());
  co_return co_await read_bytes(deadline);
}

AsyncStoreClient::Awaitable<bool> AsyncStoreClient::delete_key(std::string key) {
  const auto removed = co_await ask_number(RequestEncoder(Query::kDeleteKey).key(key).str());
  if (!removed) co_return fail(removed.error());
  co_return *removed > 0;
}

AsyncStoreClient::Awaitable<std::int64_t> AsyncStoreClient::num_keys() {
  return ask_number(RequestEncoder(Query::kGetNumKeys).str());
}

AsyncStoreClient::Awaitable<AsyncStoreClient::Keys> AsyncStoreClient::list_keys() {
  const Deadline deadline = reply_deadline();
  const auto sent = co_await send(RequestEncoder(Query::kListKeys).str(), deadline);
  if (!sent) co_return fail(sent.error());
  const auto count = co_await read_number<std::int64_t>(deadline);
  if (!count) co_return fail(count.error());
  Keys keys;
  for (std::int64_t i = 0; i < *count; ++i) {
    auto key = co_await read_bytes(deadline);
    if (!key) co_return fail(std::move(key.error()));
    if (key->starts_with('/')) keys.push_back(key->substr(1));
  }
  co_return keys;
}

AsyncStoreClient::Awaitable<void> AsyncStoreClient::queue_push(std::string key, std::string value) {
  return send(RequestEncoder(Query::kQueuePush).key(key).bytes(value).str(), reply_deadline());
}

AsyncStoreClient::Awaitable<std::string> AsyncStoreClient::queue_pop(
    std::string key, std::optional<Milliseconds> timeout) {
  const Milliseconds time = timeout.value_or(options_.timeout);
  const Deadline deadline = Clock::now() + time;
  for (;;) {  // another client may take the item first
    const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now());
    const auto waited = co_await wait(Keys(1, key), std::max(left, Milliseconds(0)));
    if (!waited) co_return fail(waited.error());
    auto item = co_await try_queue_pop(key);
    if (!item) co_return fail(std::move(item.error()));
    if (*item) co_return std::move(**item);
  }
}

AsyncStoreClient::Awaitable<std::optional<std::string>> AsyncStoreClient::try_queue_pop(
    std::string key) {
  const Deadline deadline = reply_deadline();
  const auto length = co_await ask_number(RequestEncoder(Query::kQueuePop).key(key).str());
  if (!length) co_return fail(length.error());
  if (*length <= 0) co_return std::nullopt;
  auto item = co_await read_bytes(deadline);
  if (!item) co_return fail(std::move(item.error()));
  co_return std::move(*item);
}

AsyncStoreClient::Awaitable<std::int64_t> AsyncStoreClient::queue_len(std::string key) {
  return ask_number(RequestEncoder(Query::kQueueLen).key(key).str());
}

AsyncStoreClient::Awaitable<void> AsyncStoreClient::barrier(std::string key,
                                                            std::int64_t world_size,
                                                            std::optional<Milliseconds> timeout) {
  const Milliseconds time = timeout.value_or(options_.timeout);
  const Deadline deadline = Clock::now() + time;
  auto sent = co_await send(RequestEncoder(Query::kBarrier).key(key).number(world_size).str(),
                            reply_deadline());
  if (!sent) co_return sent;
  co_return co_await await_release(deadline, client::not_reached(key, world_size, time));
}

AsyncStoreClient::Awaitable<void> AsyncStoreClient::ping() {
  const Deadline deadline = reply_deadline();
  constexpr std::uint32_t kNonce = 0x676e6970;
  auto sent = co_await send(RequestEncoder(Query::kPing).number(kNonce).str(), deadline);
  if (!sent) co_return sent;
  const auto echo = co_await read_number<std::uint32_t>(deadline);
  if (!echo) co_return fail(echo.error());
  if (*echo != kNonce) co_return give_up(ErrorCode::kProtocol, impossible_answer("PING"));
  co_return Result<void>();
}

// --- requests and replies ---------------------------------------------------------------------

// As StoreClient::await_release: the release may cross the cancellation, and then both answers
// come.
AsyncStoreClient::Awaitable<void> AsyncStoreClient::await_release(Deadline deadline,
                                                                  std::string missed) {
  if (given_up_) co_return fail(*given_up_);
  char answer = 0;
  bool is_late = false;
  {
    const Alarm alarm(socket_.get_executor(), deadline, [this] { socket_.cancel(); });
    const auto [error, got] = co_await asio::async_read(socket_, asio::buffer(&answer, 1), kToken);
    is_late = error && alarm.has_fired();
    if (error && !is_late)
      co_return give_up(ErrorCode::kClosed,
                        client::lost(error == asio::error::eof, error.message()));
  }
  if (!is_late) {
    if (answer != wire::kStopWaiting)
      co_return give_up(ErrorCode::kProtocol, impossible_answer("WAIT"));
    co_return Result<void>();
  }
  const Deadline grace = Clock::now() + client::kCancelGrace;
  auto sent = co_await send(RequestEncoder(Query::kCancelWait).str(), grace);
  if (!sent) co_return sent;
  const auto first = co_await read_number<char>(grace);
  if (!first) co_return fail(first.error());
  if (*first == wire::kWaitCanceled) {
    co_return fail(Error{ErrorCode::kTimeout, missed, {{"store", options_.server.to_string()}}});
  }
  const auto second = co_await read_number<char>(grace);
  if (!second) co_return fail(second.error());
  if (*first != wire::kStopWaiting || *second != wire::kWaitCanceled) {
    co_return give_up(ErrorCode::kProtocol, impossible_answer("CANCEL_WAIT"));
  }
  co_return Result<void>();
}

AsyncStoreClient::Awaitable<std::int64_t> AsyncStoreClient::ask_number(std::string request) {
  const Deadline deadline = reply_deadline();
  const auto sent = co_await send(std::move(request), deadline);
  if (!sent) co_return fail(sent.error());
  co_return co_await read_number<std::int64_t>(deadline);
}

AsyncStoreClient::Awaitable<void> AsyncStoreClient::send(std::string request, Deadline deadline) {
  if (given_up_) co_return fail(*given_up_);
  const Alarm alarm(socket_.get_executor(), deadline, [this] { socket_.cancel(); });
  const auto [error, sent] = co_await asio::async_write(socket_, asio::buffer(request), kToken);
  if (error && alarm.has_fired())
    co_return give_up(ErrorCode::kTimeout, "it takes no more requests");
  if (error)
    co_return give_up(ErrorCode::kClosed, client::lost(/*is_closed=*/false, error.message()));
  co_return Result<void>();
}

AsyncStoreClient::Awaitable<void> AsyncStoreClient::read(char* to, std::size_t count,
                                                         Deadline deadline) {
  if (given_up_) co_return fail(*given_up_);
  const Alarm alarm(socket_.get_executor(), deadline, [this] { socket_.cancel(); });
  const auto [error, got] = co_await asio::async_read(socket_, asio::buffer(to, count), kToken);
  if (error && alarm.has_fired()) co_return give_up(ErrorCode::kTimeout, "it does not answer");
  if (error)
    co_return give_up(ErrorCode::kClosed, client::lost(error == asio::error::eof, error.message()));
  co_return Result<void>();
}

template <typename T>
AsyncStoreClient::Awaitable<T> AsyncStoreClient::read_number(Deadline deadline) {
  std::array<char, sizeof(T)> bytes;
  const auto got = co_await read(bytes.data(), bytes.size(), deadline);
  if (!got) co_return fail(got.error());
  co_return wire::load<T>(bytes.data());
}

AsyncStoreClient::Awaitable<std::string> AsyncStoreClient::read_bytes(Deadline deadline) {
  const auto size = co_await read_number<std::uint64_t>(deadline);
  if (!size) co_return fail(size.error());
  if (*size > limits::kMaxReplyBytes)
    co_return give_up(ErrorCode::kProtocol, client::kImpossibleLength);
  std::string bytes(*size, '\0');
  const auto got = co_await read(bytes.data(), bytes.size(), deadline);
  if (!got) co_return fail(got.error());
  co_return bytes;
}

tl::unexpected<Error> AsyncStoreClient::give_up(ErrorCode code, const std::string& what) {
  given_up_ = client::failure(options_.server, code, what);
  shut_down();
  return fail(*given_up_);
}

}  // namespace ddprun::rdzv
