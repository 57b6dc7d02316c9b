// A client of the store, ours or PyTorch's (libuv or legacy), without LibTorch. Keys are the
// user's, exactly as Python's torch.distributed.TCPStore sees them: set("a") here is get("a")
// there.
//
//   auto store = StoreClient::connect({.server = {"10.0.0.5", 29500}, .connect_timeout = 30s});
//   if (!store) return fail(std::move(store.error()));   // it names host, port and what to try
//   (*store)->set("address/0", "10.0.0.7:4000");
//   Result<std::string> peer = (*store)->get("address/1", 60s);   // waits until it is there
//
// Every call ends by its deadline: kTimeout if the keys were not set (the client stays usable) or
// if the server did not answer at all (then, as after kClosed and kProtocol, the connection is
// given up and every later call fails at once; connect again). No reverse name lookups.
//
// Owned by whoever connects. Any thread: a mutex allows one call at a time, so a thread that waits
// for a key blocks the others; give each its own clone(). set() is not acknowledged, because the
// protocol has no reply for it: another connection may still read the old value after set() has
// returned. If that matters, call a member with a reply, such as ping(), after it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/endpoint.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/store_wire/store_encoder.h"

namespace ddprun::rdzv {

struct StoreClientOptions {
  Endpoint server;
  // How long to wait for a server that is not available yet: refused, reset, name not known yet.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(300);
  // For every call without a time argument.
  std::chrono::milliseconds timeout = std::chrono::seconds(300);
};

class StoreClient {
 public:
  using Milliseconds = std::chrono::milliseconds;
  using Keys = std::vector<std::string>;

  static Result<std::unique_ptr<StoreClient>> connect(const StoreClientOptions& options);
  // A second connection to the same server.
  Result<std::unique_ptr<StoreClient>> clone() const;

  // No reply: success means sent.
  Result<void> set(std::string_view key, std::string_view value);
  Result<void> append(std::string_view key, std::string_view value);
  Result<void> multi_set(const Keys& keys, const std::vector<std::string>& values);

  // Waits until the keys are set, then reads them.
  Result<std::string> get(std::string_view key) { return get(key, timeout_); }
  Result<std::string> get(std::string_view key, Milliseconds timeout);
  Result<std::vector<std::string>> multi_get(const Keys& keys) { return multi_get(keys, timeout_); }
  Result<std::vector<std::string>> multi_get(const Keys& keys, Milliseconds timeout);

  Result<void> wait(const Keys& keys) { return wait(keys, timeout_); }
  // A timeout of 0 checks once.
  Result<void> wait(const Keys& keys, Milliseconds timeout);
  // True if all are set.
  Result<bool> check(const Keys& keys);

  // Reads the value as a number (absent: 0), adds, and returns the sum. If the value is not a
  // number, the server closes the connection.
  Result<std::int64_t> add(std::string_view key, std::int64_t delta);
  // Sets the key to `desired` if its value is `expected` (absent: if `expected` is empty). Returns
  // the value afterwards; for an absent key with a non-empty `expected`, it returns `expected`.
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired);
  // True if the key existed.
  Result<bool> delete_key(std::string_view key);

  // The number of all keys on the server, including other prefixes and internal keys.
  Result<std::int64_t> num_keys();
  // The users' keys, in no order.
  Result<Keys> list_keys();

  // Queues: not on PyTorch's legacy server.
  Result<void> queue_push(std::string_view key, std::string_view value);
  // Waits for an item. (PyTorch's client fails if another client took it first.)
  Result<std::string> queue_pop(std::string_view key) { return queue_pop(key, timeout_); }
  Result<std::string> queue_pop(std::string_view key, Milliseconds timeout);
  Result<std::optional<std::string>> try_queue_pop(std::string_view key);
  Result<std::int64_t> queue_len(std::string_view key);

  // Returns when `world_size` clients have called it, in one round trip each. Our server, and
  // PyTorch's from 2.13. A client that timed out is still counted.
  Result<void> barrier(std::string_view key, std::int64_t world_size) {
    return barrier(key, world_size, timeout_);
  }
  Result<void> barrier(std::string_view key, std::int64_t world_size, Milliseconds timeout);

  // A round trip: when it returns, the server has performed all earlier calls of this client.
  Result<void> ping();
  // Adds this client to the count under "init/", as PyTorch's clients do when they are given a
  // world size; the process that hosts PyTorch's server reads it. Returns the count.
  Result<std::int64_t> count_in();

  // Ends the connection, which also ends blocked calls of other threads. Safe at any time.
  void shut_down();

  const Endpoint& server() const { return options_.server; }
  Milliseconds timeout() const { return timeout_; }
  void set_timeout(Milliseconds timeout) { timeout_ = timeout; }

 private:
  using Clock = std::chrono::steady_clock;
  using Deadline = Clock::time_point;

  StoreClient(StoreClientOptions options, UniqueFd socket);
  static Result<std::unique_ptr<StoreClient>> try_connect(const StoreClientOptions& options,
                                                          Deadline deadline);

  Result<void> put(wire::RequestEncoder& request, std::string_view value);
  template <typename T>
  Result<T> ask(const wire::RequestEncoder& request, Result<T> (StoreClient::*take)(Deadline));
  Result<std::int64_t> ask_number(const wire::RequestEncoder& request);
  Result<std::optional<std::string>> pop(std::string_view key);
  Result<void> wait_until(const Keys& keys, Milliseconds timeout, Deadline deadline);
  Result<void> await_release(Deadline deadline, const std::string& missed);

  Result<void> send(std::string_view request, Deadline deadline, std::string_view value = {});
  Result<void> read(char* to, std::size_t count, Deadline deadline);
  template <typename T>
  Result<T> read_number(Deadline deadline);
  Result<std::string> read_bytes(Deadline deadline);
  Result<std::vector<std::string>> read_list(std::int64_t count, Deadline deadline);
  Result<void> read_answer(char only, const char* to, Deadline deadline);

  // The connection is broken or out of sync: no later call may use it.
  tl::unexpected<Error> give_up(ErrorCode code, const std::string& what);
  tl::unexpected<Error> impossible_answer(const std::string& to);
  Deadline after(Milliseconds time) const { return Clock::now() + time; }
  Deadline in_time() const { return after(timeout_); }

  StoreClientOptions options_;
  std::atomic<Milliseconds> timeout_;
  UniqueFd socket_;
  mutable std::mutex mutex_;       // one call at a time; guards all below
  std::unique_ptr<char[]> input_;  // received, not consumed: input_begin_ to input_end_
  std::size_t input_begin_ = 0;
  std::size_t input_end_ = 0;
  std::optional<Error> given_up_;
};

}  // namespace ddprun::rdzv
