// For ctypes: what a Python program whose ranks are replaced in place loads before LibTorch. Needs none of it. Any thread.
// Its types for Python are in in_place_step.cpp.
#include <cstdint>

#include "worker_lib/c10d/gloo_interrupt.h"
#include "worker_lib/process/unwind_tables.h"

extern "C" {

// Non-zero: ddprun_interrupt_gloo() ends the calls that wait. Call it when LibTorch is loaded.
int ddprun_can_interrupt_gloo() { return ddprun::detail::can_interrupt_gloo() ? 1 : 0; }

void ddprun_interrupt_gloo(const char* why) { ddprun::detail::interrupt_gloo(why); }

// The error of such a call comes through all of LibTorch.
void ddprun_read_unwind_tables_ahead() { ddprun::read_unwind_tables_ahead(); }

// Grows with every call over Gloo that this process takes part in.
const std::uint64_t* ddprun_gloo_calls() { return ddprun::detail::gloo_calls(); }
}
