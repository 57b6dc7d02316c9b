// run(): the frame around a training program. Joins the group, calls f, leaves; and turns what f
// throws into what the launcher understands: the error file, one line on stderr, an exit code.
// Called once, from main.
//
//   int main(int argc, char** argv) {
//     return ddprun::run(argc, argv, [&](ddprun::Context& context) { train(context); });
//   }
//
// Exit code: what f returns (0 if it returns nothing); 2 for a UsageError, before or in f; 1 for
// any other exception. What f throws is also told to the other ranks, whose own failure then says
// which rank it was and why; an error of a connection that f lets through is made into a Failure
// that names the missing rank. When a thread of LibTorch lets an exception escape, which ends the
// process by SIGABRT, the error file and the others get its words too.
#pragma once

#include <functional>
#include <type_traits>
#include <utility>

#include "ddprun/context.h"

namespace ddprun {

namespace detail {

int run(const char* program, const std::function<int()>& joined);
// Calls f, and leaves; tells the other ranks if it throws.
int call(Context& context, const std::function<int()>& f);

}  // namespace detail

template <typename Function>
int run(int argc, char** argv, Function&& f, const ContextOptions& options = {}) {
  return detail::run(argc > 0 ? argv[0] : "program", [&]() -> int {
    Context context(options);
    return detail::call(context, [&]() -> int {
      if constexpr (std::is_void_v<std::invoke_result_t<Function&, Context&>>) {
        f(context);
        return 0;
      } else {
        return f(context);
      }
    });
  });
}

}  // namespace ddprun
