#include "rendezvous/common/file_text.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "rendezvous/common/unique_fd.h"

namespace ddprun {

// No std::ifstream: the first stream of a process initialises locales, which takes longer than
// reading these files.
std::string file_text(const std::string& path) {
  const rdzv::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return read_from(file.get()).value_or("");
}

std::optional<std::string> read_from(int fd, std::size_t bytes_max) {
  std::string text;
  std::array<char, 4096> part;
  while (text.size() < bytes_max) {
    const ssize_t size = ::read(fd, part.data(), std::min(part.size(), bytes_max - text.size()));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return std::nullopt;
    if (size == 0) break;
    text.append(part.data(), static_cast<std::size_t>(size));
  }
  return text;
}

}  // namespace ddprun
