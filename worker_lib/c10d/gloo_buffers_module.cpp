// What a Python program, whose ranks are replaced in place, loads before LibTorch: gloo_buffers.h for ctypes.
#include "worker_lib/c10d/gloo_buffers.h"

extern "C" {

// Non-zero: ddprun_fail_gloo_buffers() ends the calls that wait. Call it when LibTorch is loaded.
int ddprun_knows_gloo_buffers() { return ddprun::detail::are_gloo_buffers_known() ? 1 : 0; }

void ddprun_fail_gloo_buffers(const char* why) { ddprun::detail::fail_gloo_buffers(why); }
}
