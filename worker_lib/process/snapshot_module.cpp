#include "worker_lib/process/snapshot_module.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddprun/error.h"
#include "worker_lib/process/snapshot_memory.h"

using ddprun::SnapshotMemory;

struct DdprunSnapshots {
  std::shared_ptr<SnapshotMemory> memory;
  SnapshotMemory::Part part;
  bool is_begun = false;
  bool is_compared = false;
  std::vector<SnapshotMemory::Found> found;
};

namespace {

constexpr std::uint64_t kLeastRoom = 4096;
constexpr char kZeroes[4096] = {};

// For more than is needed now: an own part is pickled, and a few bytes more or less each time.
std::uint64_t roomy(std::uint64_t bytes) {
  const std::uint64_t wanted = bytes + bytes / 32 + kLeastRoom / 2;
  const std::uint64_t unit = std::max(kLeastRoom, std::bit_floor(wanted) / 16);
  return (wanted + unit - 1) / unit * unit;
}

void say(char* to, std::size_t size, const char* what) {
  if (to != nullptr && size > 0) std::snprintf(to, size, "%s", what);
}

// Hands a piece to `take`. False: it is more than `left`.
bool feed(const DdprunPiece& piece, std::uint64_t left, const auto& take) {
  if (piece.size > left) return false;
  if (piece.bytes != nullptr) {
    take(static_cast<const char*>(piece.bytes), piece.size);
    return true;
  }
  for (std::uint64_t rest = piece.size; rest > 0;) {
    const auto part = std::min<std::uint64_t>(rest, sizeof kZeroes);
    take(kZeroes, part);
    rest -= part;
  }
  return true;
}

bool copy(ddprun::StreamSum& sum, std::span<char> to, const DdprunPiece& piece) {
  return feed(piece, to.size() - sum.size(),
              [&](const char* from, std::size_t size) { sum.copy(to.data(), from, size); });
}

const SnapshotMemory::Found& found_at(const DdprunSnapshots* snapshots, int number) {
  return snapshots->found[static_cast<std::size_t>(number)];
}

}  // namespace

