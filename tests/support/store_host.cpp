// Runs our store server for programs in other languages: prints the port, ends when its stdin
// closes.
#include <unistd.h>

#include <cstdio>

#include "rendezvous/common/descriptor_limit.h"
#include "rendezvous/store/store_server.h"

int main() {
  ddprun::raise_descriptor_limit();
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
