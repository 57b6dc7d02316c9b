// Which files TLS is to use, as PEM. A value: copies, compares; any thread.
#pragma once

#include <string>

namespace ddprun::rdzv {

struct TlsFiles {
  std::string ca = {};           // whose servers are trusted; empty: those that the system trusts
  std::string certificate = {};  // our own, where the server asks for one; then with its key
  std::string key = {};

  bool operator==(const TlsFiles&) const = default;
};

}  // namespace ddprun::rdzv
