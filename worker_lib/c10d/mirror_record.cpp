#include "worker_lib/c10d/mirror_record.h"

#include <atomic>
#include <cstring>

namespace ddprun::detail {

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

char* copy(char* to, const void* from, std::size_t size) {
  if (size > 0) std::memcpy(to, from, size);
  return to + size;
}

// A process that is killed has made all stores before the one it was killed at: the compiler is not to change their order.
void set_turn(RecordHead& head, std::uint64_t turn) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  reinterpret_cast<volatile std::uint64_t&>(head.turn) = turn;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace

char* copy_blocks(char* to, std::span<const Block> blocks) {
  for (const Block& block : blocks) to = copy(to, block.bytes, block.size);
  return to;
}

bool write_record(char* mirror, const Record& record) {
  const std::uint64_t room = reinterpret_cast<const MirrorHeader*>(mirror)->room;
  const std::uint64_t text_size = record.text.size() + record.more_text.size();
  std::uint64_t size = sizeof text_size + text_size;
  for (const Block& block : record.blocks) size += block.size;
  if (size > room) return false;
  char* to = mirror + kHeaderBytes + record.place * (kHeaderBytes + room);
  auto& head = *reinterpret_cast<RecordHead*>(to);
  const std::uint64_t turn = head.turn | 1;
  set_turn(head, turn);
  head.number = record.number;
  head.size = size;
  to = copy(to + kHeaderBytes, &text_size, sizeof text_size);
  to = copy(to, record.text.data(), record.text.size());
  to = copy(to, record.more_text.data(), record.more_text.size());
  copy_blocks(to, record.blocks);
  set_turn(head, turn + 1);
  return true;
}

}  // namespace ddprun::detail
