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
std::uint64_t rounds_for(std::size_t bytes, std::size_t piece, const Rounds& rounds) {
  if (rounds.size() == 1) return 0;
  return std::max<std::uint64_t>(1, (bytes + piece - 1) / piece);
}

// What of a slot is for each rank where one slot holds parts for all.
std::size_t part_bytes(const Rounds& rounds) {
  return rounds.capacity() / static_cast<std::size_t>(rounds.size()) / kLine * kLine;
}

std::size_t piece_size(std::size_t bytes, std::size_t piece, std::uint64_t index) {
  const std::size_t begin = piece * index;
  return begin < bytes ? std::min(piece, bytes - begin) : 0;
}

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void copy_unless_same(void* to, const void* from, std::size_t bytes) {
  if (to != from) copy_bytes(to, from, bytes);
}

// This round's piece of each part but one's own, side by side.
void fill_parts(const std::vector<const void*>& parts, std::size_t bytes, std::uint64_t round,
                Rounds& rounds) {
  const std::size_t piece = part_bytes(rounds);
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    if (static_cast<int>(rank) == rounds.rank()) continue;
    copy_bytes(rounds.mine() + rank * piece,
               static_cast<const std::byte*>(parts[rank]) + round * piece,
               piece_size(bytes, piece, round));
  }
}

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"barrier", "broadcast",      "all_reduce",
                                    "reduce",  "gather",         "all_gather",
                                    "scatter", "reduce_scatter", "all_to_all"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace

std::string text_of(const Call& call, const Rounds& rounds) {
  std::ostringstream text;
  text << name_of(static_cast<Kind>(call.kind));
  const auto op = static_cast<Op>(call.op);
  if (op != Op::kNone) text << " " << name_of(op);
  const auto kind = static_cast<Kind>(call.kind);
  if (kind != Kind::kBarrier && kind != Kind::kAllToAll) {
    text << " of " << call.count << " " << name_of(static_cast<Type>(call.type));
  }
  if (call.root >= 0) text << " with the root " << rounds.global_rank(call.root);
  text << " (number " << call.sequence << ")";
  return text.str();
}

Barrier::Barrier(const Rounds& rounds) : Collective(Kind::kBarrier, 0, rounds_for(0, 1, rounds)) {}

Broadcast::Broadcast(const Rounds& rounds, void* data, std::size_t bytes, int root)
    : Collective(Kind::kBroadcast, bytes, rounds_for(bytes, rounds.capacity(), rounds)),
      data_(static_cast<std::byte*>(data)),
      bytes_(bytes) {
  call_.root = root;
}

void Broadcast::fill(std::uint64_t round, Rounds& rounds) {
  if (rounds.rank() != call_.root) return;
  copy_bytes(rounds.mine(), data_ + round * rounds.capacity(),
             piece_size(bytes_, rounds.capacity(), round));
}

void Broadcast::consume(std::uint64_t round, Rounds& rounds) {
  if (rounds.rank() == call_.root) return;
  copy_bytes(data_ + round * rounds.capacity(), rounds.of(call_.root),
             piece_size(bytes_, rounds.capacity(), round));
}

Reduction::Reduction(const Rounds& rounds, void* data, std::size_t count, Type type, Op op,
                     int root)
    : Collective(root == kAll ? Kind::kAllReduce : Kind::kReduce, count, 0),
      data_(static_cast<std::byte*>(data)),
      count_(count),
      element_(size_of(type)),
      type_(type),
      op_(op),
      is_direct_(rounds.size() == 2 || count * element_ <= kDirectBytes) {
  rounds_ = rounds_for(count * element_, rounds.capacity(), rounds) * (is_direct_ ? 1 : 2);
  call_.type = static_cast<std::uint32_t>(type);
  call_.op = static_cast<std::uint32_t>(op);
  call_.root = root;
}

Reduction::Piece Reduction::piece(std::uint64_t index, const Rounds& rounds) const {
  const std::size_t most = rounds.capacity() / element_;
  return {most * index, piece_size(count_, most, index)};
}

// In whole cache lines, so that no two ranks write to one.
Reduction::Piece Reduction::share_of(const Piece& piece, int rank, const Rounds& rounds) const {
  const auto ranks = static_cast<std::size_t>(rounds.size());
  const std::size_t line = kLine / element_;
  const std::size_t share = ((piece.count + ranks - 1) / ranks + line - 1) / line * line;
  const std::size_t begin = std::min(share * static_cast<std::size_t>(rank), piece.count);
  return {begin, std::min(share, piece.count - begin)};
}

void Reduction::fill(std::uint64_t round, Rounds& rounds) {
  const bool is_sum_round = !is_direct_ && round % 2 == 1;
  const Piece all = piece(is_direct_ ? round : round / 2, rounds);
  if (!is_sum_round) {
    if (is_direct_ && rounds.rank() == call_.root) return;  // nobody reads it
    return copy_bytes(rounds.mine(), at(all.begin), all.count * element_);
  }
  const Piece share = share_of(all, rounds.rank(), rounds);
  const std::size_t offset = share.begin * element_;
  std::array<const void*, kMostRanks> from;
  for (int rank = 0; rank < rounds.size(); ++rank) {
    from[static_cast<std::size_t>(rank)] = rounds.of(rank) + offset;
  }
  reduce(type_, op_, rounds.mine() + offset, from.data(), rounds.size(), share.count);
}

