// Certificates for tests of TLS, created each time by the openssl program: a CA, a server's and a
// client's certificate signed by it, and another CA, which has signed neither. A value; the files
// are in the given folder.
#pragma once

#include <string>

namespace ddprun::test {

struct Certificates {
  explicit Certificates(const std::string& folder);

  std::string ca;
  std::string other_ca;
  std::string server;  // for "localhost" and 127.0.0.1
  std::string server_key;
  std::string client;  // for "tester", which a server may use as the user name
  std::string client_key;
};

}  // namespace ddprun::test
