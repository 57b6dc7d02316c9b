#include "rendezvous/tls/ca_file.h"

#include <openssl/x509.h>
#include <unistd.h>

#include <cstdlib>

namespace ddprun::rdzv {
namespace {

constexpr const char* kFiles[] = {
    "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Alpine, Arch, Gentoo
    "/etc/pki/tls/certs/ca-bundle.crt",                   // Fedora, RHEL, Rocky, Amazon Linux
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // the same, where only this one is left
    "/etc/ssl/ca-bundle.pem",                             // SUSE
    "/etc/ssl/cert.pem",                                  // OpenBSD's LibreSSL, older Alpine
};

bool is_there(const std::string& path) { return ::access(path.c_str(), R_OK) == 0; }

}  // namespace

std::string system_ca_file(const std::string& root) {
  if (std::getenv(X509_get_default_cert_file_env()) != nullptr ||
      std::getenv(X509_get_default_cert_dir_env()) != nullptr) {
    return "";
  }
  if (is_there(root + X509_get_default_cert_file())) return "";
  for (const char* const file : kFiles) {
    if (is_there(root + file)) return root + file;
  }
  return "";
}

}  // namespace ddprun::rdzv
