// The store's client for code that lives on an io_context: the calls of StoreClient as coroutines,
// with the same keys, results, deadlines and errors (store_client.h has the words). Nothing blocks,
// and no thread is started but the one that Asio itself resolves names on.
//
//   auto store = co_await AsyncStoreClient::connect({.server = {"10.0.0.5", 29500}});
//   if (!store) co_return fail(std::move(store.error()));
//   Result<std::string> peer = co_await (*store)->get("address/1", 60s);
//
// One io_context thread's. One call at a time: co_await each before the next, and give a coroutine
// that waits for keys a clone() of its own. The mistake to avoid: destroying the client while a
// call is under way; shut_down() ends the call, then destroy.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/result.h"
#include "rendezvous/store_client.h"
#include "rendezvous/wire/store_encoder.h"

namespace ddprun::rdzv {

class AsyncStoreClient {
 public:
  using Milliseconds = std::chrono::milliseconds;
  using Keys = std::vector<std::string>;
  template <typename T>
  using Awaitable = boost::asio::awaitable<Result<T>>;

  // On the executor of the coroutine that calls it.
  static Awaitable<std::unique_ptr<AsyncStoreClient>> connect(StoreClientOptions options);
  Awaitable<std::unique_ptr<AsyncStoreClient>> clone() const;

  Awaitable<void> set(std::string key, std::string value);
  Awaitable<void> append(std::string key, std::string value);
  Awaitable<void> multi_set(Keys keys, std::vector<std::string> values);
  Awaitable<std::string> get(std::string key, std::optional<Milliseconds> timeout = {});
  Awaitable<std::vector<std::string>> multi_get(Keys keys,
                                                std::optional<Milliseconds> timeout = {});
  Awaitable<void> wait(Keys keys, std::optional<Milliseconds> timeout = {});
  Awaitable<bool> check(Keys keys);
  Awaitable<std::int64_t> add(std::string key, std::int64_t delta);
  Awaitable<std::string> compare_set(std::string key, std::string expected, std::string desired);
  Awaitable<bool> delete_key(std::string key);
  Awaitable<std::int64_t> num_keys();
  Awaitable<Keys> list_keys();
  Awaitable<void> queue_push(std::string key, std::string value);
  Awaitable<std::string> queue_pop(std::string key, std::optional<Milliseconds> timeout = {});
  Awaitable<std::optional<std::string>> try_queue_pop(std::string key);
  Awaitable<std::int64_t> queue_len(std::string key);
  Awaitable<void> barrier(std::string key, std::int64_t world_size,
                          std::optional<Milliseconds> timeout = {});
  Awaitable<void> ping();

  // Ends the connection; the call under way ends with kClosed.
  void shut_down();

  const Endpoint& server() const { return options_.server; }

 private:
  using Clock = std::chrono::steady_clock;
  using Deadline = Clock::time_point;
  using Socket = boost::asio::ip::tcp::socket;

  AsyncStoreClient(StoreClientOptions options, Socket socket);
  static Awaitable<std::unique_ptr<AsyncStoreClient>> try_connect(const StoreClientOptions& options,
                                                                  Deadline deadline);

  Awaitable<void> handshake(Deadline deadline);
  Awaitable<void> send(std::string request, Deadline deadline);
  Awaitable<void> read(char* to, std::size_t count, Deadline deadline);
  template <typename T>
  Awaitable<T> read_number(Deadline deadline);
  Awaitable<std::string> read_bytes(Deadline deadline);
  Awaitable<std::int64_t> ask_number(std::string request);
  Awaitable<void> await_release(Deadline deadline, std::string missed);

  tl::unexpected<Error> give_up(ErrorCode code, const std::string& what);
  Deadline reply_deadline() const { return Clock::now() + options_.timeout; }

  StoreClientOptions options_;
  Socket socket_;
  std::optional<Error> given_up_;
};

}  // namespace ddprun::rdzv
