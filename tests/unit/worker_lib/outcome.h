// What a call gives or throws, for tests that look at either.
#pragma once

#include <type_traits>

#include "ddprun/error.h"

namespace ddprun::test {

template <typename Call>
Result<std::invoke_result_t<Call&>> outcome(Call&& call) {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Call&>>) {
      call();
      return {};
    } else {
      return call();
    }
  } catch (const Failure& failure) {
    return fail(failure.error());
  }
}

}  // namespace ddprun::test
