// A process environment as a value, so that a test can call the functions that depend on it with a
// map of its own. Read once, in main; nothing else in the project calls getenv or setenv.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

using Environment = std::map<std::string, std::string, std::less<>>;

// Entries without '=' are dropped; of two entries with one name the first wins, as for getenv.
Environment environment_from(const char* const* envp);

// Empty if there is no such variable.
std::string value_or_empty(const Environment& environment, std::string_view name);

// "NAME=value" lines in the order of the map, as execve wants them.
std::vector<std::string> to_lines(const Environment& environment);

}  // namespace ddprun
