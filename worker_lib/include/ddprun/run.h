// run(): the frame around a training program. Joins the group, calls f, leaves; and turns what f
// throws into what the launcher understands: the error file, one line on stderr, an exit code.
// Called once, from main.
//
//   int main(int argc, char** argv) {
//     return ddprun::run(argc, argv, [&](ddprun::Context& context) { train(context); });
//   }
//
// Exit code: what f returns (0 if it returns nothing); 2 for a UsageError, before or in f; 1 for
// any other exception.
#pragma once

#include <functional>
#include <type_traits>
#include <utility>

#include "ddprun/context.h"

namespace ddprun {

namespace detail {

int run(const char* program, const std::function<int()>& joined);

}  // namespace detail

template <typename Function>
int run(int argc, char** argv, Function&& f, const ContextOptions& options = {}) {
  return detail::run(argc > 0 ? argv[0] : "program", [&]() -> int {
    Context context(options);
    int code = 0;
    if constexpr (std::is_void_v<std::invoke_result_t<Function&, Context&>>) {
      f(context);
    } else {
      code = f(context);
    }
    context.leave();
    return code;
  });
}

}  // namespace ddprun
