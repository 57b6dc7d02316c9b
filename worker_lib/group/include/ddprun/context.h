// Context: this process' place in its job: who it is, its device, and, as the Group of all ranks
// (collectives.h), all that ranks do together. Everything is well defined for a world of one, so
// the same program runs alone. Made by ddprun::run() (run.h) or by hand; lives as long as anything
// that communicates; one thread at a time, and all ranks must make the same collective calls in the
// same order. A process may have one after the other, all ranks equally many, where a launcher or the
// caller keeps the store; a store that rank 0 serves by itself ends with its Context.
//
//   int main(int argc, char** argv) {
//     return ddprun::run(argc, argv, [](ddprun::Context& context) {
//       auto loss = context.all_reduce_sum(my_loss);
//       if (context.is_main_process()) ddprun::log::info("loss ", loss);
//     });
//   }
//
// Throws: UsageError for what the person who started the program must change (variables that are
// missing or contradict, a backend that is not there), Failure or c10::Error for the rest.
#pragma once

#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "ddprun/backend.h"
#include "ddprun/collectives.h"
#include "ddprun/environment.h"
#include "ddprun/error.h"
#include "ddprun/progress.h"

namespace ddprun {

class AgentLink;
class LeaveVote;

// Whose main process goes first.
enum class First {
  kOfJob,   // rank 0
  kOfNode,  // local rank 0 of each node: for what is prepared on every node's own disk
};

struct ContextOptions {
  Backend backend = Backend::kAuto;
  std::chrono::milliseconds join_timeout = std::chrono::minutes(5);  // until all ranks are there
  std::chrono::milliseconds timeout = std::chrono::minutes(30);      // of one collective
  // Where and as whom to meet, when the variables do not say it (environment.h).
  Meeting meeting = {};
  // This rank's device, instead of the CPU or the GPU with the number of its local rank. Two ranks
  // may share a GPU over Gloo, not over NCCL.
  std::optional<torch::Device> device = {};
  // Compares every collective's name and tensor between the ranks before it, and says who differs.
  // Doubles and more the time of each; also on by TORCH_DISTRIBUTED_DEBUG=DETAIL.
  bool check_collectives = false;
  // Of memory shared with the other ranks of the node, for every rank of every group over shm: at most
  // a fifth for messages, else whole huge pages (2 MiB). What is larger goes through it in pieces.
  std::size_t shared_bytes_per_rank = std::size_t{2560} << 10;
  // Up to 256 MiB that this process frees stay with it for its next step, where the device is the CPU;
  // else the system takes them and gives them back page by page. Not where the environment tunes malloc.
  bool keep_freed_memory = true;
  // Every rank's log lines, from info on, also into a file there (log.h); also by DDPRUN_LOG_DIR.
  std::string log_folder = {};
};

class Context : public Group {
 public:
  // Joins the group that the environment and options.meeting describe; returns when every rank is
  // there. A rank that does not come is named after join_timeout.
  explicit Context(const ContextOptions& options = {});
  Context(Environment environment, const ContextOptions& options);
  // The same over a store of yours; MASTER_ADDR and MASTER_PORT are not used. Nothing is left open
  // for the others at the end: keep the store until all have left.
  Context(Environment environment, c10::intrusive_ptr<c10d::Store> store,
          const ContextOptions& options);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Environment& environment() const { return environment_; }
  int rank() const { return environment_.rank; }
  int world_size() const { return environment_.world_size; }
  bool is_distributed() const { return world_size() > 1; }
  bool is_main_process() const { return rank() == 0; }
  torch::Device device() const { return device_; }

  double all_reduce_sum(double value) { return all_reduce(value); }

  // Calls f() on the main process of the job, or of every node, and when it is done there on all
  // the others: one prepares what the others then find (a download, a cache of tokens). Returns
  // f's value, each rank its own. When f throws on one that goes first, the others throw a Failure
  // that names it, without calling f. Collective; the time limit of a collective
  // (ContextOptions::timeout) is that of the preparation.
  template <typename Function>
  std::invoke_result_t<Function&> main_process_first(Function&& f, First first = First::kOfJob);

