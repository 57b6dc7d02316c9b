// The live page, index.html of this folder, as it is built into the program (embed.cmake).
#pragma once

#include <string_view>

namespace ddprun::agent {

// What a script or style of the page has as its nonce, to be replaced by a fresh one for each reply:
// nothing else on the page may run or style it.
inline constexpr std::string_view kPageNonce = "NONCE-OF-THIS-REPLY";

extern const std::string_view kPage;

}  // namespace ddprun::agent
