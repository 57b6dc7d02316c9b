// CRC-32C (Castagnoli), and a copy that takes one of what it copies: at the speed of memcpy where the
// processor has an instruction for it. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ddprun {

std::uint32_t crc32c(std::string_view bytes);

// The sum of a stream: four CRCs side by side, of its words of 8 bytes in turn, because one has to wait for
// itself; then the CRC of these and of the length. The stream may come in parts of any size, from any addresses.
class StreamSum {
 public:
  // Adds the next part of the stream, and copies it to its place in `to`, which is memory for the whole stream.
  // Large parts go past the caches: finish() makes them visible to others.
  void copy(char* to, const char* from, std::size_t size) { take(to + size_, from, size); }
  // The reverse: copies what comes next in `stream`, which is the memory of the whole stream, to `to`.
  void read(char* to, const char* stream, std::size_t size) { take(to, stream + size_, size); }
  // Adds the next part of the stream.
  void add(const char* from, std::size_t size) { take(nullptr, from, size); }
  std::uint32_t finish();
  std::uint64_t size() const { return size_; }

 private:
  static constexpr std::size_t kGroup = 32;
  void take(char* to, const char* from, std::size_t size);

  std::uint64_t lanes_[4] = {~0U, ~0U, ~0U, ~0U};
  std::uint64_t size_ = 0;
  char begun_[kGroup] = {};  // a group of which a part is still to come
};

// Of bytes that lie in one piece.
std::uint32_t stream_sum(std::string_view bytes);

}  // namespace ddprun
