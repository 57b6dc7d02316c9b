// Context: this process' place in its job: who it is, its device, and, as the Group of all ranks
// (collectives.h), all that ranks do together. Everything is well defined for a world of one, so
// the same program runs alone. Made by ddprun::run() (run.h) or by hand; lives as long as anything
// that communicates; one thread at a time, and all ranks must make the same collective calls in the
// same order. A process may have one after the other, all ranks equally many, where a launcher or the
// caller keeps the store; a store that rank 0 serves by itself ends with its Context.
//
//   int main(int argc, char** argv) {
//     return ddprun::run(argc, argv, [](ddprun::Context& context) {
//       auto loss = context.all_reduce(my_loss);
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
#include <optional>
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
class GroupBrokenListener;
class LeaveVote;
struct ProcessGroupOptions;

struct ContextOptions {
  Backend backend = Backend::kAuto;
  std::chrono::milliseconds join_timeout = std::chrono::minutes(5);  // until all ranks are there
  // Of one collective; none: PyTorch's, 10 minutes over NCCL and 30 over the others.
  std::optional<std::chrono::milliseconds> timeout = {};
  // Where and as whom to join, when the variables do not say it (environment.h).
  InitMethod init_method = {};
  // This rank's device, instead of the CPU or the GPU with the number of its local rank. Two ranks
  // may share a GPU over Gloo, not over NCCL.
  std::optional<torch::Device> device = {};
  // Compares every collective's name and tensor between the ranks before it, and says who differs.
  // Doubles and more the time of each; also on by TORCH_DISTRIBUTED_DEBUG=DETAIL.
  bool check_collectives = false;
  // Of memory shared with the other ranks of the node, for every rank of every group over shm: at most
  // a fifth for messages. What is larger goes through it in pieces.
  std::size_t shared_bytes_per_rank = std::size_t{2560} << 10;
  // Tunes malloc of the whole process, where the device is the CPU: up to 256 MiB that the process frees stay
  // with it for its next step, and the first 192 MiB are asked for in huge pages. Without it the system takes them
  // and gives them back page by page: a seventh of the step of a small CNN, and 12 ms of a restart. Not where the
  // environment tunes malloc.
  bool keep_freed_memory = false;
  // SIGPIPE, of the whole process, is ignored if it has its default action. Gloo and LibTorch's store write to
  // sockets without asking for no signal: when a peer ends at the wrong moment, a process with the default action
  // ends without a word. Python ignores it. Without a value run() ignores it, and a Context by itself does not.
  std::optional<bool> ignore_sigpipe = {};
  // Every rank's log lines, from info on, also into a file there (log.h); also by DDPRUN_LOG_DIR.
  std::string log_folder = {};
  // With ddprun --standby, in a program that is linked with ddprun::standby: the processes of a restart are forked
  // from one that has run the program up to this Context (run.h). false: each runs it from the beginning, because
  // something before the Context must happen in each of them.
  bool can_be_standby = true;
  // For run() (run.h), where no launcher has started this process: so many workers of this program are to run
  // on this node. The variable DDPRUN_NPROC_PER_NODE, if it is set, has the number instead. 0: only ever this process.
  int nproc_per_node = 0;
};

class Context : public Group {
 public:
  // Joins the group that the environment and options.init_method describe; returns when every rank is
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
  int world_size() const { return environment_.world_size; }
  bool is_distributed() const { return world_size() > 1; }
  bool is_main_process() const { return rank() == 0; }

  // Whose main process goes first.
  enum class First {
    kOfJob,   // rank 0
    kOfNode,  // local rank 0 of each node: for what is prepared on every node's own disk
  };

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
  // ddprun it does nothing.
  void progress(std::int64_t step, std::int64_t total = 0,
                std::initializer_list<ProgressValue> values = {}) {
    progress(step, total, std::span(values.begin(), values.size()));
  }
  void progress(std::int64_t step, std::int64_t total, std::span<const ProgressValue> values);

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
  [[nodiscard("true: save a checkpoint and return")]] bool should_leave();

 private:
  friend struct detail::ContextAccess;  // the end (leave.h), and parts of this library
  using AddDiagnosis = std::function<void(detail::Membership&, c10::intrusive_ptr<c10d::Store>)>;
  void make_recoverable(detail::Membership& whole, ProcessGroupOptions& group_options,
                        bool is_prepared, std::chrono::milliseconds join_timeout,
                        const AddDiagnosis& add_diagnosis);

  Environment environment_;
  std::unique_ptr<AgentLink> link_;                // to the agent; none without one
  std::unique_ptr<GroupBrokenListener> listener_;  // to it, where calls would wait for ever
  std::unique_ptr<LeaveVote> leave_vote_;
  c10::intrusive_ptr<c10d::Store> store_;
  bool others_need_store_ = false;  // rank 0 of this group hosts it
};

template <typename Function>
std::invoke_result_t<Function&> Context::main_process_first(Function&& f, First first) {
  using Value = std::invoke_result_t<Function&>;
  const bool goes_first = first == First::kOfJob ? is_main_process() : environment_.local_rank == 0;
  detail::Outcome<Value> mine;
  if (goes_first) mine.of(f);
  detail::throw_together(*this, mine.thrown, "main_process_first");
  if constexpr (std::is_void_v<Value>) {
    if (!goes_first) f();
  } else {
    return goes_first ? std::move(*mine.value) : f();
  }
}

}  // namespace ddprun
