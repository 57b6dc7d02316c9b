#include "worker_lib/process/mirror.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ddprun/error.h"
#include "worker_lib/process/crc32c.h"

namespace ddprun {

struct Mirror::Header {
  static constexpr std::uint64_t kMagic = 0x52524d5250444400;  // "\0DDPRMRR" in memory
  std::uint64_t magic = kMagic;
  std::uint64_t state_bytes = 0;  // a multiple of 64
  std::uint64_t setup_bytes = 0;
};

struct Mirror::State {
  Turn turn;
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
  return stream_sum(bytes) ^ static_cast<std::uint64_t>(step) * 0x9e3779b97f4a7c15;
}

}  // namespace

std::unique_ptr<Mirror> Mirror::make(std::size_t state_bytes, std::string_view setup) {
  state_bytes = rounded(state_bytes);
  const std::size_t bytes = kHeaderBytes + rounded(setup.size()) + 4 * (State::kHead + state_bytes);
  rdzv::UniqueFd memory(::memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  Mapping mapping;
  if (memory && ::ftruncate(memory.get(), static_cast<off_t>(bytes)) == 0 &&
      ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    mapping = Mapping(memory.get(), bytes);
  }
  if (!mapping) {
    throw Failure(ErrorCode::kResourceExhausted, "no memory for the mirror of this rank's state, " +
                                                     std::to_string(bytes) + " bytes (" +
                                                     std::strerror(errno) + ")");
  }
  auto* const header = new (mapping.data()) Header;
  header->state_bytes = state_bytes;
  header->setup_bytes = setup.size();
  std::memcpy(mapping.data() + kHeaderBytes, setup.data(), setup.size());
  return std::unique_ptr<Mirror>(new Mirror(std::move(memory), std::move(mapping)));
}

std::unique_ptr<Mirror> Mirror::open(rdzv::UniqueFd memory) {
  struct stat about {};
  const bool is_file = memory && ::fstat(memory.get(), &about) == 0 && S_ISREG(about.st_mode);
  const auto bytes = static_cast<std::size_t>(is_file ? about.st_size : 0);
  Mapping mapping;
  if (bytes >= kHeaderBytes) mapping = Mapping(memory.get(), bytes);
  if (mapping) {
    const Header header = *reinterpret_cast<const Header*>(mapping.data());
    if (header.magic == Header::kMagic && header.state_bytes < bytes &&
        header.setup_bytes < bytes &&
        kHeaderBytes + rounded(header.setup_bytes) + 4 * (State::kHead + header.state_bytes) ==
            bytes) {
      return std::unique_ptr<Mirror>(new Mirror(std::move(memory), std::move(mapping)));
    }
  }
  throw Failure(ErrorCode::kProtocol, "what was handed over is not the mirror of a worker");
}

Mirror::Mirror(rdzv::UniqueFd memory, Mapping mapping)
    : memory_(std::move(memory)),
      mapping_(std::move(mapping)),
      state_bytes_(reinterpret_cast<const Header*>(mapping_.data())->state_bytes) {}

Mirror::State& Mirror::state(std::int64_t step, Moment moment) const {
  const auto* const header = reinterpret_cast<const Header*>(mapping_.data());
  const auto index = static_cast<std::size_t>((step & 1) * 2 + (moment == Moment::kEffect ? 1 : 0));
  return *reinterpret_cast<State*>(mapping_.data() + kHeaderBytes + rounded(header->setup_bytes) +
                                   index * (State::kHead + state_bytes_));
}

bool Mirror::write(std::int64_t step, Moment moment, std::span<const std::string_view> parts) {
  State& place = state(step, moment);
  place.turn.begin();
  std::size_t size = 0;
  for (const std::string_view each : parts) size += each.size();
  if (size > state_bytes_) return false;
  char* to = place.bytes();
  for (const std::string_view each : parts) to = std::ranges::copy(each, to).out;
  place.step = step;
  place.size = size;
  place.checksum = checksum_of({place.bytes(), size}, step);
  place.turn.end();
  return true;
}

std::unique_ptr<Mirror> Mirror::larger(std::int64_t step, std::size_t state_bytes) const {
  auto made = make(state_bytes, setup());
  for (const std::int64_t each : {step - 1, step}) {
    for (const Moment moment : {Moment::kEntry, Moment::kEffect}) {
      if (const auto known = read(each, moment)) made->write(each, moment, *known);
    }
  }
  return made;
}

std::optional<std::string> Mirror::read(std::int64_t step, Moment moment) const {
  State& place = state(step, moment);
  if (!place.turn.is_whole() || place.step != step || place.size > state_bytes_) {
    return std::nullopt;
  }
  std::string bytes(place.bytes(), place.size);
  if (checksum_of(bytes, step) != place.checksum) return std::nullopt;
  return bytes;
}

std::string Mirror::setup() const {
  const auto* const header = reinterpret_cast<const Header*>(mapping_.data());
  return std::string(mapping_.data() + kHeaderBytes, header->setup_bytes);
}

}  // namespace ddprun
