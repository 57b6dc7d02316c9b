// Python's string.Template.safe_substitute: $name and ${name} become the value of that name, $$ a
// dollar; any other text stays. Pure; any thread.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace ddprun::agent {

std::string substitute(std::string_view text,
                       const std::map<std::string, std::string, std::less<>>& values);

}  // namespace ddprun::agent
