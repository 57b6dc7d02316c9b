// Serves a store of ours for programs in other languages: prints the port, ends when its stdin
// closes.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

#include "rendezvous/store_server.h"

int main() {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  auto server = ddprun::rdzv::StoreServer::start({.address = "::"});
  if (!server) {
    std::fprintf(stderr, "store_host: %s\n", server.error().to_string().c_str());
    return 1;
  }
  std::printf("%u\n", unsigned{(*server)->port()});
  std::fflush(stdout);
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) continue;
}
