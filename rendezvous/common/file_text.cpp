#include "rendezvous/common/file_text.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "rendezvous/common/unique_fd.h"

namespace ddprun {

// No std::ifstream: the first stream of a process initialises locales, which takes longer than
// reading these files.
std::string file_text(const std::string& path) {
  const rdzv::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 4096> part;
  for (;;) {
    const ssize_t size = ::read(file.get(), part.data(), part.size());
    if (size == 0) return text;
    if (size > 0) {
      text.append(part.data(), static_cast<std::size_t>(size));
    } else if (errno != EINTR) {
      return "";
    }
  }
}

}  // namespace ddprun
