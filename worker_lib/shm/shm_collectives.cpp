#include "worker_lib/shm/shm_collectives.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>
#include <utility>

namespace ddprun::shm {
namespace {

// Up to here reading everybody's piece is quicker than one more round.
constexpr std::size_t kDirectBytes = 32 << 10;

// At least one, so that the ranks meet and compare their calls; none alone.
std::uint64_t rounds_for(std::size_t bytes, std::size_t piece, const SlotExchange& exchange) {
  if (exchange.size() == 1) return 0;
  return std::max<std::uint64_t>(1, (bytes + piece - 1) / piece);
}

// What of a slot is for each rank where one slot holds parts for all.
std::size_t part_bytes(const SlotExchange& exchange) {
  return exchange.capacity() / static_cast<std::size_t>(exchange.size()) / kLine * kLine;
}

std::size_t piece_size(std::size_t bytes, std::size_t piece, std::uint64_t index) {
  const std::size_t begin = piece * index;
  return begin < bytes ? std::min(piece, bytes - begin) : 0;
}

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

// This round's piece of each part but one's own, side by side.
void fill_parts(const std::vector<Source>& parts, std::uint64_t round, SlotExchange& exchange) {
  const std::size_t piece = part_bytes(exchange);
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    if (static_cast<int>(rank) == exchange.rank()) continue;
    copy_bytes(exchange.mine() + rank * piece,
               static_cast<const std::byte*>(parts[rank].data) + round * piece,
               piece_size(parts[rank].bytes, piece, round));
  }
}

// The piece that `from` has filled for this rank.
void take_part(const Place& to, int from, std::uint64_t round, SlotExchange& exchange) {
  const std::size_t piece = part_bytes(exchange);
  copy_bytes(static_cast<std::byte*>(to.data) + round * piece,
             exchange.of(from) + static_cast<std::size_t>(exchange.rank()) * piece,
             piece_size(to.bytes, piece, round));
}

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"barrier", "broadcast",      "all_reduce",
                                    "reduce",  "gather",         "all_gather",
                                    "scatter", "reduce_scatter", "all_to_all"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace

std::string text_of(const Call& call, const SlotExchange& exchange) {
  std::ostringstream text;
  text << name_of(call.kind);
  if (call.op != Op::kNone) text << " " << name_of(call.op);
  if (call.kind != Kind::kBarrier && call.kind != Kind::kAllToAll) {
    text << " of " << call.count << " " << name_of(call.type);
  }
  if (call.root >= 0) text << " with the root " << exchange.global_rank(call.root);
  text << " (number " << call.sequence << ")";
  return text.str();
}

Barrier::Barrier(const SlotExchange& exchange)
    : Collective(Kind::kBarrier, 0, rounds_for(0, 1, exchange)) {}

Broadcast::Broadcast(const SlotExchange& exchange, void* data, std::size_t bytes, int root)
    : Collective(Kind::kBroadcast, bytes, rounds_for(bytes, exchange.capacity(), exchange)),
      data_(static_cast<std::byte*>(data)),
      bytes_(bytes) {
  call_.root = root;
}

void Broadcast::fill(std::uint64_t round, SlotExchange& exchange) {
  if (exchange.rank() != call_.root) return;
  copy_bytes(exchange.mine(), data_ + round * exchange.capacity(),
             piece_size(bytes_, exchange.capacity(), round));
}

void Broadcast::consume(std::uint64_t round, SlotExchange& exchange) {
  if (exchange.rank() == call_.root) return;
  copy_bytes(data_ + round * exchange.capacity(), exchange.of(call_.root),
             piece_size(bytes_, exchange.capacity(), round));
}

Reduction::Reduction(const SlotExchange& exchange, void* data, std::size_t count, Type type, Op op,
                     int root)
    : Collective(root == kAll ? Kind::kAllReduce : Kind::kReduce, count, 0),
      data_(static_cast<std::byte*>(data)),
      count_(count),
      element_(size_of(type)),
      type_(type),
      op_(op),
      is_direct_(exchange.size() == 2 || count * element_ <= kDirectBytes) {
  rounds_ = rounds_for(count * element_, exchange.capacity(), exchange) * (is_direct_ ? 1 : 2);
  call_.type = type;
  call_.op = op;
  call_.root = root;
}

Reduction::Piece Reduction::piece(std::uint64_t index, const SlotExchange& exchange) const {
  const std::size_t most = exchange.capacity() / element_;
  return {most * index, piece_size(count_, most, index)};
}

// In whole cache lines, so that no two ranks write to one.
Reduction::Piece Reduction::share_of(const Piece& piece, int rank,
                                     const SlotExchange& exchange) const {
  const auto ranks = static_cast<std::size_t>(exchange.size());
  const std::size_t line = kLine / element_;
  const std::size_t share = ((piece.count + ranks - 1) / ranks + line - 1) / line * line;
  const std::size_t begin = std::min(share * static_cast<std::size_t>(rank), piece.count);
  return {begin, std::min(share, piece.count - begin)};
}

void Reduction::fill(std::uint64_t round, SlotExchange& exchange) {
  const bool is_sum_round = !is_direct_ && round % 2 == 1;
  const Piece all = piece(is_direct_ ? round : round / 2, exchange);
  if (!is_sum_round) {
    if (is_direct_ && exchange.rank() == call_.root) return;  // nobody reads it
    return copy_bytes(exchange.mine(), at(all.begin), all.count * element_);
  }
  const Piece share = share_of(all, exchange.rank(), exchange);
  const std::size_t offset = share.begin * element_;
  std::array<const void*, kMostRanks> from;
  for (int rank = 0; rank < exchange.size(); ++rank) {
    from[static_cast<std::size_t>(rank)] = exchange.of(rank) + offset;
  }
  reduce(type_, op_, exchange.mine() + offset, from.data(), exchange.size(), share.count);
}

void Reduction::consume(std::uint64_t round, SlotExchange& exchange) {
  if (call_.root != kAll && exchange.rank() != call_.root) return;
  const Piece all = piece(is_direct_ ? round : round / 2, exchange);
  if (is_direct_) {
    std::array<const void*, kMostRanks> from;
    for (int rank = 0; rank < exchange.size(); ++rank) {
      from[static_cast<std::size_t>(rank)] =
          rank == exchange.rank() ? at(all.begin) : exchange.of(rank);
    }
    return reduce(type_, op_, at(all.begin), from.data(), exchange.size(), all.count);
  }
  if (round % 2 == 0) return;
  for (int rank = 0; rank < exchange.size(); ++rank) {
    const Piece share = share_of(all, rank, exchange);
    copy_bytes(at(all.begin + share.begin), exchange.of(rank) + share.begin * element_,
               share.count * element_);
  }
}

Gather::Gather(const SlotExchange& exchange, const void* own, std::size_t bytes,
               std::vector<void*> all, int root)
    : Collective(root == kAll ? Kind::kAllGather : Kind::kGather, bytes,
                 rounds_for(bytes, exchange.capacity(), exchange)),
      own_(static_cast<const std::byte*>(own)),
      bytes_(bytes),
      all_(std::move(all)) {
  call_.root = root;
}

void Gather::keep_own(const SlotExchange& exchange) {
  if (!all_.empty()) copy_bytes(all_[static_cast<std::size_t>(exchange.rank())], own_, bytes_);
}

void Gather::fill(std::uint64_t round, SlotExchange& exchange) {
  if (exchange.rank() == call_.root) return;
  const std::size_t piece = exchange.capacity();
  copy_bytes(exchange.mine(), own_ + round * piece, piece_size(bytes_, piece, round));
}

void Gather::consume(std::uint64_t round, SlotExchange& exchange) {
  const std::size_t piece = exchange.capacity();
  for (std::size_t rank = 0; rank < all_.size(); ++rank) {
    if (static_cast<int>(rank) == exchange.rank()) continue;
    copy_bytes(static_cast<std::byte*>(all_[rank]) + round * piece,
               exchange.of(static_cast<int>(rank)), piece_size(bytes_, piece, round));
  }
}

Scatter::Scatter(const SlotExchange& exchange, Place own, std::vector<Source> parts, int root)
    : Collective(Kind::kScatter, own.bytes, rounds_for(own.bytes, part_bytes(exchange), exchange)),
      own_(own),
      parts_(std::move(parts)) {
  call_.root = root;
}

void Scatter::keep_own(const SlotExchange& exchange) {
  if (parts_.empty()) return;
  copy_bytes(own_.data, parts_[static_cast<std::size_t>(exchange.rank())].data, own_.bytes);
}

void Scatter::fill(std::uint64_t round, SlotExchange& exchange) {
  fill_parts(parts_, round, exchange);
}

void Scatter::consume(std::uint64_t round, SlotExchange& exchange) {
  if (exchange.rank() != call_.root) take_part(own_, call_.root, round, exchange);
}

ReduceScatter::ReduceScatter(const SlotExchange& exchange, Place own, std::vector<Source> parts,
                             Type type, Op op)
    : Collective(Kind::kReduceScatter, own.bytes / size_of(type),
                 rounds_for(own.bytes, part_bytes(exchange), exchange)),
      own_(own),
      parts_(std::move(parts)),
      type_(type),
      op_(op) {
  call_.type = type;
  call_.op = op;
}

// Nobody else's is needed where there is nobody else.
void ReduceScatter::keep_own(const SlotExchange&) {
  if (parts_.size() == 1) copy_bytes(own_.data, parts_[0].data, own_.bytes);
}

void ReduceScatter::fill(std::uint64_t round, SlotExchange& exchange) {
  fill_parts(parts_, round, exchange);
}

void ReduceScatter::consume(std::uint64_t round, SlotExchange& exchange) {
  const std::size_t piece = part_bytes(exchange);
  const auto own = static_cast<std::size_t>(exchange.rank());
  std::array<const void*, kMostRanks> from;
  for (int rank = 0; rank < exchange.size(); ++rank) {
    from[static_cast<std::size_t>(rank)] =
        rank == exchange.rank() ? static_cast<const std::byte*>(parts_[own].data) + round * piece
                                : exchange.of(rank) + own * piece;
  }
  reduce(type_, op_, static_cast<std::byte*>(own_.data) + round * piece, from.data(),
         exchange.size(), piece_size(own_.bytes, piece, round) / size_of(type_));
}

AllToAll::AllToAll(const SlotExchange& exchange, std::vector<Source> sent,
                   std::vector<Place> received)
    : Collective(Kind::kAllToAll, 0, rounds_for(0, 1, exchange)),
      sent_(std::move(sent)),
      received_(std::move(received)) {}

void AllToAll::keep_own(const SlotExchange& exchange) {
  const auto own = static_cast<std::size_t>(exchange.rank());
  copy_bytes(received_[own].data, sent_[own].data,
             std::min(sent_[own].bytes, received_[own].bytes));
}

// In the first round the slot holds, for each rank, how much this one sends it and expects of it.
void AllToAll::fill(std::uint64_t round, SlotExchange& exchange) {
  if (round > 0) return fill_parts(sent_, round - 1, exchange);
  auto* const lengths = reinterpret_cast<std::uint64_t*>(exchange.mine());
  for (std::size_t rank = 0; rank < sent_.size(); ++rank) {
    lengths[2 * rank] = sent_[rank].bytes;
    lengths[2 * rank + 1] = received_[rank].bytes;
  }
}

// All see the same lengths, so all throw or none does.
void AllToAll::compare_lengths(SlotExchange& exchange) {
  std::uint64_t most = 0;
  for (int from = 0; from < exchange.size(); ++from) {
    for (int to = 0; to < exchange.size(); ++to) {
      // Two lengths of `by` for `rank`.
      const auto lengths = [&](int by, int rank) {
        return reinterpret_cast<const std::uint64_t*>(exchange.of(by)) + std::ptrdiff_t{2} * rank;
      };
      const std::uint64_t sent = lengths(from, to)[0];
      const std::uint64_t expected = lengths(to, from)[1];
      if (sent != expected) {
        exchange.give_up(Failure(ErrorCode::kInvalidArgument,
                                 "all_to_all: rank " + std::to_string(exchange.global_rank(from)) +
                                     " sends " + std::to_string(sent) + " bytes to rank " +
                                     std::to_string(exchange.global_rank(to)) + ", which expects " +
                                     std::to_string(expected)));
      }
      if (from != to) most = std::max(most, sent);
    }
  }
  if (most > 0) rounds_ += rounds_for(most, part_bytes(exchange), exchange);
}

void AllToAll::consume(std::uint64_t round, SlotExchange& exchange) {
  if (round == 0) return compare_lengths(exchange);
  for (int rank = 0; rank < exchange.size(); ++rank) {
    if (rank != exchange.rank()) {
      take_part(received_[static_cast<std::size_t>(rank)], rank, round - 1, exchange);
    }
  }
}

Run::Run(SlotExchange& exchange, std::unique_ptr<Collective> collective, Clock::time_point until)
    : exchange_(exchange), collective_(std::move(collective)), until_(until) {}

void Run::begin() {
  exchange_.throw_if_given_up();
  collective_->keep_own(exchange_);
  if (collective_->rounds() == 0) return;
  call_ = collective_->call();
  call_.sequence = exchange_.next_call();
  exchange_.call() = call_;
  collective_->fill(0, exchange_);
  exchange_.publish();
}

void Run::finish(std::chrono::nanoseconds spin) {
  for (std::uint64_t round = 0; round < collective_->rounds(); ++round) {
    exchange_.wait(spin, until_, [&] { return text_of(call_, exchange_); });
    if (round == 0) compare_calls();
    collective_->consume(round, exchange_);
    if (round + 1 == collective_->rounds()) return;
    collective_->fill(round + 1, exchange_);
    exchange_.publish();
  }
}

void Run::compare_calls() {
  const Call& first = exchange_.call_of(0);
  for (int rank = 1; rank < exchange_.size(); ++rank) {
    const Call& other = exchange_.call_of(rank);
    if (other == first) continue;
    exchange_.give_up(Failure(
        ErrorCode::kInvalidArgument,
        "the ranks make different calls: rank " + std::to_string(exchange_.global_rank(0)) +
            " makes " + text_of(first, exchange_) + ", rank " +
            std::to_string(exchange_.global_rank(rank)) + " makes " + text_of(other, exchange_)));
  }
}

}  // namespace ddprun::shm
