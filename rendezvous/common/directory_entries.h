// Lists a folder with system calls only: for a child between fork or clone and exec, and for code
// in a process that was forked from one with threads.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace ddprun {

// Calls `each(name, type)`, with a type as in dirent.h, for every entry of the open folder, "." and
// ".." included. Entries that are created or removed meanwhile may be missed.
template <typename Each>
void for_each_entry(int folder, const Each& each) {
  // Where getdents64 puts an entry's length (u16), its type (u8) and its name.
  constexpr long kLengthAt = 16;
  constexpr long kTypeAt = 18;
  constexpr long kNameAt = 19;
  alignas(std::uint64_t) char buffer[2048];
  ::lseek(folder, 0, SEEK_SET);
  for (;;) {
    const long size = ::syscall(SYS_getdents64, folder, buffer, sizeof buffer);
    if (size <= 0) return;
    for (long at = 0; at < size;) {
      const char* const entry = buffer + at;
      std::uint16_t length = 0;
      std::memcpy(&length, entry + kLengthAt, sizeof length);
      each(entry + kNameAt, static_cast<unsigned char>(entry[kTypeAt]));
      at += length;
    }
  }
}

}  // namespace ddprun
