// The texts made from the option table. Pure.
#pragma once

#include <string>

namespace ddprun::cli {

std::string help_text();

}  // namespace ddprun::cli
