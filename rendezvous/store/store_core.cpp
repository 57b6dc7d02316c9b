#include "rendezvous/store/store_core.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <charconv>
#include <utility>

namespace ddprun::rdzv {
namespace {

using wire::ItemReader;
using wire::Payload;
using wire::Query;
using wire::ReplyQueue;
using wire::Request;

// The memory of a name and a waiter in tables, beyond their bytes, with allocator overhead.
// Estimates: they only keep the memory limit realistic for stores of very many small entries.
constexpr std::size_t kSlotCost = 176;
constexpr std::size_t kWaiterCost = 64;
constexpr std::size_t kQueueCost = 640;

std::size_t slot_cost(std::string_view key) { return kSlotCost + key.size(); }

// The memory that storing this payload adds: a blob is already counted with the unfinished request.
std::size_t new_bytes(const Payload& payload) {
  return payload.blob != nullptr ? 0 : payload.bytes.size();
}

// Like C's strtoll in base 10: white space, a sign, digits; the rest is ignored. nullopt if there
// are no digits, or if the number does not fit in int64.
std::optional<std::int64_t> parse_number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n\v\f\r"), text.size()));
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

}  // namespace

ClientId StoreCore::connect() {
  if (free_clients_.empty()) {
    free_clients_.push_back(static_cast<ClientId>(clients_.size()));
    clients_.emplace_back();
  }
  const ClientId client = free_clients_.back();
  free_clients_.pop_back();
  clients_[client].is_connected = true;
  return client;
}

void StoreCore::disconnect(ClientId client, std::vector<ClientId>& released) {
  assert(clients_[client].is_connected);
  current_ = client;
  reply_ = nullptr;
  released_ = &released;
  stop_waiting(client);
  hand_on_wake_up(client, nullptr);
  clients_[client].is_connected = false;
  free_clients_.push_back(client);
}

StoreCore::Verdict StoreCore::handle(ClientId client, const Request& request, ReplyQueue& reply,
                                     std::vector<ClientId>& released) {
  assert(clients_[client].is_connected);
  current_ = client;
  reply_ = &reply;
  released_ = &released;
  // (A PING does not show what the client will do.)
  if (clients_[client].woken_by_queue && request.query != Query::kPing) {
    hand_on_wake_up(client, &request);
  }
  switch (request.query) {
    case Query::kValidate:  // handled by the decoder
      break;
    case Query::kSet:
      return set(request.key, request.value);
    case Query::kCompareSet:
      return compare_set(request);
    case Query::kGet:
      return get(request.key);
    case Query::kAdd:
      return add(request.key, request.number);
    case Query::kCheck:
      reply.byte(check(request.items) ? wire::kReady : wire::kNotReady);
      break;
    case Query::kWait:
      return wait(request.items);
    case Query::kGetNumKeys:
      reply.number<std::int64_t>(static_cast<std::int64_t>(keys_));
      break;
    case Query::kDeleteKey:
      reply.number<std::int64_t>(erase_key(request.key) ? 1 : 0);
      break;
    case Query::kAppend:
      return append(request.key, request.value);
    case Query::kMultiGet:
      return multi_get(request.items);
    case Query::kMultiSet:
      return multi_set(request.items);
    case Query::kCancelWait:
      stop_waiting(client);
      reply.byte(wire::kWaitCanceled);
      break;
    case Query::kPing:
      reply.number(request.nonce);
      break;
    case Query::kQueuePush:
      return queue_push(request.key, request.value);
    case Query::kQueuePop:
      queue_pop(request.key);
      break;
    case Query::kQueueLen:
      reply.number<std::int64_t>(queue_length(request.key));
      break;
    case Query::kListKeys:
      return list_keys();
    case Query::kBarrier:
      return barrier(request.key, request.number);
  }
  return Verdict::kServed;
}

// --- the requests -----------------------------------------------------------------------------

StoreCore::Verdict StoreCore::set(std::string_view key, Payload value) {
  Named* slot = find(key);
  const std::size_t held =
      slot != nullptr && slot->second.value ? slot->second.value->footprint() : 0;
  const std::size_t more = new_bytes(value) + (slot == nullptr ? slot_cost(key) : 0);
  if (more > held && !has_room(more - held)) return Verdict::kNoMemory;
  if (slot == nullptr) slot = &slot_of(key);
  store(slot->second, StoreValue(value));
  wake_all(*slot);
  return Verdict::kServed;
}

StoreCore::Verdict StoreCore::append(std::string_view key, Payload value) {
  Named* slot = find(key);
  if (slot == nullptr || !slot->second.value) return set(key, value);
  StoreValue& present = *slot->second.value;
  // A long value grows by half, so that appending stays linear.
  if (!has_room(value.view().size() + present.size() / 2)) return Verdict::kNoMemory;
  bytes_ -= present.footprint();
  present.append(value);
  bytes_ += present.footprint();
  wake_all(*slot);
  return Verdict::kServed;
}

StoreCore::Verdict StoreCore::compare_set(const Request& request) {
  Named* slot = find(request.key);
  const bool is_absent = slot == nullptr || !slot->second.value;
  if (is_absent && !request.expected.view().empty()) {  // nothing is created, no client is woken
    reply_->bytes(request.expected.view());
    return Verdict::kServed;
  }
  if (is_absent || slot->second.value->view() == request.expected.view()) {
    const Verdict verdict = set(request.key, request.value);
    if (verdict != Verdict::kServed) return verdict;
  }
  return get(request.key);
}

StoreCore::Verdict StoreCore::get(std::string_view key) {
  Named* slot = find(key);
  if (slot == nullptr || !slot->second.value) {
    reply_->bytes(std::string_view());  // like PyTorch's libuv server; clients send WAIT first
    return Verdict::kServed;
  }
  if (slot->second.value->size() > limits::kMaxReplyBytes) return Verdict::kReplyTooLong;
  slot->second.value->write_to(*reply_);
  return Verdict::kServed;
}

StoreCore::Verdict StoreCore::add(std::string_view key, std::int64_t delta) {
  if (!has_room(slot_cost(key))) return Verdict::kNoMemory;
  Named& slot = slot_of(key);
  const auto sum = add_to(slot.second, delta);
  if (!sum) return Verdict::kNotANumber;
  wake_all(slot);
  reply_->number(*sum);
  return Verdict::kServed;
}

StoreCore::Verdict StoreCore::barrier(std::string_view key, std::int64_t world_size) {
  if (!has_room(slot_cost(key) + kWaiterCost)) return Verdict::kNoMemory;
  Named& slot = slot_of(key);
  const auto arrived = add_to(slot.second, 1);
  if (!arrived) return Verdict::kNotANumber;
  stop_waiting(current_);
  if (*arrived < world_size) {
    start_waiting(current_, slot);
  } else {
    wake_all(slot);
    reply_->byte(wire::kStopWaiting);
  }
  return Verdict::kServed;
}

bool StoreCore::check(ItemReader items) {
  while (items.left() > 0) {
    Named* slot = find(items.next_key());
    if (slot == nullptr || !is_present(slot->second)) return false;
  }
  return true;
}

StoreCore::Verdict StoreCore::wait(ItemReader items) {
  stop_waiting(current_);  // a second WAIT replaces the first (no client sends one)
  while (items.left() > 0) {
    const std::string_view key = items.next_key();
    if (!has_room(slot_cost(key) + kWaiterCost)) {
      stop_waiting(current_);
      return Verdict::kNoMemory;
    }
    Named* slot = find(key);
    if (slot != nullptr && is_present(slot->second)) continue;
    start_waiting(current_, slot != nullptr ? *slot : slot_of(key));
  }
  if (clients_[current_].missing.empty()) reply_->byte(wire::kStopWaiting);
  return Verdict::kServed;
}

bool StoreCore::erase_key(std::string_view key) {
  Named* slot = find(key);
  if (slot == nullptr || !slot->second.value) return false;
  bytes_ -= slot->second.value->footprint();
  slot->second.value.reset();
  --keys_;
  drop_if_bare(*slot);
  return true;
}

void StoreCore::erase_if(const std::function<bool(std::string_view name)>& is_obsolete) {
  std::vector<Named*> found;
  for (Named& slot : table_) {
    if (is_present(slot.second) && is_obsolete(slot.first)) found.push_back(&slot);
  }
  for (Named* const slot : found) {
    if (slot->second.queue) {
      for (const StoreValue& item : *slot->second.queue) {
        bytes_ -= sizeof(StoreValue) + item.footprint();
      }
      bytes_ -= kQueueCost;
      slot->second.queue.reset();
      --queues_;
    }
    if (!erase_key(slot->first)) drop_if_bare(*slot);
  }
}

StoreCore::Verdict StoreCore::multi_get(ItemReader items) {
  const std::size_t before = reply_->unsent();
  while (items.left() > 0) {
    const Verdict verdict = get(items.next_key());
    if (verdict != Verdict::kServed) return verdict;
    if (reply_->unsent() - before > limits::kMaxReplyBytes) return Verdict::kReplyTooLong;
  }
  return Verdict::kServed;
}

// All or nothing, unlike in PyTorch: the decoder passes the request on when it is complete.
StoreCore::Verdict StoreCore::multi_set(ItemReader items) {
  std::size_t more = 0;
  for (ItemReader ahead = items; ahead.left() > 0;) {
    const auto [key, value] = ahead.next_entry();
    more += slot_cost(key) + new_bytes(value);
  }
  if (!has_room(more)) return Verdict::kNoMemory;
  while (items.left() > 0) {
    const auto [key, value] = items.next_entry();
    Named& slot = slot_of(key);
    store(slot.second, StoreValue(value));
    wake_all(slot);
  }
  return Verdict::kServed;
}

StoreCore::Verdict StoreCore::list_keys() {
  const std::size_t before = reply_->unsent();
  reply_->number<std::int64_t>(static_cast<std::int64_t>(keys_));
  for (const auto& [key, slot] : table_) {
    if (!slot.value) continue;
    reply_->bytes(key);
    if (reply_->unsent() - before > limits::kMaxReplyBytes) return Verdict::kReplyTooLong;
  }
  return Verdict::kServed;
}

StoreCore::Verdict StoreCore::queue_push(std::string_view key, Payload value) {
  if (!has_room(slot_cost(key) + kQueueCost + sizeof(StoreValue) + new_bytes(value)))
    return Verdict::kNoMemory;
  Named& slot = slot_of(key);
  auto& queue = slot.second.queue;
  if (queue == nullptr) {
    queue = std::make_unique<std::deque<StoreValue>>();
    ++queues_;
    bytes_ += kQueueCost;
  }
  queue->emplace_back(value);
  bytes_ += sizeof(StoreValue) + queue->back().footprint();
  wake_for_item(slot);
  return Verdict::kServed;
}

void StoreCore::queue_pop(std::string_view key) {
  reply_->number(queue_length(key));
  Named* slot = find(key);
  if (slot == nullptr || slot->second.queue == nullptr) return;
  auto& queue = slot->second.queue;
  queue->front().write_to(*reply_);
  bytes_ -= sizeof(StoreValue) + queue->front().footprint();
  queue->pop_front();
  if (queue->empty()) {
    queue.reset();
    --queues_;
    bytes_ -= kQueueCost;
    drop_if_bare(*slot);
  }
}

std::int64_t StoreCore::queue_length(std::string_view key) {
  Named* slot = find(key);
  if (slot == nullptr || slot->second.queue == nullptr) return 0;
  return static_cast<std::int64_t>(slot->second.queue->size());
}

// --- names ------------------------------------------------------------------------------------

StoreCore::Named* StoreCore::find(std::string_view key) {
  const auto found = table_.find(key);
  return found == table_.end() ? nullptr : &*found;
}

StoreCore::Named& StoreCore::slot_of(std::string_view key) {
  if (Named* slot = find(key)) return *slot;
  bytes_ += slot_cost(key);
  return *table_.try_emplace(std::string(key)).first;
}

void StoreCore::store(Slot& slot, StoreValue value) {
  if (slot.value) {
    bytes_ -= slot.value->footprint();
  } else {
    ++keys_;
  }
  slot.value = std::move(value);
  bytes_ += slot.value->footprint();
}

std::optional<std::int64_t> StoreCore::add_to(Slot& slot, std::int64_t delta) {
  std::int64_t present = 0;
  if (slot.value) {
    const auto parsed = parse_number(slot.value->view());
    if (!parsed) return std::nullopt;
    present = *parsed;
  }
  // Unsigned arithmetic: the sum wraps around, as in PyTorch.
  const auto sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(present) +
                                             static_cast<std::uint64_t>(delta));
  store(slot, StoreValue(std::to_string(sum)));
  return sum;
}

