// SHA256_Init and its like are deprecated since OpenSSL 3.0 in favour of the providers; see the
// header.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "rendezvous/leader/hmac_sha256.h"

#include <openssl/sha.h>

#include <initializer_list>

namespace ddprun::rdzv {
namespace {

constexpr std::size_t kBlockBytes = SHA256_CBLOCK;

std::string sha256(std::initializer_list<std::string_view> parts) {
  SHA256_CTX context;
  ::SHA256_Init(&context);
  for (const std::string_view part : parts) ::SHA256_Update(&context, part.data(), part.size());
  unsigned char digest[SHA256_DIGEST_LENGTH];
  ::SHA256_Final(digest, &context);
  return {reinterpret_cast<const char*>(digest), sizeof digest};
}

}  // namespace

std::string hmac_sha256(std::string_view key, std::string_view data) {
  std::string block = key.size() > kBlockBytes ? sha256({key}) : std::string(key);
  block.resize(kBlockBytes, '\0');
  const auto padded_with = [&](int pad) {
    std::string padded = block;
    for (char& byte : padded) byte = static_cast<char>(byte ^ pad);
    return padded;
  };
  return sha256({padded_with(0x5c), sha256({padded_with(0x36), data})});
}

}  // namespace ddprun::rdzv
