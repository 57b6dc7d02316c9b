#include "worker_lib/process/mirror.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ddprun/error.h"

namespace ddprun {

struct Mirror::Header {
  static constexpr std::uint64_t kMagic = 0x52524d5250444400;  // "\0DDPRMRR" in memory
  std::uint64_t magic = kMagic;
  std::uint64_t state_bytes = 0;  // a multiple of 64
  std::uint64_t setup_bytes = 0;
};

struct Mirror::State {
  std::atomic<std::uint64_t> turn;  // odd: it is being written; 0: never was
  std::int64_t step;
  std::uint64_t size;
  std::uint64_t checksum;

  char* bytes() { return reinterpret_cast<char*>(this) + kHead; }
  static constexpr std::size_t kHead = 64;
};

namespace {

constexpr std::size_t kHeaderBytes = 64;

std::size_t rounded(std::size_t bytes) { return (bytes + 63) & ~std::size_t{63}; }

// Finds memory that was never written or belongs to another step, not an attacker.
std::uint64_t checksum_of(std::string_view bytes, std::int64_t step) {
  constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15;
  std::uint64_t sum = static_cast<std::uint64_t>(step) * kFactor + bytes.size();
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    sum = (sum ^ word) * kFactor;
    sum ^= sum >> 32;
  }
  return sum;
}

}  // namespace

std::unique_ptr<Mirror> Mirror::make(std::size_t state_bytes, std::string_view setup) {
  state_bytes = rounded(state_bytes);
  const std::size_t bytes = kHeaderBytes + rounded(setup.size()) + 4 * (State::kHead + state_bytes);
  rdzv::UniqueFd memory(::memfd_create("ddprun-mirror", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  void* base = MAP_FAILED;
  if (memory && ::ftruncate(memory.get(), static_cast<off_t>(bytes)) == 0 &&
      ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  }
  if (base == MAP_FAILED) {
    throw Failure(ErrorCode::kResourceExhausted, "no memory for the mirror of this rank's state, " +
                                                     std::to_string(bytes) + " bytes (" +
                                                     std::strerror(errno) + ")");
  }
  auto* const header = new (base) Header;
  header->state_bytes = state_bytes;
  header->setup_bytes = setup.size();
  std::memcpy(static_cast<char*>(base) + kHeaderBytes, setup.data(), setup.size());
  return std::unique_ptr<Mirror>(new Mirror(std::move(memory), base, bytes));
}

std::unique_ptr<Mirror> Mirror::open(rdzv::UniqueFd memory) {
  struct stat about {};
  const bool is_file = memory && ::fstat(memory.get(), &about) == 0 && S_ISREG(about.st_mode);
  const auto bytes = static_cast<std::size_t>(is_file ? about.st_size : 0);
  void* const base = bytes < kHeaderBytes ? MAP_FAILED
                                          : ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                                   MAP_SHARED, memory.get(), 0);
  if (base != MAP_FAILED) {
    const Header header = *static_cast<const Header*>(base);
    if (header.magic == Header::kMagic && header.state_bytes < bytes &&
        header.setup_bytes < bytes &&
        kHeaderBytes + rounded(header.setup_bytes) + 4 * (State::kHead + header.state_bytes) ==
            bytes) {
      return std::unique_ptr<Mirror>(new Mirror(std::move(memory), base, bytes));
    }
    ::munmap(base, bytes);
  }
  throw Failure(ErrorCode::kProtocol, "what was handed over is not the mirror of a worker");
}

Mirror::Mirror(rdzv::UniqueFd memory, void* base, std::size_t bytes)
    : memory_(std::move(memory)),
      base_(static_cast<char*>(base)),
      bytes_(bytes),
      state_bytes_(static_cast<const Header*>(base)->state_bytes) {}

Mirror::~Mirror() { ::munmap(base_, bytes_); }

Mirror::State& Mirror::state(std::int64_t step, Moment moment) const {
  const auto* const header = reinterpret_cast<const Header*>(base_);
  const auto index = static_cast<std::size_t>((step & 1) * 2 + (moment == Moment::kEffect ? 1 : 0));
  return *reinterpret_cast<State*>(base_ + kHeaderBytes + rounded(header->setup_bytes) +
                                   index * (State::kHead + state_bytes_));
}

bool Mirror::write(std::int64_t step, Moment moment, std::string_view bytes) {
  State& place = state(step, moment);
  const std::uint64_t turn = place.turn.load(std::memory_order_relaxed) | 1;
  place.turn.store(turn, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  if (bytes.size() > state_bytes_) return false;
  place.step = step;
  place.size = bytes.size();
  place.checksum = checksum_of(bytes, step);
  std::memcpy(place.bytes(), bytes.data(), bytes.size());
  place.turn.store(turn + 1, std::memory_order_release);
  return true;
}

std::optional<std::string> Mirror::read(std::int64_t step, Moment moment) const {
  State& place = state(step, moment);
  const std::uint64_t turn = place.turn.load(std::memory_order_acquire);
  if (turn == 0 || turn % 2 != 0 || place.step != step || place.size > state_bytes_) {
    return std::nullopt;
  }
  std::string bytes(place.bytes(), place.size);
  if (checksum_of(bytes, step) != place.checksum) return std::nullopt;
  return bytes;
}

std::string Mirror::setup() const {
  const auto* const header = reinterpret_cast<const Header*>(base_);
  return std::string(base_ + kHeaderBytes, header->setup_bytes);
}

}  // namespace ddprun
