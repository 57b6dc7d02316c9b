// HMAC-SHA256 (RFC 2104, FIPS 180-4). A free function; any thread.
//
// We do not use OpenSSL's: HMAC() links all of its providers, 4.5 MB that every start of ddprun
// would relocate, with or without a token; and even its SHA-256 alone executes CPUID at every
// start, which traps in a virtual machine (30 µs). A few proofs per connection need no speed.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::rdzv {

// 32 bytes.
std::string hmac_sha256(std::string_view key, std::string_view data);

}  // namespace ddprun::rdzv