extern "C" {

DdprunSnapshots* ddprun_snapshots_of_this_process() {
  static const auto one = []() -> std::unique_ptr<DdprunSnapshots> {
    auto memory = SnapshotMemory::of_this_process();
    if (!memory) return nullptr;
    auto made = std::make_unique<DdprunSnapshots>();
    made->memory = std::move(memory);
    return made;
  }();
  return one.get();
}

int ddprun_snapshots_begin(DdprunSnapshots* snapshots, int ranks_of_node, int local_rank, int rank,
                           int world_size, std::int64_t step, std::uint64_t call,
                           std::uint64_t data_bytes, std::uint64_t layout, std::uint64_t own_bytes,
                           std::uint64_t* share, char* why, std::size_t why_size) {
  snapshots->is_begun = snapshots->is_compared = false;
  snapshots->found.clear();
  try {
    const bool is_anew = snapshots->memory->use({.ranks = ranks_of_node,
                                                 .data_bytes = data_bytes,
                                                 .own_bytes = roomy(own_bytes),
                                                 .layout = layout},
                                                own_bytes);
    snapshots->part = snapshots->memory->begin(local_rank, step, rank, world_size, call);
    snapshots->is_begun = true;
    share[0] = snapshots->part.begin;
    share[1] = snapshots->part.begin + snapshots->part.share.size();
    return is_anew ? kDdprunBegunAnew : kDdprunBegun;
  } catch (const ddprun::Failure& failure) {
    say(why, why_size, failure.error().message.c_str());
  } catch (const std::exception& error) {
    say(why, why_size, error.what());
  }
  return kDdprunRefused;
}

void ddprun_snapshots_write(DdprunSnapshots* snapshots, int is_own, const DdprunPiece* pieces,
                            std::size_t count) {
  auto& part = snapshots->part;
  for (const DdprunPiece& piece : std::span(pieces, count)) {
    const bool is_copied = snapshots->is_begun && (is_own != 0 ? copy(part.own_sum, part.own, piece)
                                                               : copy(part.sum, part.share, piece));
    if (!is_copied) snapshots->is_begun = false;
  }
}

int ddprun_snapshots_compare(DdprunSnapshots* snapshots, std::uint64_t values,
                             std::uint64_t* share) {
  auto& part = snapshots->part;
  part.values = values;
  share[0] = part.peer_begin;
  share[1] = part.peer_end;
  snapshots->is_compared = part.peer >= 0;
  return part.peer;
}

void ddprun_snapshots_add(DdprunSnapshots* snapshots, const DdprunPiece* pieces,
                          std::size_t count) {
  auto& part = snapshots->part;
  for (const DdprunPiece& piece : std::span(pieces, count)) {
    const std::uint64_t left = part.peer_end - part.peer_begin - part.peer_sum.size();
    const bool is_added =
        snapshots->is_begun && feed(piece, left, [&](const char* from, std::size_t size) {
          part.peer_sum.add(from, size);
        });
    if (!is_added) snapshots->is_begun = false;
  }
}

int ddprun_snapshots_finish(DdprunSnapshots* snapshots, const void* text, std::uint64_t size,
                            char* why, std::size_t why_size) {
  auto& part = snapshots->part;
  const bool is_added =
      !snapshots->is_compared || part.peer_sum.size() == part.peer_end - part.peer_begin;
  if (!std::exchange(snapshots->is_begun, false) || !is_added) return kDdprunNotKept;
  try {
    const std::string_view its(static_cast<const char*>(text), size);
    return snapshots->memory->finish(part, its) ? kDdprunKept : kDdprunNotKept;
  } catch (const ddprun::Failure& failure) {
    say(why, why_size, failure.error().message.c_str());
    return kDdprunRefused;
  }
}

int ddprun_snapshots_difference(DdprunSnapshots* snapshots, std::int64_t* step, int* rank,
                                int* other) {
  const auto difference = snapshots->memory->difference();
  if (!difference || !snapshots->memory->is_first_to_tell(*difference)) return 0;
  *step = difference->step;
  *rank = difference->rank;
  *other = difference->other;
  return 1;
}

int ddprun_snapshots_is_difference_told(const DdprunSnapshots* snapshots) {
  return snapshots->memory->is_difference_told() ? 1 : 0;
}

std::uint32_t ddprun_snapshots_sum(const void* bytes, std::uint64_t size) {
  return ddprun::stream_sum({static_cast<const char*>(bytes), size});
}

int ddprun_snapshots_find(DdprunSnapshots* snapshots, char* why, std::size_t why_size) {
  std::string sentence;
  try {
    snapshots->found = snapshots->memory->find(&sentence);
  } catch (const std::exception& error) {
    snapshots->found.clear();
    sentence = error.what();
  }
  say(why, why_size, sentence.c_str());
  return static_cast<int>(snapshots->found.size());
}

std::int64_t ddprun_snapshots_step(const DdprunSnapshots* snapshots, int number) {
  return found_at(snapshots, number).step;
}

std::uint64_t ddprun_snapshots_call(const DdprunSnapshots* snapshots, int number) {
  return found_at(snapshots, number).call;
}

int ddprun_snapshots_world_size(const DdprunSnapshots* snapshots, int number) {
  return found_at(snapshots, number).world_size;
}

int ddprun_snapshots_writers(const DdprunSnapshots* snapshots, int number) {
  return static_cast<int>(found_at(snapshots, number).ranks.size());
}

int ddprun_snapshots_rank(const DdprunSnapshots* snapshots, int number, int writer) {
  return found_at(snapshots, number).ranks[static_cast<std::size_t>(writer)];
}

std::uint32_t ddprun_snapshots_values(const DdprunSnapshots* snapshots, int number) {
  return snapshots->memory->sum_of_values(found_at(snapshots, number));
}

int ddprun_snapshots_check(DdprunSnapshots* snapshots, int number, int writer) {
  const auto& found = found_at(snapshots, number);
  if (snapshots->memory->is_whole(found, writer)) return 1;
  snapshots->memory->forget(found, writer);
  return 0;
}

const void* ddprun_snapshots_bytes(const DdprunSnapshots* snapshots, int number, int what,
                                   int writer, std::uint64_t* size) {
  const auto& found = found_at(snapshots, number);
  const auto bytes = what == kDdprunData   ? snapshots->memory->data(found)
                     : what == kDdprunText ? snapshots->memory->text(found)
                                           : snapshots->memory->own(found, writer);
  *size = bytes.size();
  return bytes.data();
}

void ddprun_snapshots_read(const DdprunCopy* copies, std::size_t count) {
  for (const DdprunCopy& copy : std::span(copies, count)) {
    if (copy.size > 0) std::memcpy(copy.to, copy.from, copy.size);
  }
}

void ddprun_snapshots_forget_after(DdprunSnapshots* snapshots, int local_rank, std::int64_t step,
                                   std::uint64_t call) {
  snapshots->memory->forget_after(local_rank, step, call);
}
}
