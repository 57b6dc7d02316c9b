// The live page, index.html of this folder, as it is built into the program (agent/embed.cmake).
#pragma once

#include <string_view>

namespace ddprun::agent {

// The nonce of the page's script and style, to be replaced by a new one for each reply: the page's
// policy allows nothing else.
inline constexpr std::string_view kPageNonce = "NONCE-OF-THIS-REPLY";

extern const std::string_view kPage;

}  // namespace ddprun::agent
