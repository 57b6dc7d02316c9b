// A process that kills itself (SIGKILL: no destructor, no flush) at a point that a test has chosen.
// The program reports the points; the variable DDPRUN_DEATHS names the one where it dies:
//
//   DDPRUN_DEATHS=forward:7:1,half_written:12:0
//
// The n-th entry is for the n-th run of the job (TORCHELASTIC_RESTART_COUNT): its rank dies when it
// reaches the point at this step or, if it does not, at a later one. It says so on stderr first:
// "rank 1 dies: forward". With DDPRUN_DEATHS_IN_PLACE=FOLDER, for jobs whose ranks are replaced, each entry is for
// whichever process of its rank comes to it first: it waits for the file FOLDER/may-die-N, and makes FOLDER/died-N.
//
// Linked into a program, this also replaces some functions of the C library, so that a process can
// die in the middle of a file or a message without a hook in the product:
//
//   half_written   half of a checkpoint's arrays are in the file
//   before_sync    all of it is written
//   before_rename, after_rename    of the checkpoint
//   before_link    of the name `latest`, which exists aside
//   all_reduce     half of a message to another rank is sent (between collectives_begin/_end)
//   recovery-N     before the N-th call of a function that sends, receives, connects or maps memory, from 1, on
//                  the main thread (between recovery_begins/_ends)
//
// With DDPRUN_HEARS_LATE=RANK that rank hears the agent half a second later.
//
// Any thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace ddprun::test::death {

void at_step(std::int64_t step);
void reach(std::string_view point);

void collectives_begin();
void collectives_end();
void recovery_begins();
void recovery_ends();

}  // namespace ddprun::test::death
