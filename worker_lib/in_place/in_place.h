// The C interface of libddprun_in_place.so, which Python programs whose ranks are replaced in place load before LibTorch
// (worker_lib/python/ddprun/in_place.py): what the C++ library decides, keeps and says, without LibTorch. The rooms that do
// it document it. No function throws. Objects are never freed: a process has one of each.
//
// Threads: the main one, where nothing else is said.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

// Why the last call of this thread has failed: a sentence.
const char* ddprun_why(void);

// A checksum: two memories that differ in any 32 bits in a row have different sums. Any thread.
uint32_t ddprun_stream_sum(const char* bytes, size_t size);

// Why this architecture does not replace ranks in place (untried_arch.h); empty: it does. Any thread.
const char* ddprun_why_untried(void);

// ---- calls over Gloo (c10d/gloo_interrupt.h); any thread

// Non-zero: ddprun_interrupt_gloo() ends the calls that wait. Call it when LibTorch is loaded.
int ddprun_can_interrupt_gloo(void);
void ddprun_interrupt_gloo(const char* why);
const uint64_t* ddprun_gloo_calls(void);
const uint64_t* ddprun_gloo_failures(void);
// The error of such a call comes through all of LibTorch.
void ddprun_read_unwind_tables_ahead(void);

// ---- decisions (recovery_core/recovery_core.h)

typedef struct ddprun_core ddprun_core;

typedef struct {
  const char* name;    // as recovery_core.h has it
  int64_t numbers[3];  // its members, in their order
} ddprun_action;

typedef struct {  // recovery_plan.h
  int64_t holds;
  int64_t committed;
  int64_t calls;
  int64_t is_in_step;
} ddprun_place;

// Which ranks need the donor's state, by rank; the donor, -1 if there is none.
int ddprun_plan(const ddprun_place* places, size_t count, int* needs);

ddprun_core* ddprun_core_make(int is_prepared);
// The name of its state.
const char* ddprun_core_state(const ddprun_core* core);
// What it says of itself to the other ranks; zero: its state is not Regrouping.
int ddprun_core_place(const ddprun_core* core, ddprun_place* place);

// An event. The number of actions that follow, which ddprun_core_actions() has until the next event, with a sentence in
// ddprun_why(); -1: a bug of the caller, which ddprun_why() tells.
int ddprun_core_joined(ddprun_core* core, int64_t committed);
int ddprun_core_placed(ddprun_core* core);
int ddprun_core_step_begins(ddprun_core* core);
int ddprun_core_step_over(ddprun_core* core);
int ddprun_core_regroup(ddprun_core* core, int has_stepped);
int ddprun_core_met(ddprun_core* core, const ddprun_place* places, size_t count, int self);
int ddprun_core_took(ddprun_core* core, int64_t calls, int has_entry, int has_last_entry,
                     int has_last_effect);
int ddprun_core_refused(ddprun_core* core, const char* why);
int ddprun_core_left(ddprun_core* core);
const ddprun_action* ddprun_core_actions(const ddprun_core* core);

// ---- the state that only this rank has (process/mirror.h)

typedef struct ddprun_mirror ddprun_mirror;

// NULL: there is no memory. `set_up` describes what the mirror is for.
ddprun_mirror* ddprun_mirror_make(size_t state_bytes, const char* set_up, size_t set_up_bytes);
// The mirror of another process; takes the descriptor. NULL: it is none.
ddprun_mirror* ddprun_mirror_open(int descriptor);
int ddprun_mirror_descriptor(const ddprun_mirror* mirror);  // -1: the program has closed it
// The size of the set-up, of which at most `bytes` are copied.
size_t ddprun_mirror_set_up(const ddprun_mirror* mirror, char* to, size_t bytes);
// A state in two parts. 0: it was written into this mirror. 1: this mirror is too small, and has got a larger memory, whose
// descriptor the agent needs. -1: there is no memory for that.
int ddprun_mirror_write(ddprun_mirror* mirror, int64_t step, int is_effect, const char* head,
                        size_t head_bytes, const char* data, size_t data_bytes);
// The size of the state, of which at most `bytes` are copied. -1: it was not written, or not whole.
int64_t ddprun_mirror_read(const ddprun_mirror* mirror, int64_t step, int is_effect, char* to,
                           size_t bytes);

// ---- the link to the agent (process/agent_link.h)

typedef struct ddprun_link ddprun_link;

// A link that this process has opened, whose page stays mapped.
ddprun_link* ddprun_link_adopt(int socket, void* page);
void ddprun_link_hold_death_lock(ddprun_link* link);
void ddprun_link_send_mirror(ddprun_link* link, int mirror);
void ddprun_link_offer(ddprun_link* link, int mirror);
void ddprun_link_withdraw(ddprun_link* link);
void ddprun_link_refuse(ddprun_link* link, const char* why, int nor_later);
void ddprun_link_regrouped(ddprun_link* link, uint32_t generation);
void ddprun_link_committed(ddprun_link* link, int64_t steps, uint32_t generation);
void ddprun_link_offer_to_take_place(ddprun_link* link);
// Whether ddprun_link_place() has it. Ends the process if the link is closed.
int ddprun_link_is_placed(const ddprun_link* link);
void ddprun_link_note_gpu(ddprun_link* link, uint64_t id, uint32_t index, uint64_t free_bytes,
                          uint64_t used_bytes);
// Does not wait. The generation, with the descriptors of stdout, stderr and the mirror; 0: not yet. Ends the process if the
// link is closed.
uint32_t ddprun_link_place(ddprun_link* link, int descriptors[3]);
// Waits for a generation above `known`, and returns it. 0: the link is closed. UINT32_MAX: the group is broken for good. One
// thread beside the main one.
uint32_t ddprun_link_await_news(ddprun_link* link, uint32_t known);
}
