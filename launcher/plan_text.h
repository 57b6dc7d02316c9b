// The Plan as --dry-run prints it. Pure.
#pragma once

#include <string>

#include "launcher/plan.h"

namespace ddprun::cli {

std::string to_table(const Plan& plan);

}  // namespace ddprun::cli
