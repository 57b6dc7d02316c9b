// gloo_interrupt.h for ctypes: what a Python program whose ranks are replaced in place loads before LibTorch.
#include "worker_lib/c10d/gloo_interrupt.h"

extern "C" {

// Non-zero: ddprun_interrupt_gloo() ends the calls that wait. Call it when LibTorch is loaded.
int ddprun_can_interrupt_gloo() { return ddprun::detail::can_interrupt_gloo() ? 1 : 0; }

void ddprun_interrupt_gloo(const char* why) { ddprun::detail::interrupt_gloo(why); }
}
