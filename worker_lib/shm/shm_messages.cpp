#include "worker_lib/shm/shm_messages.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "rendezvous/common/signals_blocked.h"

namespace ddprun::shm {
namespace {

std::exception_ptr failure(Error error) {
  return std::make_exception_ptr(Failure(std::move(error)));
}

// `bytes` of the ring from where `position`, which counts on and on, is.
void put(Mailbox& box, std::size_t ring, std::uint64_t position, const void* from,
         std::size_t bytes) {
  if (bytes == 0) return;  // of nowhere, too
  const std::size_t at = position % ring;
  const std::size_t first = std::min(bytes, ring - at);
  std::memcpy(box.ring() + at, from, first);
  std::memcpy(box.ring(), static_cast<const std::byte*>(from) + first, bytes - first);
}

void get(Mailbox& box, std::size_t ring, std::uint64_t position, void* to, std::size_t bytes) {
  if (bytes == 0) return;  // of nowhere, too
  const std::size_t at = position % ring;
  const std::size_t first = std::min(bytes, ring - at);
  std::memcpy(to, box.ring() + at, first);
  std::memcpy(static_cast<std::byte*>(to) + first, box.ring(), bytes - first);
}

}  // namespace

Messages::Messages(SlotExchange& exchange)
    : exchange_(exchange),
      sending_(static_cast<std::size_t>(exchange.size())),
      is_broken_(static_cast<std::size_t>(exchange.size())),
      inbox_(static_cast<std::size_t>(exchange.size())) {}

Messages::~Messages() {
  {
    const Lock lock(mutex_);
    is_stopping_ = true;
  }
  posted_.notify_all();
  wake(exchange_.segment().page(exchange_.rank()).message_futex);
  if (thread_.joinable()) thread_.join();
}

void Messages::send(Message message) {
  Lock lock(mutex_);
  auto& queue = sending_[static_cast<std::size_t>(message.peer)];
  queue.push_back({std::move(message), 0});
  post(lock);
}

void Messages::receive(Message message) {
  Lock lock(mutex_);
  if (!take_kept(message)) wanted_.push_back(std::move(message));
  post(lock);
}

void Messages::post(Lock& lock) {
  proceed();
  if (!is_idle()) {
    has_changed_ = true;
    if (!thread_.joinable()) {
      const AllSignalsBlocked blocked;
      thread_ = std::thread([this] { work(); });
      ::pthread_setname_np(thread_.native_handle(), "ddprun-msg");
    }
    posted_.notify_one();
    wake(exchange_.segment().page(exchange_.rank()).message_futex);
  }
  report(lock);
}

bool Messages::is_idle() const {
  return wanted_.empty() &&
         std::ranges::all_of(sending_, [](const auto& queue) { return queue.empty(); }) &&
         std::ranges::none_of(inbox_, &Inbox::has_head);
}

void Messages::end(Message message, std::exception_ptr error, int peer) {
  over_.push_back({std::move(message), std::move(error), peer});
}

// The functions are called without the lock.
void Messages::report(Lock& lock) {
  const std::vector<Over> over = std::exchange(over_, {});
  lock.unlock();
  for (const Over& one : over) one.message.ended(one.error, one.peer);
  lock.lock();
}

void Messages::proceed() {
  for (int to = 0; to < exchange_.size(); ++to) {
    auto& queue = sending_[static_cast<std::size_t>(to)];
    while (!queue.empty() && push(to, queue.front())) {
      end(std::move(queue.front().message), nullptr, to);
      queue.pop_front();
    }
  }
  for (int from = 0; from < exchange_.size(); ++from) pull(from);
  fail_lost();
  fail_late();
}

// True when all of it is in the ring.
bool Messages::push(int to, Sending& sending) {
  if (is_broken_[static_cast<std::size_t>(to)]) return false;
  Mailbox& box = exchange_.segment().mailbox(exchange_.rank(), to);
  const std::size_t ring = exchange_.segment().ring_bytes();
  const std::uint64_t begin = box.written.load(std::memory_order_relaxed);
  std::size_t room = ring - (begin - box.read.load(std::memory_order_acquire));
  std::uint64_t written = begin;
  if (sending.done == 0) {
    if (room < sizeof(Head)) return false;
    const Head head{sending.message.bytes, sending.message.tag, sending.message.type};
    put(box, ring, written, &head, sizeof head);
    written += sizeof head;
    room -= sizeof head;
    sending.done = sizeof head;
  }
  const std::size_t sent = sending.done - sizeof(Head);
  const std::size_t bytes = std::min(room, sending.message.bytes - sent);
  put(box, ring, written, static_cast<const std::byte*>(sending.message.data) + sent, bytes);
  written += bytes;
  sending.done += bytes;
  if (written != begin) {
    box.written.store(written);
    notify(exchange_.segment().page(to).message_futex);
  }
  return sending.done == sizeof(Head) + sending.message.bytes;
}

// The head of the next message, and who it is for.
bool Messages::take_head(int from) {
  Inbox& inbox = inbox_[static_cast<std::size_t>(from)];
  Mailbox& box = exchange_.segment().mailbox(from, exchange_.rank());
  const std::uint64_t read = box.read.load(std::memory_order_relaxed);
  if (box.written.load(std::memory_order_acquire) - read < sizeof(Head)) return false;
  const bool is_listened_to = std::ranges::any_of(wanted_, [from](const Message& message) {
    return message.peer == from || message.peer == kAny;
  });
  if (!is_listened_to) return false;
  get(box, exchange_.segment().ring_bytes(), read, &inbox.head, sizeof(Head));
  box.read.store(read + sizeof(Head));
  inbox.has_head = true;
  inbox.done = 0;
  const auto target = find_wanted(from, inbox.head.tag);
  inbox.is_for_somebody = target != wanted_.end();
  if (inbox.is_for_somebody) {
    inbox.target = std::move(*target);
    wanted_.erase(target);
    // What does not fit is set aside, and dropped at its end.
    if (!mismatch(inbox.target, inbox.head, from)) return true;
  }
  inbox.aside.resize(inbox.head.bytes);
  return true;
}

void Messages::pull(int from) {
  Inbox& inbox = inbox_[static_cast<std::size_t>(from)];
  while (inbox.has_head || take_head(from)) {
    Mailbox& box = exchange_.segment().mailbox(from, exchange_.rank());
    const std::uint64_t read = box.read.load(std::memory_order_relaxed);
    const std::size_t there = box.written.load(std::memory_order_acquire) - read;
    const std::size_t bytes = std::min<std::size_t>(there, inbox.head.bytes - inbox.done);
    std::byte* const to =
        inbox.aside.empty() ? static_cast<std::byte*>(inbox.target.data) : inbox.aside.data();
    if (bytes > 0) {
      get(box, exchange_.segment().ring_bytes(), read, to + inbox.done, bytes);
      inbox.done += bytes;
    }
    // Also for a head alone: the sender may wait for its place.
    box.read.store(read + bytes);
    notify(exchange_.segment().page(from).message_futex);
    if (inbox.done < inbox.head.bytes) return;
    settle(from);
  }
}

// A message is here whole.
void Messages::settle(int from) {
  Inbox& inbox = inbox_[static_cast<std::size_t>(from)];
  inbox.has_head = false;
  std::vector<std::byte> bytes = std::exchange(inbox.aside, {});
  if (std::exchange(inbox.is_dropped, false)) return;
  if (inbox.is_for_somebody) {
    auto error = mismatch(inbox.target, inbox.head, from);
    return end(std::exchange(inbox.target, {}), std::move(error), from);
  }
  inbox.kept.push_back({inbox.head, std::move(bytes)});
  // It may have been asked for while it came.
  const auto wanted = find_wanted(from, inbox.head.tag);
  if (wanted == wanted_.end()) return;
  Message message = std::move(*wanted);
  wanted_.erase(wanted);
  take_kept(message);
}

// The first that waits for a message of that sender and tag.
std::list<Messages::Message>::iterator Messages::find_wanted(int from, int tag) {
  return std::find_if(wanted_.begin(), wanted_.end(), [&](const Message& message) {
    return (message.peer == from || message.peer == kAny) && message.tag == tag;
  });
}

bool Messages::take_kept(Message& message) {
  for (int from = 0; from < exchange_.size(); ++from) {
    if (message.peer != kAny && message.peer != from) continue;
    auto& kept = inbox_[static_cast<std::size_t>(from)].kept;
    const auto found = std::find_if(kept.begin(), kept.end(),
                                    [&](const Kept& one) { return one.head.tag == message.tag; });
    if (found == kept.end()) continue;
    auto error = mismatch(message, found->head, from);
    if (!error && message.bytes > 0) std::memcpy(message.data, found->bytes.data(), message.bytes);
    end(std::move(message), std::move(error), from);
    kept.erase(found);
    return true;
  }
  return false;
}

std::exception_ptr Messages::mismatch(const Message& message, const Head& head, int from) const {
  if (message.bytes == head.bytes && message.type == head.type) return nullptr;
  return failure({ErrorCode::kInvalidArgument,
                  "rank " + std::to_string(exchange_.global_rank(from)) + " sends " +
                      std::to_string(head.bytes) + " bytes of " + name_of(head.type) +
                      " where rank " + std::to_string(exchange_.global_rank(exchange_.rank())) +
                      " receives " + std::to_string(message.bytes) + " of " +
                      name_of(message.type)});
}

// Those for which error_of() gives an error.
template <typename ErrorOf>
void Messages::fail_wanted(const ErrorOf& error_of) {
  for (auto one = wanted_.begin(); one != wanted_.end();) {
    const std::exception_ptr error = error_of(*one);
    if (!error) {
      ++one;
      continue;
    }
    const int peer = one->peer;
    end(std::move(*one), error, peer);
    one = wanted_.erase(one);
  }
}

// What waits for `peer`, or is on its way from or to it.
void Messages::fail_peer(int peer, const std::exception_ptr& error) {
  auto& queue = sending_[static_cast<std::size_t>(peer)];
  for (; !queue.empty(); queue.pop_front()) end(std::move(queue.front().message), error, peer);
  Inbox& inbox = inbox_[static_cast<std::size_t>(peer)];
  if (std::exchange(inbox.has_head, false) && inbox.is_for_somebody) {
    end(std::exchange(inbox.target, {}), error, peer);
  }
  fail_wanted([&](const Message& message) { return message.peer == peer ? error : nullptr; });
}

// This rank itself is out.
void Messages::fail_all() {
  const auto error = failure(exchange_.loss_of(exchange_.rank()));
  for (int rank = 0; rank < exchange_.size(); ++rank) fail_peer(rank, error);
  fail_wanted([&](const Message&) { return error; });
}

// A rank that is lost sends nothing more, and takes nothing; what it has sent was taken before.
void Messages::fail_lost() {
  if (exchange_.is_lost(exchange_.rank())) return fail_all();
  int present = 0;
  for (int rank = 0; rank < exchange_.size(); ++rank) {
    if (rank == exchange_.rank()) continue;
    if (!exchange_.is_lost(rank)) {
      ++present;
      continue;
    }
    pull(rank);
    fail_peer(rank, failure(exchange_.loss_of(rank)));
  }
  if (present > 0) return;
  const auto error = failure({ErrorCode::kUnavailable, "every other rank has left or died"});
  fail_wanted([&](const Message&) { return error; });
}

void Messages::fail_late() {
  const auto now = Clock::now();
  const auto late = [&](const char* doing, int peer) {
    return failure({ErrorCode::kTimeout,
                    std::string(doing) + " timed out: " +
                        (peer == kAny ? std::string("no rank sent anything in time")
                                      : "rank " + std::to_string(exchange_.global_rank(peer)) +
                                            " did not come in time")});
  };
  for (std::size_t to = 0; to < sending_.size(); ++to) {
    auto& queue = sending_[to];
    while (!queue.empty() && (queue.front().message.until <= now || is_broken_[to])) {
      if (queue.front().done > 0) is_broken_[to] = true;  // what follows could not be told from it
      end(std::move(queue.front().message), late("send", static_cast<int>(to)),
          static_cast<int>(to));
      queue.pop_front();
    }
  }
  for (std::size_t from = 0; from < inbox_.size(); ++from) {
    Inbox& inbox = inbox_[from];
    if (!inbox.has_head || !inbox.is_for_somebody || inbox.target.until > now) continue;
    const int peer = static_cast<int>(from);
    end(std::exchange(inbox.target, {}), late("receive", peer), peer);
    // The rest of it is of no use, but comes before what follows.
    inbox.is_for_somebody = false;
    inbox.is_dropped = true;
    inbox.aside.resize(inbox.head.bytes);
  }
  fail_wanted([&](const Message& message) {
    return message.until <= now ? late("receive", message.peer) : nullptr;
  });
}

void Messages::work() {
  Futex& futex = exchange_.segment().page(exchange_.rank()).message_futex;
  Lock lock(mutex_);
  while (true) {
    posted_.wait(lock, [this] { return is_stopping_ || !is_idle(); });
    if (is_stopping_) return;
    has_changed_ = false;
    auto until = Clock::time_point::max();
    for (const auto& queue : sending_) {
      for (const Sending& one : queue) until = std::min(until, one.message.until);
    }
    for (const Message& one : wanted_) until = std::min(until, one.until);
    for (const Inbox& inbox : inbox_) {
      if (inbox.has_head && inbox.is_for_somebody) until = std::min(until, inbox.target.until);
    }
    lock.unlock();
    wait_for(futex, until, [this] {
      Lock inner(mutex_);
      proceed();
      const bool is_over = is_stopping_ || has_changed_ || is_idle() || !over_.empty();
      report(inner);
      return is_over;
    });
    lock.lock();
  }
}

}  // namespace ddprun::shm
