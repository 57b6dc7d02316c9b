// Shared memory between ranks, and replacement in place, depend on the order in which a processor makes writes visible, which no
// emulator shows. On an architecture where they were not run on hardware they are refused by name, unless the user tries them.
// Pure.
#pragma once

#include <string>
#include <string_view>

namespace ddprun {

inline constexpr char kUntriedArchVariable[] = "DDPRUN_UNTRIED_ARCH";  // "1": the user tries them

#if defined(__x86_64__)
inline constexpr const char* kUntriedArch = "";
#elif defined(__aarch64__)
inline constexpr const char* kUntriedArch = "aarch64";
#else
inline constexpr const char* kUntriedArch = "this architecture";
#endif

// Why `what` is refused, without a full stop; empty: it is not. `wanted` is the value of the variable; nullptr: it is not set.
inline std::string why_untried_arch(std::string_view what, const char* wanted,
                                    std::string_view arch = kUntriedArch) {
  if (arch.empty() || (wanted != nullptr && std::string_view(wanted) == "1")) return {};
  return std::string(what) + " was not run on hardware of " + std::string(arch) +
         " yet (DDPRUN_UNTRIED_ARCH=1 tries it)";
}

}  // namespace ddprun
