#include "worker_lib/shm/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "ddprun/error.h"
#include "rendezvous/common/cgroup.h"

namespace ddprun::shm {
namespace {

// What a control group is left with: the pages' tables, and whatever else happens in it.
constexpr std::size_t kSpare = std::size_t{1} << 20;

constexpr std::size_t round_down(std::size_t value) { return value / kPage * kPage; }

std::string mebibytes(std::size_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

[[noreturn]] void short_of_memory(std::size_t bytes, const std::string& why) {
  throw Failure(ErrorCode::kResourceExhausted,
                "there is no room for the " + mebibytes(bytes) +
                    " of memory that the ranks of this node would share (" + why +
                    "): raise that limit, or lower ContextOptions::shared_bytes_per_rank");
}

[[noreturn]] void short_of_memory(std::size_t bytes, const char* what, int error) {
  short_of_memory(bytes, error_from_errno(error, what).message);
}

// Where a control group has not so many bytes left, taking them does not fail: the kernel kills. What
// others take meanwhile it may yet kill for.
void ask_control_groups(std::size_t taken, std::size_t total) {
  const auto room = cgroup::memory_room();
  if (!room || room->left >= taken + kSpare) return;
  short_of_memory(total, "the control group " + room->folder + " has " +
                             std::to_string(room->left >> 20) + " MiB left of " +
                             std::to_string(room->limit >> 20) + " MiB");
}

}  // namespace

Geometry geometry_for(int ranks, std::size_t bytes_per_rank) {
  Geometry geometry;
  geometry.ranks = static_cast<std::uint32_t>(ranks);
  const std::size_t for_mailboxes = bytes_per_rank / 5 / geometry.ranks;
  geometry.mailbox_bytes = std::clamp(round_down(for_mailboxes), kPage, 16 * kPage);
  const std::size_t mailboxes = geometry.mailbox_bytes * geometry.ranks;
  const std::size_t for_slots = bytes_per_rank > mailboxes ? bytes_per_rank - mailboxes : 0;
  // Scatter, all-to-all and others cut a slot into one part for each rank, of a cache line at least.
  const std::size_t least = round_down(geometry.ranks * kLine + kPage - 1);
  geometry.slot_bytes = std::max(round_down(for_slots / kSlots), least);
  return geometry;
}

Segment::Segment(rdzv::UniqueFd memory, const Geometry& geometry)
    : memory_(std::move(memory)), geometry_(geometry), mapping_(memory_.get(), geometry.total()) {
  if (!mapping_) short_of_memory(geometry.total(), "mmap", errno);
}

Segment Segment::make(const Geometry& geometry) {
  const std::size_t total = geometry.total();
  rlimit limit{};
  // Growing a file beyond that limit is a deadly signal.
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < total) {
    short_of_memory(total, "the limit on file sizes (ulimit -f)", EFBIG);
  }
  ask_control_groups(total, total);
  rdzv::UniqueFd memory(::memfd_create("ddprun", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) short_of_memory(total, "memfd_create", errno);
  if (::ftruncate(memory.get(), static_cast<off_t>(total)) != 0) {
    short_of_memory(total, "ftruncate", errno);
  }
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw Failure(error_from_errno(errno, "sealing shared memory"));
  }
  return Segment(std::move(memory), geometry);
}

Segment Segment::map(rdzv::UniqueFd memory, const Geometry& geometry) {
  struct stat found {};
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (::fstat(memory.get(), &found) != 0 || seals < 0 ||
      (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW)) {
    throw Failure(ErrorCode::kProtocol, "what came as shared memory is none of sealed size");
  }
  if (static_cast<std::size_t>(found.st_size) != geometry.total()) {
    throw Failure(ErrorCode::kProtocol, "the shared memory has " + std::to_string(found.st_size) +
                                            " bytes, not the " + std::to_string(geometry.total()) +
                                            " that this rank expects");
  }
  return Segment(std::move(memory), geometry);
}

// The pages are not mapped here, which would take twice as long: each is mapped at its first use. They are
// not made huge pages: for that the kernel may wait milliseconds for other processors, and a copy becomes
// no faster.
void Segment::take(std::size_t offset, std::size_t size) {
  if (TEMP_FAILURE_RETRY(::fallocate(memory_.get(), 0, static_cast<off_t>(offset),
                                     static_cast<off_t>(size))) != 0) {
    short_of_memory(geometry_.total(), "taking memory", errno);
  }
}

void Segment::allocate(int rank) {
  const auto own = static_cast<std::size_t>(rank);
  const std::size_t slots = geometry_.slots_bytes();
  const std::size_t mailboxes = geometry_.ranks * geometry_.mailbox_bytes;
  // This rank may be in another group than the one that has made the memory.
  ask_control_groups(slots + mailboxes, geometry_.total());
  take(geometry_.pages_offset() + own * sizeof(RankPage), sizeof(RankPage));
  take(own * slots, slots);
  take(geometry_.mailboxes_offset() + own * mailboxes, mailboxes);
}

RankPage& Segment::page(int rank) {
  return reinterpret_cast<RankPage*>(base() + geometry_.pages_offset())[rank];
}

std::byte* Segment::slot(int rank, std::uint32_t round) {
  const std::size_t index = static_cast<std::size_t>(rank) * kSlots + round % kSlots;
  return base() + index * geometry_.slot_bytes;
}

Mailbox& Segment::mailbox(int from, int to) {
  const std::size_t index =
      static_cast<std::size_t>(from) * geometry_.ranks + static_cast<std::size_t>(to);
  return *reinterpret_cast<Mailbox*>(base() + geometry_.mailboxes_offset() +
                                     index * geometry_.mailbox_bytes);
}

}  // namespace ddprun::shm
