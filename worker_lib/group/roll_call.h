// RollCall: finds out who is missing when a collective fails. Gloo only says that some connection
// broke or that time is over, and often names a neighbour who had noticed the same a moment before.
//
// Every rank leaves at most one word in the store: that it has left in order, that it fails and
// why, or, when somebody calls the roll, that it is there and what it is doing. The roll is
// answered by a thread that waits for the call in the store (it costs one connection and no time),
// so that a rank which is alive but busy elsewhere is told from one that is gone. A word is given
// once: whatever a rank says later is a consequence. Only over a ClientStore is there such a
// thread; over other stores a rank answers when it notices a failure itself.
//
// Owned by the Context, shared by its groups. The main thread calls; fail() any thread. Nothing
// here throws: a store that is gone is one more piece of evidence.
#pragma once

#include <c10/core/ScalarType.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "ddprun/error.h"

namespace ddprun {

// What a rank is doing in its groups, as far as others may want to know.
struct Doing {
  std::string call;         // "all_reduce"; empty: none so far
  std::string tensors;      // "Float[3, 4]"
  std::string group;        // a smaller one's name has a '/'
  std::int64_t number = 0;  // of the group's calls, from 1
  bool is_waiting = false;  // in it now, else after it
  std::int64_t for_ms = 0;  // either way

  std::string to_string() const;
  bool is_in_the_same(const Doing& other) const {
    return group == other.group && number == other.number && call == other.call &&
           is_waiting == other.is_waiting;
  }

  template <typename Fields>
  void fields(Fields& field) {
    field(call, tensors, group, number, is_waiting, for_ms);
  }
};

class RollCall {
 public:
  // `name` is that of the group of all ranks, and begins every key; `host` says in words who serves
  // the store, for the case that it is gone: "rank 0". Not in a world of one.
  RollCall(c10::intrusive_ptr<c10d::Store> store, std::string name, int rank, std::string host);
  ~RollCall();
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  // Around the wait for a call; some ten nanoseconds each. `call` lives as long as this.
  void enter(const char* call, const std::string& group, std::int64_t number,
             const at::Tensor* tensor);
  void exit();

  // This rank's last word.
  void leave();
  void fail(const std::string& why);
  // For the rank that serves the store: until all these have left or know why they fail. False when
  // one does not in time.
  bool await_end(const std::vector<int>& ranks, std::chrono::milliseconds timeout);

  // The failure of a call of these ranks, `error` being the backend's; takes a second at most.
  Failure explain(const std::vector<int>& ranks, const std::exception& error);

 private:
  enum class Kind : std::uint8_t { kLeft, kFailed, kHere };
  struct Word {
    Kind kind = Kind::kHere;
    std::string why;
    Doing doing;
    template <typename Fields>
    void fields(Fields& field) {
      field(kind, why, doing);
    }
  };
  using Clock = std::chrono::steady_clock;

  std::string call_key() const { return name_ + "/roll_call"; }
  std::string word_key(int rank) const { return name_ + "/word/" + std::to_string(rank); }
  // Set when a rank needs the store no longer.
  std::string end_key(int rank) const { return name_ + "/end/" + std::to_string(rank); }
  using KeyOf = std::string (RollCall::*)(int rank) const;
  bool wait_for(const std::vector<int>& ranks, KeyOf key_of,
                std::chrono::milliseconds timeout) const;
  void find_missing(const std::vector<int>& ranks, std::size_t begin, std::size_t end,
                    std::vector<int>& missing) const;
  std::vector<int> missing_of(const std::vector<int>& ranks) const;

  void give(c10d::Store& store, Word word);
  void end();
  void answer_calls(c10d::Store& store);
  Doing doing() const;
  std::string findings(const std::vector<int>& ranks, const Doing& mine, bool is_death_seen);

  c10::intrusive_ptr<c10d::Store> store_;
  std::string name_;
  int rank_;
  std::string host_;

  mutable std::mutex doing_mutex_;
  const char* call_ = nullptr;
  std::string group_;
  std::int64_t number_ = 0;
  std::optional<c10::ScalarType> type_;
  std::vector<std::int64_t> sizes_;
  bool is_waiting_ = false;
  Clock::time_point since_ = Clock::now();

  std::mutex word_mutex_;
  bool has_given_word_ = false;

  c10::intrusive_ptr<c10d::Store> watched_;  // a connection of its own
  std::thread watch_;
};

}  // namespace ddprun
