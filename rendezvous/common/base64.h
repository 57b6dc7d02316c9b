// Base64 as in RFC 4648, with padding. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

std::string to_base64(std::string_view bytes);

// nullopt if it is not base64.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace ddprun
