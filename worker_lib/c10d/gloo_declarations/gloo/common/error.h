// Part of the declarations of Gloo that LibTorch's ProcessGroupGloo.hpp asks for (../context.h says why): the base of what
// Gloo throws, which is recognised by its name.
#pragma once

#include <chrono>
#include <stdexcept>

namespace gloo {

struct Exception : std::runtime_error {
  Exception() = delete;
};

}  // namespace gloo
