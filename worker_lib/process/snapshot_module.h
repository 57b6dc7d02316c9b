// SnapshotMemory for other languages: what ddprun.keep() of Python calls with ctypes, so that the layout of the memory is
// written down once. A shared library without LibTorch (libddprun_snapshots.so), which the agent hands to Python programs
// with its hooks. C, and no exceptions. One thread of a process; in a child that it forks nothing is written.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct DdprunSnapshots;

// Bytes to copy; no address: zeroes.
struct DdprunPiece {
  const void* bytes;
  std::uint64_t size;
};

struct DdprunCopy {
  void* to;
  const void* from;
  std::uint64_t size;
};

// Of the descriptor that the agent has handed to this process, once in its life. Null: there is none.
DdprunSnapshots* ddprun_snapshots_of_this_process();

// ---- writing: begin, write, maybe compare and add, finish; the same step on all ranks

enum { kDdprunBegun = 0, kDdprunBegunAnew = 1, kDdprunRefused = -1 };

// `data_bytes` that are equal on all ranks, with a sum over what lies where in them; `own_bytes` that this rank alone
// has. Anew: what was in memory is gone, because it had another layout or less room. `share`: which bytes of the
// data this rank writes, begin and end. `call`: how many snapshots of this step the rank has begun before, in this process;
// the last one counts. Refused: `why` is a sentence, cut at `why_size`.
int ddprun_snapshots_begin(DdprunSnapshots* snapshots, int ranks_of_node, int local_rank, int rank,
                           int world_size, std::int64_t step, std::uint64_t call,
                           std::uint64_t data_bytes, std::uint64_t layout, std::uint64_t own_bytes,
                           std::uint64_t* share, char* why, std::size_t why_size);
// What comes next: in this rank's own part, or in its share of the data.
void ddprun_snapshots_write(DdprunSnapshots* snapshots, int is_own, const DdprunPiece* pieces,
                            std::size_t count);
// `values`: a sum over what is equal on all ranks and not in the data. Gives the local rank whose share is compared with
// this rank's values, and which bytes of the data that are; -1: there is none.
int ddprun_snapshots_compare(DdprunSnapshots* snapshots, std::uint64_t values,
                             std::uint64_t* share);
// What comes next in that share, as this rank has it: all of it is added.
void ddprun_snapshots_add(DdprunSnapshots* snapshots, const DdprunPiece* pieces, std::size_t count);
enum { kDdprunKept = 1, kDdprunNotKept = 0 };

// `text` is of the node's first rank. Not kept: another rank has laid the memory out anew, or not the whole share was
// written or added, or more than was said. Refused: the text is too large; so is the next begin on all ranks of the node.
int ddprun_snapshots_finish(DdprunSnapshots* snapshots, const void* text, std::uint64_t size,
                            char* why, std::size_t why_size);
// 1: two ranks of the job differ at this step, and this process is the one of the node that tells of it.
int ddprun_snapshots_difference(DdprunSnapshots* snapshots, std::int64_t* step, int* rank,
                                int* other);
// 1: a process of the node has told of a difference in this round.
int ddprun_snapshots_is_difference_told(const DdprunSnapshots* snapshots);
// A checksum of bytes.
std::uint32_t ddprun_snapshots_sum(const void* bytes, std::uint64_t size);

// ---- reading: snapshots are numbered from the newest, until the next find

// How many there are; their sums are not compared yet. Where there is none, `why` may say so.
int ddprun_snapshots_find(DdprunSnapshots* snapshots, char* why, std::size_t why_size);
std::int64_t ddprun_snapshots_step(const DdprunSnapshots* snapshots, int number);
std::uint64_t ddprun_snapshots_call(const DdprunSnapshots* snapshots, int number);
int ddprun_snapshots_world_size(const DdprunSnapshots* snapshots, int number);
// Ranks that wrote it, here called writers, by their local ranks; and the rank of one.
int ddprun_snapshots_writers(const DdprunSnapshots* snapshots, int number);
int ddprun_snapshots_rank(const DdprunSnapshots* snapshots, int number, int writer);
// A sum over all values that are equal on all ranks: two nodes with as many writers have the same.
std::uint32_t ddprun_snapshots_values(const DdprunSnapshots* snapshots, int number);
// Compares the sums of all that one rank wrote. 0: it is damaged, and never found again.
int ddprun_snapshots_check(DdprunSnapshots* snapshots, int number, int writer);

enum { kDdprunData = 0, kDdprunText = 1, kDdprunOwn = 2 };

// In the memory, valid until the next begin; the data and the text of a snapshot, or the own part of `writer`.
const void* ddprun_snapshots_bytes(const DdprunSnapshots* snapshots, int number, int what,
                                   int writer, std::uint64_t* size);
// Copies from there to where a program has it.
void ddprun_snapshots_read(const DdprunCopy* copies, std::size_t count);
// What this rank wrote of later steps, and of later calls at this one, is not gone on from.
void ddprun_snapshots_forget_after(DdprunSnapshots* snapshots, int local_rank, std::int64_t step,
                                   std::uint64_t call);
}