void StoreCore::drop_if_bare(Named& slot) {
  if (is_present(slot.second) || !slot.second.waiters.empty()) return;
  bytes_ -= slot_cost(slot.first);
  table_.erase(table_.find(std::string_view(slot.first)));
}

bool StoreCore::has_room(std::size_t more) const {
  return bytes_ + outside_bytes_ + more <= memory_limit_;
}

// --- waiting ----------------------------------------------------------------------------------

void StoreCore::start_waiting(ClientId client, Named& slot) {
  auto& waiters = slot.second.waiters;
  if (!waiters.empty() && waiters.back().client == client) return;  // the name is twice in its list
  auto& missing = clients_[client].missing;
  if (missing.empty()) ++waiting_clients_;
  waiters.push_back({client, static_cast<std::uint32_t>(missing.size())});
  missing.push_back({&slot, std::prev(waiters.end())});
  bytes_ += kWaiterCost;
}

void StoreCore::stop_waiting(ClientId client) {
  if (clients_[client].missing.empty()) return;
  --waiting_clients_;
  for (const auto& [slot, place] : std::exchange(clients_[client].missing, {})) {
    slot->second.waiters.erase(place);
    bytes_ -= kWaiterCost;
    drop_if_bare(*slot);
  }
}

void StoreCore::wake_all(Named& slot) {
  while (!slot.second.waiters.empty()) wake(slot, slot.second.waiters.begin());
}

