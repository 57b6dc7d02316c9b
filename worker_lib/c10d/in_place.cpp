// For Python programs whose ranks are replaced in place (worker_lib/python/ddprun/in_place.py): the C interface of what they
// load before LibTorch. Needs none of it. Any thread.
#include <cstddef>
#include <cstdint>

#include "worker_lib/c10d/gloo_interrupt.h"
#include "worker_lib/process/crc32c.h"
#include "worker_lib/process/unwind_tables.h"

extern "C" {

// A checksum: two memories that differ in any 32 bits in a row have different sums.
std::uint32_t ddprun_stream_sum(const char* bytes, std::size_t size) {
  return ddprun::stream_sum({bytes, size});
}

// Non-zero: ddprun_interrupt_gloo() ends the calls that wait. Call it when LibTorch is loaded.
int ddprun_can_interrupt_gloo() { return ddprun::detail::can_interrupt_gloo() ? 1 : 0; }

void ddprun_interrupt_gloo(const char* why) { ddprun::detail::interrupt_gloo(why); }

// The error of such a call comes through all of LibTorch.
void ddprun_read_unwind_tables_ahead() { ddprun::read_unwind_tables_ahead(); }

// Grows with every call over Gloo that this process takes part in.
const std::uint64_t* ddprun_gloo_calls() { return ddprun::detail::gloo_calls(); }
}
