// What --version says: the version (which only CMakeLists.txt has), the commit that was
// built, and the round protocol, which must be the same on every node of a job. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::cli {

std::string_view version();
std::string version_text(std::string_view program);  // one line, with its end

}  // namespace ddprun::cli
