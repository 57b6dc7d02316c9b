// The input of store_core_fuzz, read as a script of what several clients do. Written by
// make_corpus, mutated by libFuzzer.
//
//   byte 0 of a step: bits 0-1 the client, bits 2-7 how many bytes it sends (63: it leaves instead)
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun::rdzv::testing {

inline constexpr unsigned kFuzzClients = 4;
inline constexpr unsigned kFuzzLeave = 63;

inline void append_step(std::string& script, unsigned client, std::string_view bytes) {
  while (!bytes.empty()) {
    const std::string_view part = bytes.substr(0, kFuzzLeave - 1);
    script += static_cast<char>(client | part.size() << 2);
    script += part;
    bytes.remove_prefix(part.size());
  }
}

inline void append_leave(std::string& script, unsigned client) {
  script += static_cast<char>(client | kFuzzLeave << 2);
}

}  // namespace ddprun::rdzv::testing
