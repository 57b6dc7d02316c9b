#include "tests/support/certificates.h"

#include <stdexcept>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

void make(const std::string& name, const std::string& file, const Command& more) {
  Command command{"openssl",
                  "req",
                  "-x509",
                  "-newkey",
                  "ec",
                  "-pkeyopt",
                  "ec_paramgen_curve:P-256",
                  "-nodes",
                  "-days",
                  "2",
                  "-subj",
                  "/CN=" + name,
                  "-keyout",
                  file + ".key",
                  "-out",
                  file + ".pem"};
  command.insert(command.end(), more.begin(), more.end());
  Job job(command);
  if (job.wait() != exited(0)) throw std::runtime_error("openssl: " + job.err());
}

}  // namespace

Certificates::Certificates(const std::string& folder)
    : ca(folder + "/ca.pem"),
      other_ca(folder + "/other_ca.pem"),
      server(folder + "/server.pem"),
      server_key(folder + "/server.key"),
      client(folder + "/client.pem"),
      client_key(folder + "/client.key") {
  const Command authority{"-addext", "basicConstraints=critical,CA:TRUE"};
  make("a CA for tests", folder + "/ca", authority);
  make("another CA", folder + "/other_ca", authority);
  const auto make_signed = [&](const std::string& name, const std::string& file) {
    make(name, folder + "/" + file,
         {"-CA", ca, "-CAkey", folder + "/ca.key", "-addext", "basicConstraints=CA:FALSE",
          "-addext", "extendedKeyUsage=serverAuth,clientAuth", "-addext",
          "subjectAltName=DNS:localhost,IP:127.0.0.1"});
  };
  make_signed("localhost", "server");
  make_signed("tester", "client");
}

}  // namespace ddprun::test
