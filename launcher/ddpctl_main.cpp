// The program bin/ddpctl: executes the ddprun beside it under the name ddpctl, because ddpctl is a
// part of that program. Two programs with the same libraries inside would be twice as much to
// download.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

int main(int, char** argv) {
  constexpr char kDdprun[] = "ddprun";
  char path[4096 + sizeof kDdprun];
  const ssize_t size = ::readlink("/proc/self/exe", path, 4096);
  char* const name = size > 0 ? static_cast<char*>(::memrchr(path, '/', size)) : nullptr;
  if (name == nullptr) {
    std::fputs("ddpctl: /proc is not there, by which ddprun is found\n", stderr);
    return 126;
  }
  std::memcpy(name + 1, kDdprun, sizeof kDdprun);
  char own_name[] = "ddpctl";
  argv[0] = own_name;
  ::execv(path, argv);
  std::fprintf(stderr, "ddpctl: it is a part of %s, which cannot be executed: %s\n", path,
               std::strerror(errno));
  return errno == ENOENT ? 127 : 126;
}
