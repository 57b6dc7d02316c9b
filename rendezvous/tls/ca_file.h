// The file with the authorities that a system trusts. OpenSSL, which is inside of our programs, knows only where Debian has
// it, since it was built there.
#pragma once

#include <string>

namespace ddprun::rdzv {

// The first that is there of where the common distributions have it. Empty: none is there, or OpenSSL's own default is, or
// SSL_CERT_FILE or SSL_CERT_DIR names another. `root` is put before each path. May wait for a file system.
std::string system_ca_file(const std::string& root = "");

}  // namespace ddprun::rdzv