void Reduction::consume(std::uint64_t round, Rounds& rounds) {
  if (call_.root != kAll && rounds.rank() != call_.root) return;
  const Piece all = piece(is_direct_ ? round : round / 2, rounds);
  if (is_direct_) {
    std::array<const void*, kMostRanks> from;
    for (int rank = 0; rank < rounds.size(); ++rank) {
      from[static_cast<std::size_t>(rank)] =
          rank == rounds.rank() ? at(all.begin) : rounds.of(rank);
    }
    return reduce(type_, op_, at(all.begin), from.data(), rounds.size(), all.count);
  }
  if (round % 2 == 0) return;
  for (int rank = 0; rank < rounds.size(); ++rank) {
    const Piece share = share_of(all, rank, rounds);
    copy_bytes(at(all.begin + share.begin), rounds.of(rank) + share.begin * element_,
               share.count * element_);
  }
}

Gather::Gather(const Rounds& rounds, const void* own, std::size_t bytes, std::vector<void*> all,
               int root)
    : Collective(root == kAll ? Kind::kAllGather : Kind::kGather, bytes,
                 rounds_for(bytes, rounds.capacity(), rounds)),
      own_(static_cast<const std::byte*>(own)),
      bytes_(bytes),
      all_(std::move(all)),
      rank_(rounds.rank()) {
  call_.root = root;
}

void Gather::keep_own() {
  if (!all_.empty()) copy_unless_same(all_[static_cast<std::size_t>(rank_)], own_, bytes_);
}

void Gather::fill(std::uint64_t round, Rounds& rounds) {
  if (rank_ == call_.root) return;
  const std::size_t piece = rounds.capacity();
  copy_bytes(rounds.mine(), own_ + round * piece, piece_size(bytes_, piece, round));
}

void Gather::consume(std::uint64_t round, Rounds& rounds) {
  const std::size_t piece = rounds.capacity();
  for (std::size_t rank = 0; rank < all_.size(); ++rank) {
    if (static_cast<int>(rank) == rank_) continue;
    copy_bytes(static_cast<std::byte*>(all_[rank]) + round * piece,
               rounds.of(static_cast<int>(rank)), piece_size(bytes_, piece, round));
  }
}

Scatter::Scatter(const Rounds& rounds, void* own, std::size_t bytes, std::vector<const void*> parts,
                 int root)
    : Collective(Kind::kScatter, bytes, rounds_for(bytes, part_bytes(rounds), rounds)),
      own_(static_cast<std::byte*>(own)),
      bytes_(bytes),
      parts_(std::move(parts)),
      rank_(rounds.rank()) {
  call_.root = root;
}

void Scatter::keep_own() {
  if (!parts_.empty()) copy_unless_same(own_, parts_[static_cast<std::size_t>(rank_)], bytes_);
}

void Scatter::fill(std::uint64_t round, Rounds& rounds) {
  fill_parts(parts_, bytes_, round, rounds);
}

void Scatter::consume(std::uint64_t round, Rounds& rounds) {
  if (rank_ == call_.root) return;
  const std::size_t piece = part_bytes(rounds);
  copy_bytes(own_ + round * piece, rounds.of(call_.root) + static_cast<std::size_t>(rank_) * piece,
             piece_size(bytes_, piece, round));
}

ReduceScatter::ReduceScatter(const Rounds& rounds, void* own, std::size_t count,
                             std::vector<const void*> parts, Type type, Op op)
    : Collective(Kind::kReduceScatter, count,
                 rounds_for(count * size_of(type), part_bytes(rounds), rounds)),
      own_(static_cast<std::byte*>(own)),
      bytes_(count * size_of(type)),
      parts_(std::move(parts)),
      type_(type),
      op_(op),
      rank_(rounds.rank()) {
  call_.type = static_cast<std::uint32_t>(type);
  call_.op = static_cast<std::uint32_t>(op);
}

// Nobody else's is needed where there is nobody else.
void ReduceScatter::keep_own() {
  if (parts_.size() == 1) copy_unless_same(own_, parts_[0], bytes_);
}

void ReduceScatter::fill(std::uint64_t round, Rounds& rounds) {
  fill_parts(parts_, bytes_, round, rounds);
}

void ReduceScatter::consume(std::uint64_t round, Rounds& rounds) {
  const std::size_t piece = part_bytes(rounds);
  const auto own = static_cast<std::size_t>(rank_);
  std::array<const void*, kMostRanks> from;
  for (int rank = 0; rank < rounds.size(); ++rank) {
    from[static_cast<std::size_t>(rank)] =
        rank == rank_ ? static_cast<const std::byte*>(parts_[own]) + round * piece
                      : rounds.of(rank) + own * piece;
  }
  reduce(type_, op_, own_ + round * piece, from.data(), rounds.size(),
         piece_size(bytes_, piece, round) / size_of(type_));
}

