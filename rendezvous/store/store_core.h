// The store's logic as a pure value: keys, queues and waiting clients; it handles one request at a
// time. No I/O, clock, thread or log; the shell owns it, reports connections, requests and
// disconnections to it, and sends its replies. PyTorch's semantics (README.md lists them), without
// PyTorch's bugs.
//
//   Released released;
//   const ClientId client = core.connect();
//   switch (core.handle(client, request, reply, released)) { … }   // reply: to this client
//   for (ClientId other : released) …                              // one kStopWaiting byte to each
//
// One thread. Call disconnect() for every client that is gone, because it frees the client's waits
// and passes an unused wake-up on to another client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rendezvous/common/limits.h"
#include "rendezvous/store/store_value.h"
#include "rendezvous/store_wire/reply_queue.h"
#include "rendezvous/store_wire/store_protocol.h"

namespace ddprun::rdzv {

// Small and dense: usable as an index. The number of a disconnected client is used again.
using ClientId = std::uint32_t;

class StoreCore {
 public:
  enum class Verdict {
    kServed,
    // For all others: close the connection; nothing was changed.
    kNotANumber,    // ADD or BARRIER on a value that is not an int64
    kNoMemory,      // the store's memory limit would be exceeded
    kReplyTooLong,  // more than limits::kMaxReplyBytes
  };
  // What the client did, for the log line about its disconnection.
  static const char* reason_of(Verdict verdict);

  struct Stats {
    std::size_t keys = 0;
    std::size_t queues = 0;
    std::size_t waiting_clients = 0;
    std::size_t bytes = 0;
  };

  explicit StoreCore(std::size_t memory_limit = limits::kDefaultStoreMemory)
      : memory_limit_(memory_limit) {}

  ClientId connect();
  void disconnect(ClientId client, std::vector<ClientId>& released);

  // Handles one request of `client`. Other clients whose WAIT or BARRIER ends because of it are
  // added to `released`, each at most once; if the client's own wait ends, that goes into `reply`.
  Verdict handle(ClientId client, const wire::Request& request, wire::ReplyQueue& reply,
                 std::vector<ClientId>& released);

  // Drops the keys and queues with such a name; who waits for one waits on.
  void erase_if(const std::function<bool(std::string_view name)>& is_obsolete);

  // One of the names that its WAIT or BARRIER misses; empty: it does not wait.
  std::string_view awaited(ClientId client) const {
    const auto& missing = clients_[client].missing;
    return missing.empty() ? std::string_view() : std::string_view(missing.front().slot->first);
  }

  // Memory held by keys, queues and waiters; the shell adds its own, so that one limit covers both.
  std::size_t bytes() const { return bytes_; }
  void set_outside_bytes(std::size_t bytes) { outside_bytes_ = bytes; }
  std::size_t memory_limit() const { return memory_limit_; }

  Stats stats() const { return {keys_, queues_, waiting_clients_, bytes_}; }

 private:
  struct Waiter {
    ClientId client;
    std::uint32_t index;  // into that client's `missing`
  };
  using WaiterPlace = std::list<Waiter>::iterator;

  // Everything stored under one name. It exists as long as it is not empty.
  struct Slot {
    std::optional<StoreValue> value;
    std::unique_ptr<std::deque<StoreValue>> queue;  // never empty
    std::list<Waiter> waiters;                      // longest waiting first; a client at most once
  };

  struct Hash {
    using is_transparent = void;
    // Deliberately not noexcept: the standard library then caches the hash with each key, and need
    // not compute it again when the table grows.
    std::size_t operator()(std::string_view key) const {
      return std::hash<std::string_view>()(key);
    }
  };
  using Table = std::unordered_map<std::string, Slot, Hash, std::equal_to<>>;
  using Named = Table::value_type;  // its address stays valid, unlike iterators

  struct Client {
    struct Missing {
      Named* slot;
      WaiterPlace place;
    };
    // The names that its WAIT still misses, in no order; empty if it does not wait.
    std::vector<Missing> missing;
    // The queue whose push released it, until its next request shows whether it takes the item.
    std::unique_ptr<std::string> woken_by_queue;
    bool is_connected = false;
  };

  Verdict set(std::string_view key, wire::Payload value);
  Verdict append(std::string_view key, wire::Payload value);
  Verdict compare_set(const wire::Request& request);
  Verdict get(std::string_view key);
  Verdict add(std::string_view key, std::int64_t delta);
  Verdict multi_set(wire::ItemReader items);
  Verdict multi_get(wire::ItemReader items);
  Verdict list_keys();
  Verdict queue_push(std::string_view key, wire::Payload value);
  void queue_pop(std::string_view key);
  Verdict wait(wire::ItemReader items);
  Verdict barrier(std::string_view key, std::int64_t world_size);
  bool check(wire::ItemReader items);
  bool erase_key(std::string_view key);
  std::int64_t queue_length(std::string_view key);

  Named* find(std::string_view key);
  Named& slot_of(std::string_view key);  // created if absent
  static bool is_present(const Slot& slot) {
    return slot.value.has_value() || slot.queue != nullptr;
  }
  void store(Slot& slot, StoreValue value);
  std::optional<std::int64_t> add_to(Slot& slot, std::int64_t delta);  // wakes nobody
  void drop_if_bare(Named& slot);
  bool has_room(std::size_t more) const;

  void start_waiting(ClientId client, Named& slot);
  void stop_waiting(ClientId client);
  void wake_all(Named& slot);
  bool wake(Named& slot, WaiterPlace place);
  void wake_for_item(Named& slot);
  void hand_on_wake_up(ClientId client, const wire::Request* next);
  void release(ClientId client);

  Table table_;
  std::vector<Client> clients_;
  std::vector<ClientId> free_clients_;
  std::size_t keys_ = 0;
  std::size_t queues_ = 0;
  std::size_t waiting_clients_ = 0;
  std::size_t bytes_ = 0;
  std::size_t outside_bytes_ = 0;
  std::size_t memory_limit_;

  // Set for the duration of one call.
  ClientId current_ = 0;
  wire::ReplyQueue* reply_ = nullptr;
  std::vector<ClientId>* released_ = nullptr;
};

}  // namespace ddprun::rdzv
