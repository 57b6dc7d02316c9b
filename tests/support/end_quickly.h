// The end of a program of the tests that is linked with LibTorch: its destructors take a third of the processor time of
// a short program, and the examples have them.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace ddprun::test {

// Writes out what the program has printed, and ends it without the destructors of static objects.
[[noreturn]] inline void end_quickly(int code) {
  std::fflush(nullptr);
  std::quick_exit(code);
}

}  // namespace ddprun::test
