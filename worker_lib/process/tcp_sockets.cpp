#include "worker_lib/process/tcp_sockets.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <charconv>
#include <filesystem>
#include <string>
#include <system_error>

#include "rendezvous/common/unique_fd.h"

namespace ddprun {
namespace {

bool is_tcp(int fd) {
  const auto option = [fd](int name) {
    int value = -1;
    socklen_t size = sizeof value;
    return ::getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
  };
  const int domain = option(SO_DOMAIN);
  return (domain == AF_INET || domain == AF_INET6) && option(SO_TYPE) == SOCK_STREAM;
}

// With a duplicate of each, since another thread may close it meanwhile, and open another file by its number.
template <typename Function>
void for_each_tcp_socket(const Function& f) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const std::string name = entry.path().filename();
    int number = -1;
    std::from_chars(name.data(), name.data() + name.size(), number);
    const rdzv::UniqueFd duplicate(::fcntl(number, F_DUPFD_CLOEXEC, 0));
    struct stat found {};
    if (!duplicate || !is_tcp(duplicate.get()) || ::fstat(duplicate.get(), &found) != 0) continue;
    f(duplicate.get(), found.st_ino);
  }
}

}  // namespace

std::set<ino_t> tcp_sockets() {
  std::set<ino_t> all;
  for_each_tcp_socket([&](int, ino_t inode) { all.insert(inode); });
  return all;
}

void shut_down_tcp_sockets_except(const std::set<ino_t>& kept) {
  for_each_tcp_socket([&](int fd, ino_t inode) {
    if (!kept.contains(inode)) ::shutdown(fd, SHUT_RDWR);
  });
}

}  // namespace ddprun
