// HMAC-SHA256 (RFC 2104) over OpenSSL's SHA-256. A free function; any thread.
//
// OpenSSL's own HMAC() brings all of its providers along: 4.5 MB that every start of ddprun would
// have to relocate (0.3 ms and 340 KB here), with a token or without; SHA-256 alone is 26 KB.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::rdzv {

// 32 bytes.
std::string hmac_sha256(std::string_view key, std::string_view data);

}  // namespace ddprun::rdzv
