// What follows from samples of this machine's GPUs: which one a rank uses, what to say of a rank that has failed, and whether
// the memory of dead workers is free. Values; pure.
//
// Whether the next round's workers may start, for each GPU; where pids mean nothing, for each that this node's ranks use:
//
//   a sample, and what is known                                      the workers
//   there is no driver's library, or it does not answer               start
//   the driver's list has the pid of a dead worker                    wait
//   the list has pids of this namespace, and none of the dead         start
//   its pids mean nothing here; the memory in use before the first    start when no more than that is in use, with
//     round is known                                                    kTolerance
//   likewise, and is not known                                        start when it has not fallen by kTolerance since the
//                                                                       last look
//   any of these, kWaitMax after the first look                       start
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/gpu/nvml.h"

namespace ddprun::agent {

// What is known of a rank of this node.
struct RankDevice {
  int pid = 0;              // its worker's
  std::string device = {};  // as CUDA_VISIBLE_DEVICES has it, "3" or "GPU-..."; empty: not known
  int local_rank = -1;      // -1: it says nothing, because the user has named GPUs
};

// The index of the GPU. Of those whose lists have its process, the one that was assigned to it, else the one where it holds most;
// if none has it, the one that was assigned. Nothing: not known.
std::optional<int> gpu_of(const RankDevice& rank, const std::vector<GpuSample>& gpus);

// Whether the pids of the driver's lists are those of this process's namespace. `own`: the processes of this job, here.
bool are_pids_known(const std::vector<GpuSample>& gpus, const std::set<int>& own,
                    bool is_first_namespace);

// "Xid 79 (the GPU has fallen off the bus)"
std::string xid_in_words(int xid);

struct GpuFailure {
  int gpu = 0;
  std::string host;
  std::vector<int> xids;          // since the round began
  std::uint64_t ecc = 0;          // likewise, uncorrected errors
  GpuSample sample = {};          // after the failure
  int pid = 0;                    // the rank's process
  bool is_out_of_memory = false;  // as the worker's words say
  std::set<int> own = {};         // pids of this job on this node
  bool are_pids_known = false;
};
// Sentences without their full stops, each for a line: "Xid 79 (…) on GPU 5 of b1". Empty: there is nothing to say.
std::vector<std::string> in_words(const GpuFailure& failure);

// "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate …"
bool says_out_of_memory(std::string_view words);
bool speaks_of_cuda(std::string_view words);

struct MemoryWait {
  static constexpr std::uint64_t kTolerance = std::uint64_t{512} << 20;
  static constexpr std::chrono::milliseconds kWaitMax{30'000};
  static constexpr std::chrono::milliseconds kTellAfter{2'000};

  std::vector<int> dead;  // pids of the last round's workers
  std::vector<int> gpus;  // that this node's ranks use, for where pids mean nothing; empty: all
  std::optional<std::vector<GpuSample>> before_first = {};  // the first round
  std::optional<std::vector<GpuSample>> last = {};          // look
};
// Which memory is awaited: a text for a line, "21.0 GiB on GPU 3 (pid 4711)". Empty: the workers may start.
std::string what_is_awaited(const MemoryWait& wait, const std::vector<GpuSample>& now,
                            bool are_pids_known);

}  // namespace ddprun::agent
