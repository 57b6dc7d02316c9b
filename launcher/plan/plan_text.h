// The Plan as --dry-run prints it: as a table for people, as JSON for programs. Pure.
#pragma once

#include <string>

#include "launcher/plan/plan.h"

namespace ddprun::cli {

std::string to_table(const Plan& plan);

// One line. "settings" holds each option's {"value", "origin"}; "job" is what the agent gets.
std::string to_json(const Plan& plan);

}  // namespace ddprun::cli
