// Where a thrown exception finds its way, of all libraries of this process: .eh_frame_hdr and .eh_frame, which the
// linker puts last in their segment. LibTorch has 30 MB of them, of which nothing is read before the first exception;
// from a disk that took 50 ms, while the other ranks waited.
#pragma once

namespace ddprun {

// The kernel begins to read them, and they stay in its cache, not in this process. Only hastens.
void read_unwind_tables_ahead() noexcept;

}  // namespace ddprun
