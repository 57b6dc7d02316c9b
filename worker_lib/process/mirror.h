// Mirror: memory in which a worker notes the state that no other rank has, so that the process that takes
// its place when it dies can go on from there. A memfd of sealed size; the agent keeps its descriptor
// while the worker lives, and hands it over. Without LibTorch.
//
//   | header | what the set-up was told | slot 0: entry, effect | slot 1: entry, effect |
//
// A step has the slot with its number's parity, so that the step before stays readable until the next one
// begins. In it are two states: the one at the entry of the step, and the one when this rank last gave
// the others anything, which is the one after the step if they commit it. Each is whole or not there:
// its turn is odd while it is written, and a checksum is over it. One writer, one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "rendezvous/common/unique_fd.h"
#include "worker_lib/process/owner_mark.h"
#include "worker_lib/process/shared_memory.h"

namespace ddprun {

class Mirror {
 public:
  // As memfd_create() has it.
  static constexpr char kName[] = "ddprun-mirror";
  enum class Moment { kEntry, kEffect };

  // For states of at most so many bytes. Throws Failure where memory is short.
  static std::unique_ptr<Mirror> make(std::size_t state_bytes, std::string_view setup);
  // Of another process of this program. Throws Failure: it is none.
  static std::unique_ptr<Mirror> open(rdzv::UniqueFd memory);
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  int descriptor() const { return memory_.get(); }  // -1: the program has closed it

  // False: it is larger than make() was told, and what was there before is gone.
  bool write(std::int64_t step, Moment moment, std::string_view state) {
    return write(step, moment, std::span(&state, 1));
  }
  // Likewise, a state in several parts.
  bool write(std::int64_t step, Moment moment, std::span<const std::string_view> parts);
  // One for states of at most so many bytes, with what this one has of `step` and the step before. Throws like make().
  std::unique_ptr<Mirror> larger(std::int64_t step, std::size_t state_bytes) const;
  // Nothing: it was not written, or not whole.
  std::optional<std::string> read(std::int64_t step, Moment moment) const;
  std::string setup() const;

 private:
  struct Header;
  struct State;
  Mirror(rdzv::UniqueFd memory, Mapping mapping);
  State& state(std::int64_t step, Moment moment) const;

  OwnDescriptor memory_;
  Mapping mapping_;
  std::size_t state_bytes_;
};

}  // namespace ddprun
