#include "rendezvous/common/open_files.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <unistd.h>

#include <algorithm>

#include "rendezvous/common/directory_entries.h"

namespace ddprun {
namespace {

template <typename Each>
void for_each_open_file(const Each& each) {
  const int folder = ::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  for_each_entry(folder, [&](const char* name, unsigned char) {
    int fd = 0;
    for (; *name >= '0' && *name <= '9'; ++name) fd = fd * 10 + (*name - '0');
    if (*name == '\0' && fd != folder) each(fd);
  });
  ::close(folder);
}

}  // namespace

void close_all_files_but(std::span<const int> kept) {
  bool is_done = true;
  unsigned first = 0;  // of those that are not closed yet
  for (const int fd : kept) {
    const auto number = static_cast<unsigned>(fd);
    if (number > first) is_done = is_done && ::close_range(first, number - 1, 0) == 0;
    first = number + 1;
  }
  is_done = is_done && ::close_range(first, ~0U, 0) == 0;
  if (is_done) return;
  for_each_open_file([kept](int each) {
    if (std::ranges::find(kept, each) == kept.end()) ::close(each);
  });
}

void close_files_on_exec_from(int first) {
  if (::close_range(static_cast<unsigned>(first), ~0U, CLOSE_RANGE_CLOEXEC) == 0) return;
  for_each_open_file([first](int each) {
    if (each >= first) ::fcntl(each, F_SETFD, FD_CLOEXEC);
  });
}

}  // namespace ddprun
