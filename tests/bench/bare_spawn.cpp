// bare_spawn N PROGRAM [ARGUMENT…]: the floor that a launcher is measured against. It does the
// least that starting N processes and waiting for them all can be; its exit code is 1 if any of
// them failed.
#include <spawn.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>

extern char** environ;

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: bare_spawn N PROGRAM [ARGUMENT...]\n", stderr);
    return 2;
  }
  const int count = std::atoi(argv[1]);
  for (int i = 0; i < count; ++i) {
    pid_t child = 0;
    if (posix_spawnp(&child, argv[2], nullptr, nullptr, argv + 2, environ) != 0) {
      std::perror(argv[2]);
      return 127;
    }
  }
  int failed = 0;
  for (int status = 0; wait(&status) > 0;) failed |= status;
  return failed == 0 ? 0 : 1;
}
