// Certificates for tests of TLS, made anew each time by the openssl program: a CA, what it has
// signed for a server and for a client of it, and another CA, who has signed none of them. A value;
// the files are in the folder given.
#pragma once

#include <string>

namespace ddprun::test {

struct Certificates {
  explicit Certificates(const std::string& folder);

  std::string ca;
  std::string other_ca;
  std::string server;  // for "localhost" and 127.0.0.1
  std::string server_key;
  std::string client;  // for "tester", who may be a user of a server that takes names from it
  std::string client_key;
};

}  // namespace ddprun::test
