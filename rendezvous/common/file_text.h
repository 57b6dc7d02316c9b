// The contents of a small kernel file (/proc, /sys); empty if it cannot be read. Any thread. Not
// for files that other programs write: the size is not bounded.
#pragma once

#include <optional>
#include <string>

namespace ddprun {

std::string file_text(const std::string& path);

// What can be read from `fd`, at most `bytes_max` bytes; nullopt: errno says why not.
std::optional<std::string> read_from(int fd, std::size_t bytes_max = std::string::npos);

}  // namespace ddprun
