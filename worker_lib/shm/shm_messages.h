// Messages from one rank to another, beside the collectives: one ring of bytes for each direction
// (shm_segment.h). A message is a head and its bytes. Sending ends when the last byte is in the ring,
// so a message larger than it ends when the receiver has taken most of it. Messages of one sender
// and tag arrive in their order; those with another tag than what is waited for are set aside, in
// ordinary memory, and only while something of that sender is waited for, so that a sender nobody
// listens to is held up and not stored.
//
// Any number may be under way in any order, as each proceeds when its ring allows: by whoever posts
// one, and by a thread made when something has to wait. Any thread may call; `ended` is called once
// for each message, on any thread, and must not call back.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "worker_lib/shm/shm_reduce.h"
#include "worker_lib/shm/shm_slot_exchange.h"

namespace ddprun::shm {

class Messages {
 public:
  static constexpr int kAny = -1;
  struct Message {
    int peer = kAny;  // kAny: receives from whoever sends first
    int tag = 0;
    Type type = Type::kUnknown;
    void* data = nullptr;  // only read when it is sent
    std::size_t bytes = 0;
    Clock::time_point until = Clock::time_point::max();
    std::function<void(std::exception_ptr error, int peer)> ended;
  };

  // `exchange` says who is there; lives longer than this.
  explicit Messages(SlotExchange& exchange);
  // What is under way is dropped; `ended` is not called.
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  void send(Message message);
  void receive(Message message);

 private:
  struct Head {
    std::uint64_t bytes;
    std::int32_t tag;
    Type type;
  };
  struct Sending {
    Message message;
    std::size_t done = 0;  // of the head and the bytes behind it
  };
  struct Kept {  // or on its way there
    Head head;
    std::vector<std::byte> bytes;
  };
  // What comes from one rank.
  struct Inbox {
    bool has_head = false;
    Head head{};
    std::size_t done = 0;
    bool is_for_somebody = false;  // for `target`, else into `aside`
    bool is_dropped = false;       // nobody will ask for it
    Message target;
    std::vector<std::byte> aside;
    std::list<Kept> kept;
  };
  struct Over {
    Message message;
    std::exception_ptr error;
    int peer;
  };
  using Lock = std::unique_lock<std::mutex>;

  void post(Lock& lock);
  bool is_idle() const;
  void proceed();
  bool push(int to, Sending& sending);
  void pull(int from);
  bool take_head(int from);
  void settle(int from);
  std::list<Message>::iterator find_wanted(int from, int tag);
  bool take_kept(Message& message);
  void end(Message message, std::exception_ptr error, int peer);
  std::exception_ptr mismatch(const Message& message, const Head& head, int from) const;
  template <typename ErrorOf>
  void fail_wanted(const ErrorOf& error_of);
  void fail_peer(int peer, const std::exception_ptr& error);
  void fail_all();
  void fail_lost();
  void fail_late();
  void work();
  void report(Lock& lock);

  SlotExchange& exchange_;
  std::mutex mutex_;
  std::vector<std::deque<Sending>> sending_;  // by receiver
  std::vector<bool> is_broken_;               // by receiver: a message was cut off
  std::vector<Inbox> inbox_;                  // by sender
  std::list<Message> wanted_;                 // in the order in which they were posted
  std::vector<Over> over_;
  bool is_stopping_ = false;
  bool has_changed_ = false;  // something was posted
  std::condition_variable posted_;
  std::thread thread_;
};

}  // namespace ddprun::shm
