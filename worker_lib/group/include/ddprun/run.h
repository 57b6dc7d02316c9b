// run(): the frame around a training program. Joins the group, calls f, leaves; and turns what f
// throws into what the launcher understands: the error file, one line on stderr, an exit code.
// Called once, from main.
//
//   int main(int argc, char** argv) {
//     return ddprun::run(argc, argv, [&](ddprun::Context& context) { train(context); });
//   }
//
// Without a launcher (no RANK, no step of Slurm) and with ContextOptions::nproc_per_node, or DDPRUN_NPROC_PER_NODE in
// the environment of a program that has this option, the process becomes a launcher of its own workers: it executes the
// `ddprun` beside it or on PATH with itself as the program, before anything is joined. ddprun's options are then the
// variables DDPRUN_MAX_RESTARTS and so on. Under a launcher the option does nothing.
//
//   return ddprun::run(argc, argv, train, {.nproc_per_node = 4});  // ./train
//
// What it changes in the process: SIGPIPE is ignored if it has its default action, unless ContextOptions::ignore_sigpipe is
// false (it says why); while run() runs, std::terminate calls a handler of its own and then the one before.
//
// Exit code: what f returns (0 if it returns nothing); 2 for a UsageError, before or in f; 1 for
// any other exception. What f throws is also told to the other ranks, whose own failure then says
// which rank it was and why; an error of a connection that f lets through is made into a Failure
// that names the missing rank. When a thread of LibTorch lets an exception escape, which ends the
// process by SIGABRT, the error file and the others get its text too (by the handler of std::terminate).
//
// Under `ddprun --standby` the workers of a restart of a program that is linked with ddprun::standby may be forks of one
// process that has run the program up to its first Context, without a rank. ContextOptions::can_be_standby = false prevents it;
// a program that reads a variable of a worker (RANK) before, has a second thread, a GPU, a socket or a
// pipe there is started by exec, as without --standby. What such a fork has that is not of its own:
//   - memory, with malloc's state, static objects and the main thread's thread_local ones: as the
//     program had left them, each worker has its copy. Constructors have run once, for all.
//   - random numbers: a generator that was seeded before Context gives all workers the same numbers,
//     also where the seed was the time or came from std::random_device; so does LibTorch's own, if the
//     program has drawn from it there without torch::manual_seed. The layout of memory is the same in all.
//   - a process id or a time that the program has noted before Context: those of the forked process.
//   - open files: opened anew, at the same place, so that one worker does not move it for another;
//     devices such as /dev/null stay shared. Signal handlers, limits and the current folder stay;
//     timers (alarm) do not.
//   - what was printed before Context: each worker prints it, as after exec.
// Its own are: variables, stdout and stderr, session, control group, link, and all that Context makes.
#pragma once

#include <concepts>
#include <functional>

#include "ddprun/context.h"

namespace ddprun {

namespace detail {

int run(int argc, char** argv, const ContextOptions& options, const std::function<int()>& joined);
// Calls f, and leaves; tells the other ranks if it throws.
int call(Context& context, const std::function<int()>& f);

template <typename Function>
concept ReturnsNothing = requires(Function& f, Context& context) {
  { f(context) } -> std::same_as<void>;
};
template <typename Function>
concept ReturnsExitCode = requires(Function& f, Context& context) {
  { f(context) } -> std::same_as<int>;
};

}  // namespace detail

template <typename Function>
int run(int argc, char** argv, Function&& f, const ContextOptions& options = {}) {
  return detail::run(argc, argv, options, [&]() -> int {
    Context context(options);
    return detail::call(context, [&]() -> int {
      if constexpr (detail::ReturnsNothing<Function>) {
        f(context);
        return 0;
      } else if constexpr (detail::ReturnsExitCode<Function>) {
        return f(context);
      } else {
        static_assert(detail::ReturnsExitCode<Function>,
                      "ddprun::run() calls a function that takes a ddprun::Context& and returns "
                      "nothing or an exit code "
                      "(int), such as [&](ddprun::Context& context) { train(context); }");
      }
    });
  });
}

}  // namespace ddprun
