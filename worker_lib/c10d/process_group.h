// Stores and process groups of c10d, made of values alone: of a store, ranks and options, as often in a
// process as wanted. The only place that knows which kinds there are. Blocking; one thread. Throws
// UsageError and Failure.
#pragma once

#include <torch/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "ddprun/backend.h"
#include "ddprun/environment.h"
#include "worker_lib/c10d/nccl_module.h"

namespace ddprun {

class GroupRecord;

namespace shm {
class PeerWatch;
}

// The store through which the ranks meet; of this process alone in a world of one.
c10::intrusive_ptr<c10d::Store> make_store(const Environment& environment,
                                           std::chrono::milliseconds join_timeout);

// kGloo, kShm or kNccl, never kAuto. For a GPU with the CUDA part loaded.
Backend choose_backend(Backend wanted, const std::optional<torch::Device>& device);

struct ProcessGroupOptions {
  Backend backend = Backend::kGloo;   // as choose_backend() gave it
  torch::Device device{torch::kCPU};  // this rank's
  std::chrono::milliseconds join_timeout = std::chrono::minutes(5);
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // of one collective
  std::size_t shared_bytes_per_rank = std::size_t{2560} << 10;   // see ContextOptions
  int node = 0;                  // the ranks that are on one node have the same
  bool is_one_node = true;       // all ranks are: Gloo then connects them within this machine
  std::string master_addr = {};  // else at the address from which this host is reached
  std::string place = {};        // where the ranks meet, for messages: "10.0.0.5:29500"
  // Called before this rank's part of each collective, on the thread that makes it.
  std::function<void(CallKind)> before_call = {};
  // Called before NCCL connects the ranks, which waits without a limit for one that does not come.
  std::function<void()> before_nccl = {};
  // Where the ranks that shared memory cannot share it any more: Gloo, else a Failure.
  bool may_fall_back = true;
  // When this descriptor can be read, nobody waits for the others' memory any more; -1: there is none.
  int stop_joining = -1;
};
// Of this process' place: `node` to `place`.
ProcessGroupOptions options_for(const Environment& environment);

// Makes the group of all ranks, and smaller ones, over one store with the same options. A value; each
// call of make() blocks until all members have joined.
class GroupMaker {
 public:
  GroupMaker(c10::intrusive_ptr<c10d::Store> store, ProcessGroupOptions options)
      : store_(std::move(store)), options_(std::move(options)) {}

  // `name` is unique among the groups of the job and equal on all members; `rank` is the index of
  // this one among them. A member that does not come is named.
  c10::intrusive_ptr<c10d::ProcessGroup> make(const std::string& name, int rank,
                                              const std::vector<int>& global_ranks) const;

  std::chrono::milliseconds timeout() const { return options_.timeout; }  // of one collective
  // Whether a group was made over Gloo because its memory could not be shared, on this rank and the others.
  bool has_fallen_back() const { return has_fallen_back_; }

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> connect(const std::string& name, int rank,
                                                 const std::vector<int>& global_ranks) const;
  c10::intrusive_ptr<c10d::Backend> make_nccl(const std::string& name, int rank,
                                              const std::vector<int>& global_ranks) const;
  c10::intrusive_ptr<c10d::Backend> make_shm(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                             const std::vector<int>& global_ranks,
                                             std::shared_ptr<GroupRecord> record) const;
  [[noreturn]] void fail(const std::string& name, const std::vector<int>& global_ranks,
                         const std::string& error) const;

  c10::intrusive_ptr<c10d::Store> store_;
  ProcessGroupOptions options_;
  mutable std::shared_ptr<shm::PeerWatch> watch_;  // made with the first group over shm
  mutable bool has_fallen_back_ = false;
};

// Ends what serves tensors on a GPU when all went well: waits for what is still under way there.
// Without it NCCL takes the end of a group for a failure, and stops calls that others wait for.
// Collective, as the end of Python's process groups is.
void shut_down(c10d::ProcessGroup& group);

// Ends the connections of what serves tensors on the CPU, so that peers which wait on this rank fail
// at once; of no use afterwards.
void close_connections(c10d::ProcessGroup& group);

// The same with all groups of this process, and calls that wait here fail, too, as does the making of a group that
// GroupMaker has begun over Gloo. Any thread.
void interrupt(const std::vector<c10::intrusive_ptr<c10d::ProcessGroup>>& groups);
bool can_be_interrupted(c10d::ProcessGroup& group);

// Integers that Gloo does not know as wider ones, which wrap around alike when they are cut again: a
// copy that is to be written back. Others: the tensor itself.
torch::Tensor widened_for_gloo(const torch::Tensor& tensor);

}  // namespace ddprun
