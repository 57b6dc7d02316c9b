// HMAC-SHA256 (RFC 2104, FIPS 180-4). A free function; any thread.
//
// Not OpenSSL's: HMAC() brings all of its providers along, 4.5 MB that every start of ddprun would have
// to relocate, with a token or without, and already its SHA-256 alone asks the processor at every
// start what it can do, which traps in a virtual machine (30 µs). A few proofs per connection need no
// speed.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::rdzv {

// 32 bytes.
std::string hmac_sha256(std::string_view key, std::string_view data);

}  // namespace ddprun::rdzv
