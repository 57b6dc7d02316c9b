// Records of a worker's mirror (worker_lib/python/ddprun/mirror.py, which reads them): each is whole or not there. One
// writer, one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace ddprun::detail {

struct Block {
  const void* bytes;
  std::uint64_t size;
};

struct Record {
  std::uint64_t place;
  std::int64_t number;
  std::string_view text, more_text;  // the text is both, one after the other
  std::span<const Block> blocks;
};

char* copy_blocks(char* to, std::span<const Block> blocks);
// False: there is no room for it, and nothing was written.
bool write_record(char* mirror, const Record& record);

}  // namespace ddprun::detail