// One name that a waiter missed is set now. True if it was the last one.
bool StoreCore::wake(Named& slot, WaiterPlace place) {
  const auto [client, index] = *place;
  slot.second.waiters.erase(place);
  bytes_ -= kWaiterCost;
  auto& missing = clients_[client].missing;
  if (index + 1 < missing.size()) {
    missing[index] = missing.back();
    missing[index].place->index = index;
  }
  missing.pop_back();
  if (!missing.empty()) return false;
  release(client);
  return true;
}

// An item was pushed, or the client that was released for one did not take it: releases one client,
// the longest waiting of those that miss nothing else. For those before it the name counts as seen,
// as the protocol requires.
void StoreCore::wake_for_item(Named& slot) {
  auto& waiters = slot.second.waiters;
  while (!waiters.empty()) {
    const ClientId client = waiters.front().client;
    if (!wake(slot, waiters.begin())) continue;
    clients_[client].woken_by_queue = std::make_unique<std::string>(slot.first);
    return;
  }
}

// If a client was released for an item and does not take it (it timed out or died), another client
// must be woken, because the queue is not empty.
void StoreCore::hand_on_wake_up(ClientId client, const Request* next) {
  const auto name = std::move(clients_[client].woken_by_queue);
  if (!name || (next != nullptr && next->query == Query::kQueuePop && next->key == *name)) return;
  Named* slot = find(*name);
  if (slot != nullptr && slot->second.queue != nullptr) wake_for_item(*slot);
}

void StoreCore::release(ClientId client) {
  --waiting_clients_;
  std::vector<Client::Missing>().swap(clients_[client].missing);
  if (client == current_ && reply_ != nullptr) {
    reply_->byte(wire::kStopWaiting);
  } else {
    released_->push_back(client);
  }
}

const char* StoreCore::reason_of(Verdict verdict) {
  constexpr std::array kReasons{
      "",
      "added to a value that is no 64-bit integer",
      "asked for more than the store's memory limit leaves (--store-memory)",
      "asked for a reply that is too long",
  };
  return kReasons[static_cast<std::size_t>(verdict)];
}

}  // namespace ddprun::rdzv
