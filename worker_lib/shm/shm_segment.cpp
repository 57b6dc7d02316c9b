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

#include "rendezvous/common/cgroup.h"

namespace ddprun::shm {
namespace {

// What a control group is left with: the pages' tables, and whatever else happens in it.
constexpr std::size_t kSpare = std::size_t{1} << 20;
#ifdef MADV_COLLAPSE
constexpr int kCollapse = MADV_COLLAPSE;
#else
constexpr int kCollapse = 25;  // Linux 6.1; the C library of Debian 12 does not know it
#endif

constexpr std::size_t round_down(std::size_t value) { return value / kPage * kPage; }

bool has_huge_slots(const Geometry& geometry) { return geometry.slots_bytes() % kHugePage == 0; }

std::string mebibytes(std::size_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

tl::unexpected<Error> short_of_memory(std::size_t bytes, const std::string& why) {
  return fail(ErrorCode::kResourceExhausted,
              "there is no room for the " + mebibytes(bytes) +
                  " of memory that the ranks of this node would share (" + why +
                  "): raise that limit, or lower ContextOptions::shared_bytes_per_rank");
}

tl::unexpected<Error> short_of_memory(std::size_t bytes, const char* what, int error) {
  return short_of_memory(bytes, error_from_errno(error, what).message);
}

// Where a control group has not so many bytes left, taking them does not fail: the kernel kills. What
// others take meanwhile it may yet kill for.
Result<void> ask_control_groups(std::size_t taken, std::size_t total) {
  const auto room = cgroup::memory_room();
  if (!room || room->left >= taken + kSpare) return {};
  return short_of_memory(total, "the control group " + room->folder + " has " +
                                    std::to_string(room->left >> 20) + " MiB left of " +
                                    std::to_string(room->limit >> 20) + " MiB");
}

}  // namespace

Geometry geometry_for(int ranks, std::size_t bytes_per_rank) {
  Geometry geometry;
  geometry.ranks = static_cast<std::uint32_t>(ranks);
  const std::size_t for_mail = bytes_per_rank / 5 / geometry.ranks;
  geometry.mail_bytes = std::clamp(round_down(for_mail), kPage, 16 * kPage);
  const std::size_t mail = geometry.mail_bytes * geometry.ranks;
  const std::size_t for_slots = bytes_per_rank > mail ? bytes_per_rank - mail : 0;
  // All-to-all and its kin cut a slot into one part for each rank, of a cache line at least.
  const std::size_t least = round_down(geometry.ranks * kLine + kPage - 1);
  // Two of them in huge pages of their own, where they are so large.
  const std::size_t piece = for_slots >= kHugePage ? kHugePage : kSlots * kPage;
  geometry.slot_bytes = std::max(for_slots / piece * piece / kSlots, least);
  return geometry;
}

struct Segment::Header {
  std::uint32_t magic;
  std::uint32_t version;
  Geometry geometry;
};

Segment::Segment(rdzv::UniqueFd memory, const Geometry& geometry)
    : memory_(std::move(memory)), geometry_(geometry) {}

Segment::Segment(Segment&& other) noexcept
    : memory_(std::move(other.memory_)),
      geometry_(other.geometry_),
      base_(std::exchange(other.base_, nullptr)) {}

Segment::~Segment() {
  if (base_ != nullptr) ::munmap(base_, geometry_.total());
}

Result<void> Segment::open() {
  const std::size_t total = geometry_.total();
  // Addresses first, so many that a huge page begins in time.
  const std::size_t reserved = total + kHugePage;
  void* const room = ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return short_of_memory(total, "mmap", errno);
  auto* const begin = static_cast<std::byte*>(room);
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(begin) % kHugePage;
  if (::mmap(begin + before, total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory_.get(),
             0) == MAP_FAILED) {
    const int error = errno;
    ::munmap(begin, reserved);
    return short_of_memory(total, "mmap", error);
  }
  base_ = begin + before;
  if (before > 0) ::munmap(begin, before);
  if (before < kHugePage) ::munmap(base_ + total, kHugePage - before);
  if (has_huge_slots(geometry_)) ::madvise(base_, geometry_.mail_offset(), MADV_HUGEPAGE);
  return {};
}

Segment::Header& Segment::header() {
  static_assert(sizeof(Header) <= kPage);
  return *reinterpret_cast<Header*>(base_ + geometry_.header_offset());
}

Result<Segment> Segment::make(const Geometry& geometry) {
  const std::size_t total = geometry.total();
  rlimit limit{};
  // Growing a file beyond that limit is a deadly signal.
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < total) {
    return short_of_memory(total, "the limit on file sizes (ulimit -f)", EFBIG);
  }
  if (auto ok = ask_control_groups(total, total); !ok) return fail(ok.error());
  rdzv::UniqueFd memory(::memfd_create("ddprun", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return short_of_memory(total, "memfd_create", errno);
  if (::ftruncate(memory.get(), static_cast<off_t>(total)) != 0) {
    return short_of_memory(total, "ftruncate", errno);
  }
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return fail(error_from_errno(errno, "sealing shared memory"));
  }
  Segment segment(std::move(memory), geometry);
  if (auto opened = segment.open(); !opened) return fail(opened.error());
  if (auto taken = segment.take(geometry.header_offset(), kPage); !taken) {
    return fail(taken.error());
  }
  segment.header() = {kMagic, kVersion, geometry};
  return segment;
}

Result<Segment> Segment::map(rdzv::UniqueFd memory, const Geometry& geometry) {
  struct stat found {};
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (::fstat(memory.get(), &found) != 0 || seals < 0 ||
      (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW)) {
    return fail(ErrorCode::kProtocol, "what came as shared memory is none of sealed size");
  }
  if (static_cast<std::size_t>(found.st_size) != geometry.total()) {
    return fail(ErrorCode::kProtocol, "the shared memory has " + std::to_string(found.st_size) +
                                          " bytes, not the " + std::to_string(geometry.total()) +
                                          " that this rank expects");
  }
  Segment segment(std::move(memory), geometry);
  if (auto opened = segment.open(); !opened) return fail(opened.error());
  const Header& header = segment.header();
  if (header.magic != kMagic || header.version != kVersion || header.geometry != geometry) {
    return fail(ErrorCode::kProtocol, "the shared memory has another layout (version " +
                                          std::to_string(header.version) + ") than this rank's (" +
                                          std::to_string(kVersion) + ")");
  }
  return segment;
}

Result<void> Segment::take(std::size_t offset, std::size_t size) {
  if (::madvise(base_ + offset, size, MADV_POPULATE_WRITE) == 0) return {};
  // Before Linux 5.14: taken from the system, if not into this process' page table.
  if (errno == EINVAL &&
      ::fallocate(memory_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(size)) == 0) {
    return {};
  }
  // What would be a SIGBUS is EFAULT here.
  return short_of_memory(geometry_.total(), "taking memory", errno == EFAULT ? ENOSPC : errno);
}

// A wish: what is not granted is taken in small pages. Shared memory gets huge pages from the start
// only where the system is set so; elsewhere the kernel makes one, when asked, of what is there, which
// must be something.
void Segment::take_huge_pages(std::size_t offset, std::size_t size) {
  if (!has_huge_slots(geometry_)) return;
  for (std::size_t at = offset; at < offset + size; at += kHugePage) {
    if (::madvise(base_ + at, kPage, MADV_POPULATE_WRITE) != 0) return;
    if (::madvise(base_ + at, kHugePage, kCollapse) != 0) return;
  }
}

Result<void> Segment::touch(int rank) {
  const auto own = static_cast<std::size_t>(rank);
  const std::size_t slots = geometry_.slots_bytes();
  const std::size_t mail = geometry_.ranks * geometry_.mail_bytes;
  // This rank may be in another group than the one that has made the memory.
  if (auto ok = ask_control_groups(slots + mail, geometry_.total()); !ok) return ok;
  if (auto ok = take(geometry_.pages_offset() + own * sizeof(RankPage), sizeof(RankPage)); !ok) {
    return ok;
  }
  take_huge_pages(own * slots, slots);
  if (auto ok = take(own * slots, slots); !ok) return ok;
  return take(geometry_.mail_offset() + own * mail, mail);
}

RankPage& Segment::page(int rank) {
  return reinterpret_cast<RankPage*>(base_ + geometry_.pages_offset())[rank];
}

std::byte* Segment::slot(int rank, std::uint32_t round) {
  const std::size_t index = static_cast<std::size_t>(rank) * kSlots + round % kSlots;
  return base_ + index * geometry_.slot_bytes;
}

Mailbox& Segment::mailbox(int from, int to) {
  const std::size_t index =
      static_cast<std::size_t>(from) * geometry_.ranks + static_cast<std::size_t>(to);
  return *reinterpret_cast<Mailbox*>(base_ + geometry_.mail_offset() +
                                     index * geometry_.mail_bytes);
}

}  // namespace ddprun::shm
