// For ctypes: what a Python program whose ranks are replaced in place loads before LibTorch. Needs none of it. Any thread.
#include <atomic>
#include <cstdint>
#include <cstring>

#include "worker_lib/c10d/gloo_interrupt.h"
#include "worker_lib/process/unwind_tables.h"

namespace {

// As ddprun/mirror.py has them.
struct MirrorHeader {
  std::uint64_t magic;
  std::uint64_t places;
  std::uint64_t room;  // bytes of a record
};
struct RecordHead {
  std::uint64_t turn;  // odd while it is written
  std::int64_t number;
  std::uint64_t size;
};
constexpr std::size_t kHeaderBytes = 64;  // of either

struct Block {
  const void* bytes;
  std::uint64_t size;
};
struct Blocks {
  const Block* first;
  std::uint64_t count;
};

char* copy(char* to, const Blocks& from) {
  for (std::uint64_t i = 0; i < from.count; ++i) {
    const Block& block = from.first[i];
    if (block.size > 0) std::memcpy(to, block.bytes, block.size);
    to += block.size;
  }
  return to;
}

// A process that is killed has made all stores before the one it was killed at: the compiler is not to change their order.
void set_turn(RecordHead& head, std::uint64_t turn) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  reinterpret_cast<volatile std::uint64_t&>(head.turn) = turn;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace

extern "C" {

// Non-zero: ddprun_interrupt_gloo() ends the calls that wait. Call it when LibTorch is loaded.
int ddprun_can_interrupt_gloo() { return ddprun::detail::can_interrupt_gloo() ? 1 : 0; }

void ddprun_interrupt_gloo(const char* why) { ddprun::detail::interrupt_gloo(why); }

// The error of such a call comes through all of LibTorch.
void ddprun_read_unwind_tables_ahead() { ddprun::read_unwind_tables_ahead(); }

// Grows with every call over Gloo that this process takes part in.
const std::uint64_t* ddprun_gloo_calls() { return ddprun::detail::gloo_calls(); }

void ddprun_copy_blocks(char* to, const Blocks* from) { copy(to, *from); }

// A record: the size of the text, the text, the blocks. 0: there is no room for it, and nothing was written.
int ddprun_write_record(char* mirror, std::uint64_t place, std::int64_t number, const char* text,
                        std::uint64_t text_size, const Blocks* blocks) {
  const std::uint64_t room = reinterpret_cast<const MirrorHeader*>(mirror)->room;
  std::uint64_t size = sizeof text_size + text_size;
  for (std::uint64_t i = 0; i < blocks->count; ++i) size += blocks->first[i].size;
  if (size > room) return 0;
  char* to = mirror + kHeaderBytes + place * (kHeaderBytes + room);
  auto& head = *reinterpret_cast<RecordHead*>(to);
  const std::uint64_t turn = head.turn | 1;
  set_turn(head, turn);
  head.number = number;
  head.size = size;
  to += kHeaderBytes;
  std::memcpy(to, &text_size, sizeof text_size);
  to += sizeof text_size;
  std::memcpy(to, text, text_size);
  copy(to + text_size, *blocks);
  set_turn(head, turn + 1);
  return 1;
}
}
