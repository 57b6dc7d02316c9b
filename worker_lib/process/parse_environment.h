// environment_of_this_process() without the process: what it looks at is given to it, so that every
// wrong combination can be tested. Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "ddprun/environment.h"

namespace ddprun {

using VariableLookup = std::function<std::optional<std::string>(const char* name)>;

// Throws UsageError, whose sentence names the variables, their values and what to do.
Environment parse_environment(const VariableLookup& lookup, const InitMethod& init_method = {});

// A whole number in [least, most]; nothing when the variable is not set. `hint` ends the UsageError.
std::optional<int> number_variable(const VariableLookup& lookup, const char* name, int least,
                                   int most, const char* hint);

}  // namespace ddprun