  // Notes that `step` steps of `total` are done (0: not known how many there will be), for whoever
  // watches the job: ddprun's terminal line, status, metrics, live page and failure reports, systemd
  // and Kubeflow. With it any numbers that are worth watching (values on the CPU: reading a tensor
  // on a GPU waits for it); without any, those of before stay:
  //
  //   context.progress(step, total_steps, {{"loss", loss.item<double>()}});
  //
  // On this rank alone, not collective; some ten nanoseconds, so call it after every step. Without
  // ddprun only those of on_progress() hear of it.
  void progress(std::int64_t step, std::int64_t total = 0,
                std::initializer_list<ProgressValue> values = {}) {
    progress(step, total, std::span(values.begin(), values.size()));
  }
  void progress(std::int64_t step, std::int64_t total, std::span<const ProgressValue> values);

  // Who else is told, within progress(), in the order of these calls: on rank 0 a bar and TensorBoard,
  // for example. Must live as long as progress() is called.
  //
  //   context.on_progress(std::ref(bar));
  //   context.on_progress(ddprun::scalars_to(events, /*every_steps=*/10));
  void on_progress(std::function<void(const ProgressReport&)> listener);

  // True when the job is to end early (ddprun's --preempt-signal came, on any node): save a
  // checkpoint and return. The same answer on every rank, and true from then on:
  //
  //   while (auto batch = sampler.next(64)) {
  //     train(*batch);
  //     if (context.should_leave()) return save();
  //   }
  //
  // Call it equally often on every rank, at the same places: every so many calls (about twice a
  // second) it is a small collective through the CPU, and otherwise it is a decrement. So the
  // answer comes half a second after the notice, or after the step that is running. A program that
  // never calls it gets the signal itself. Always false without ddprun.
  bool should_leave();

  // Ends the membership when all went well: rank 0 keeps the store open until everybody is done
  // with it.
  void leave();

  // After a failure, in a handler: says to the others why this rank ends, and throws what is being
  // handled on; an error of a connection as a Failure that says which rank is missing (also when it
  // comes out of backward() or another place that knows nothing of this library). run() does it;
  // without it the others only see that this rank has gone without a word.
  [[noreturn]] void fail();
  // The same without the throw, from any thread, for a process that is about to abort by `error` (what
  // a thread of NCCL throws when a collective takes too long, for example): tells the others, and
  // returns what is to be said here.
  std::string last_words(const std::exception& error) noexcept;

 private:
  friend class Checkpointer;
  friend class FailureVote;

  bool is_told_to_leave();  // this process, from here on also by its link

  Environment environment_;
  torch::Device device_{torch::kCPU};
  std::unique_ptr<AgentLink> link_;  // to the agent; none without one
  std::vector<std::function<void(const ProgressReport&)>> progress_listeners_;
  std::unique_ptr<LeaveVote> leave_vote_;
  c10::intrusive_ptr<c10d::Store> store_;
  bool others_need_store_ = false;  // rank 0 of this group hosts it
};

template <typename Function>
std::invoke_result_t<Function&> Context::main_process_first(Function&& f, First first) {
  using Value = std::invoke_result_t<Function&>;
  const bool goes_first = first == First::kOfJob ? is_main_process() : environment_.local_rank == 0;
  std::optional<std::conditional_t<std::is_void_v<Value>, bool, Value>> value;
  std::exception_ptr mine;
  if (goes_first) {
    try {
      if constexpr (std::is_void_v<Value>) {
        f();
      } else {
        value.emplace(f());
      }
    } catch (...) {
      mine = std::current_exception();
    }
  }
  throw_together(mine, "main_process_first");
  if constexpr (std::is_void_v<Value>) {
    if (!goes_first) f();
  } else {
    return value ? std::move(*value) : f();
  }
}

}  // namespace ddprun
