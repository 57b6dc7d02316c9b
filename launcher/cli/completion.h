// Completion scripts for shells, made from the option table. Pure.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::cli {

// "bash", "zsh" or "fish".
std::string completion_script(std::string_view shell);

}  // namespace ddprun::cli
