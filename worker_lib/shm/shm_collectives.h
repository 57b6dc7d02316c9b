// The collectives as sequences of rounds (shm_slot_exchange.h): what a rank writes for each round and what
// it does with what the others wrote. On plain memory, which must live and not be touched until the
// end. Each is begun on all ranks in the same order; the first round carries a Call, and ranks whose
// Calls differ all get a Failure that says how. What stays on its own rank never goes through
// shared memory, so that a group of one needs none.
//
//   Run run(exchange, std::make_unique<Reduction>(…), until);
//   run.begin();         // writes and publishes the first piece; never waits
//   run.finish(spin);    // all the rest
//
// Owned and called by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker_lib/shm/shm_reduce.h"
#include "worker_lib/shm/shm_slot_exchange.h"

namespace ddprun::shm {

class Collective {
 public:
  virtual ~Collective() = default;

  const Call& call() const { return call_; }
  // Known to be so many; all_to_all learns in the first one how many there are.
  std::uint64_t rounds() const { return rounds_; }
  bool has_one_round() const { return rounds_ <= 1 && call_.kind != Kind::kAllToAll; }

  // What is moved, for comparison: bytes, if nobody says more.
  void say(Type type) { call_.type = type; }

  // Once, before all rounds: what this rank keeps to itself.
  virtual void keep_own(const SlotExchange&) {}
  // Writes to exchange.mine(); what the others published for the round before can be read meanwhile.
  virtual void fill(std::uint64_t round, SlotExchange& exchange) = 0;
  // Reads what all have published.
  virtual void consume(std::uint64_t round, SlotExchange& exchange) = 0;

 protected:
  Collective(Kind kind, std::uint64_t count, std::uint64_t rounds) : rounds_(rounds) {
    call_.kind = kind;
    call_.count = count;
  }

  Call call_;
  std::uint64_t rounds_;
};

class Barrier : public Collective {
 public:
  explicit Barrier(const SlotExchange& exchange);
  void fill(std::uint64_t, SlotExchange&) override {}
  void consume(std::uint64_t, SlotExchange&) override {}
};

class Broadcast : public Collective {
 public:
  Broadcast(const SlotExchange& exchange, void* data, std::size_t bytes, int root);
  void fill(std::uint64_t round, SlotExchange& exchange) override;
  void consume(std::uint64_t round, SlotExchange& exchange) override;

 private:
  std::byte* data_;
  std::size_t bytes_;
};

// In place, at all ranks or at `root`. Two ranks, and more where it is little, read each other's
// whole piece; else each reduces its share of every piece and the others read that.
class Reduction : public Collective {
 public:
  static constexpr int kAll = -1;
  Reduction(const SlotExchange& exchange, void* data, std::size_t count, Type type, Op op,
            int root = kAll);
  void fill(std::uint64_t round, SlotExchange& exchange) override;
  void consume(std::uint64_t round, SlotExchange& exchange) override;

 private:
  struct Piece {
    std::size_t begin;  // in elements
    std::size_t count;
  };
  Piece piece(std::uint64_t index, const SlotExchange& exchange) const;
  Piece share_of(const Piece& piece, int rank, const SlotExchange& exchange) const;
  std::byte* at(std::size_t element) const { return data_ + element * element_; }

  std::byte* data_;
  std::size_t count_;
  std::size_t element_;
  Type type_;
  Op op_;
  bool is_direct_;
};

// `all`: one place for each rank's `bytes`; empty but at `root`, if there is one.
class Gather : public Collective {
 public:
  static constexpr int kAll = -1;
  Gather(const SlotExchange& exchange, const void* own, std::size_t bytes, std::vector<void*> all,
         int root = kAll);
  void keep_own(const SlotExchange& exchange) override;
  void fill(std::uint64_t round, SlotExchange& exchange) override;
  void consume(std::uint64_t round, SlotExchange& exchange) override;

 private:
  const std::byte* own_;
  std::size_t bytes_;
  std::vector<void*> all_;
};

// What a rank has for another one, and where it puts what comes from there.
struct Source {
  const void* data;
  std::uint64_t bytes;
};
struct Place {
  void* data;
  std::uint64_t bytes;
};

// `parts`: one as long as `own` for each rank, empty but at `root`.
class Scatter : public Collective {
 public:
  Scatter(const SlotExchange& exchange, Place own, std::vector<Source> parts, int root);
  void keep_own(const SlotExchange& exchange) override;
  void fill(std::uint64_t round, SlotExchange& exchange) override;
  void consume(std::uint64_t round, SlotExchange& exchange) override;

 private:
  Place own_;
  std::vector<Source> parts_;
};

// `parts`: one for each rank, `own` becomes the reduction of this rank's; all of elements of one type.
class ReduceScatter : public Collective {
 public:
  ReduceScatter(const SlotExchange& exchange, Place own, std::vector<Source> parts, Type type,
                Op op);
  void keep_own(const SlotExchange& exchange) override;
  void fill(std::uint64_t round, SlotExchange& exchange) override;
  void consume(std::uint64_t round, SlotExchange& exchange) override;

 private:
  Place own_;
  std::vector<Source> parts_;
  Type type_;
  Op op_;
};

// One part for each rank, of any length, and one place for what each sends. The first round tells
// everybody all lengths.
class AllToAll : public Collective {
 public:
  AllToAll(const SlotExchange& exchange, std::vector<Source> sent, std::vector<Place> received);
  void keep_own(const SlotExchange& exchange) override;
  void fill(std::uint64_t round, SlotExchange& exchange) override;
  void consume(std::uint64_t round, SlotExchange& exchange) override;

 private:
  void compare_lengths(SlotExchange& exchange);

  std::vector<Source> sent_;
  std::vector<Place> received_;
};

// One collective on its way.
class Run {
 public:
  Run(SlotExchange& exchange, std::unique_ptr<Collective> collective, Clock::time_point until);

  // Never waits. Both throw a Failure, after which the exchange is given up.
  void begin();
  void finish(std::chrono::nanoseconds spin);

  // What the others need of this rank is said with begin().
  bool is_quick() const { return collective_->has_one_round(); }
  // Whether finish() would return without waiting, for a quick one that has begun.
  bool can_finish(std::chrono::nanoseconds spin) {
    return collective_->rounds() == 0 || exchange_.can_read(spin);
  }

 private:
  void compare_calls();

  SlotExchange& exchange_;
  std::unique_ptr<Collective> collective_;
  Clock::time_point until_;
  Call call_;
};

std::string text_of(const Call& call, const SlotExchange& exchange);

}  // namespace ddprun::shm