AllToAll::AllToAll(const Rounds& rounds, std::vector<Out> sent, std::vector<In> received)
    : Collective(Kind::kAllToAll, 0, rounds_for(0, 1, rounds)),
      sent_(std::move(sent)),
      received_(std::move(received)),
      rank_(rounds.rank()) {}

void AllToAll::keep_own() {
  const auto own = static_cast<std::size_t>(rank_);
  copy_unless_same(received_[own].data, sent_[own].data,
                   std::min(sent_[own].bytes, received_[own].bytes));
}

// In the first round the slot holds, for each rank, how much this one sends it and expects of it.
void AllToAll::fill(std::uint64_t round, Rounds& rounds) {
  if (round == 0) {
    auto* const lengths = reinterpret_cast<std::uint64_t*>(rounds.mine());
    for (std::size_t rank = 0; rank < sent_.size(); ++rank) {
      lengths[2 * rank] = sent_[rank].bytes;
      lengths[2 * rank + 1] = received_[rank].bytes;
    }
    return;
  }
  const std::size_t piece = part_bytes(rounds);
  for (std::size_t rank = 0; rank < sent_.size(); ++rank) {
    if (static_cast<int>(rank) == rank_) continue;
    copy_bytes(rounds.mine() + rank * piece,
               static_cast<const std::byte*>(sent_[rank].data) + (round - 1) * piece,
               piece_size(sent_[rank].bytes, piece, round - 1));
  }
}

// All see the same lengths, so all throw or none does.
void AllToAll::compare_lengths(Rounds& rounds) {
  std::uint64_t most = 0;
  for (int from = 0; from < rounds.size(); ++from) {
    const auto* const sends = reinterpret_cast<const std::uint64_t*>(rounds.of(from));
    for (int to = 0; to < rounds.size(); ++to) {
      const std::uint64_t sent = sends[2 * to];
      const std::uint64_t expected =
          reinterpret_cast<const std::uint64_t*>(rounds.of(to))[2 * from + 1];
      if (sent != expected) {
        rounds.give_up(Failure(ErrorCode::kInvalidArgument,
                               "all_to_all: rank " + std::to_string(rounds.global_rank(from)) +
                                   " sends " + std::to_string(sent) + " bytes to rank " +
                                   std::to_string(rounds.global_rank(to)) + ", which expects " +
                                   std::to_string(expected)));
      }
      if (from != to) most = std::max(most, sent);
    }
  }
  if (most > 0) rounds_ += rounds_for(most, part_bytes(rounds), rounds);
}

void AllToAll::consume(std::uint64_t round, Rounds& rounds) {
  if (round == 0) return compare_lengths(rounds);
  const std::size_t piece = part_bytes(rounds);
  for (std::size_t rank = 0; rank < received_.size(); ++rank) {
    if (static_cast<int>(rank) == rank_) continue;
    copy_bytes(static_cast<std::byte*>(received_[rank].data) + (round - 1) * piece,
               rounds.of(static_cast<int>(rank)) + static_cast<std::size_t>(rank_) * piece,
               piece_size(received_[rank].bytes, piece, round - 1));
  }
}

Run::Run(Rounds& rounds, std::unique_ptr<Collective> collective, Clock::time_point until)
    : rounds_(rounds), collective_(std::move(collective)), until_(until) {}

void Run::begin() {
  rounds_.throw_if_given_up();
  collective_->keep_own();
  if (collective_->rounds() == 0) return;
  call_ = collective_->call();
  call_.sequence = rounds_.next_call();
  rounds_.call() = call_;
  collective_->fill(0, rounds_);
  rounds_.publish();
}

void Run::finish(std::chrono::nanoseconds spin) {
  const Patience patience{.spin = spin, .until = until_};
  for (std::uint64_t round = 0; round < collective_->rounds(); ++round) {
    rounds_.wait(patience, [&] { return text_of(call_, rounds_); });
    if (round == 0) compare_calls();
    collective_->consume(round, rounds_);
    if (round + 1 == collective_->rounds()) return;
    collective_->fill(round + 1, rounds_);
    rounds_.publish();
  }
}

void Run::compare_calls() {
  const Call& first = rounds_.call_of(0);
  for (int rank = 1; rank < rounds_.size(); ++rank) {
    const Call& other = rounds_.call_of(rank);
    if (other == first) continue;
    rounds_.give_up(Failure(
        ErrorCode::kInvalidArgument,
        "the ranks make different calls: rank " + std::to_string(rounds_.global_rank(0)) +
            " makes " + text_of(first, rounds_) + ", rank " +
            std::to_string(rounds_.global_rank(rank)) + " makes " + text_of(other, rounds_)));
  }
}

}  // namespace ddprun::shm
