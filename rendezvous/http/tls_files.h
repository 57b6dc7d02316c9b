// The PEM files for TLS. A value; any thread.
#pragma once

#include <string>

namespace ddprun::rdzv {

struct TlsFiles {
  std::string ca = {};           // the trusted CA; empty: those that the system trusts
  std::string certificate = {};  // the client's, with its key, if the server asks for one
  std::string key = {};

  bool operator==(const TlsFiles&) const = default;
};

}  // namespace ddprun::rdzv
