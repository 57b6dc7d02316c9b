// A preloaded library that simulates a hanging file system: a call with a path that contains
// $DDPRUN_TEST_HANGS (or with a file opened by such a path) does not return while the file
// $DDPRUN_TEST_HANGS_WHILE exists.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

namespace {

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

void hang_at(const char* path) {
  const char* const part = getenv("DDPRUN_TEST_HANGS");
  const char* const flag = getenv("DDPRUN_TEST_HANGS_WHILE");
  if (part == nullptr || flag == nullptr || strstr(path, part) == nullptr) return;
  const timespec moment{0, 1'000'000};
  while (access(flag, F_OK) == 0) nanosleep(&moment, nullptr);
}

void hang_at(int fd) {
  if (getenv("DDPRUN_TEST_HANGS") == nullptr) return;
  std::array<char, 4096> path{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  if (readlink(link.c_str(), path.data(), path.size() - 1) > 0) hang_at(path.data());
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  static const auto function = next<int(const char*, int, ...)>("open");
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  hang_at(path);
  return function(path, flags, mode);
}

int statvfs(const char* path, struct statvfs* found) noexcept {
  static const auto function = next<int(const char*, struct statvfs*)>("statvfs");
  hang_at(path);
  return function(path, found);
}

int mkdir(const char* path, mode_t mode) noexcept {
  static const auto function = next<int(const char*, mode_t)>("mkdir");
  hang_at(path);
  return function(path, mode);
}

char* mkdtemp(char* path) noexcept {
  static const auto function = next<char*(char*)>("mkdtemp");
  hang_at(path);
  return function(path);
}

ssize_t write(int fd, const void* bytes, size_t size) {
  static const auto function = next<ssize_t(int, const void*, size_t)>("write");
  hang_at(fd);
  return function(fd, bytes, size);
}

int close(int fd) {
  static const auto function = next<int(int)>("close");
  hang_at(fd);
  return function(fd);
}
}
