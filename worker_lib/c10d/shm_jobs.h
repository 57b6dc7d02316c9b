// The operations of ShmBackend on tensors: collectives, the sum of sparse tensors, and messages.
// Threads as shm_work.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "worker_lib/c10d/shm_work.h"

namespace ddprun {

// What c10d gives as a list is one tensor, on the CPU; `name` is the operation's.
const at::Tensor& only(const char* name, const std::vector<at::Tensor>& tensors);

// By the factor of PREMUL_SUM, where `op` is that.
void scale(at::Tensor tensor, const c10d::ReduceOp& op);

// A collective on tensors, or two with something between them. Those that are not contiguous are
// replaced by copies, which go back where they came from at the end.
class TensorJob : public ShmJob {
 public:
  TensorJob(shm::NodeGroup& node, shm::Clock::time_point until, Tensors results)
      : ShmJob(std::move(results)), node_(node), until_(until) {}

  // Dense tensors to read, and to write; for as long as the job is there.
  const at::Tensor& read(const at::Tensor& tensor) {
    return kept_.emplace_back(tensor.contiguous());
  }
  const at::Tensor& write(const at::Tensor& tensor) {
    const at::Tensor& dense = read(tensor);
    if (!dense.is_same(tensor)) copied_.emplace_back(tensor, dense);
    return dense;
  }

  template <typename Collective, typename... Arguments>
  void set(shm::Type type, Arguments&&... arguments) {
    emplace<Collective>(first_, type, std::forward<Arguments>(arguments)...);
  }
  // In place. Returns where that is.
  const at::Tensor& reduce(const at::Tensor& tensor, const c10d::ReduceOp& op,
                           int root = shm::Reduction::kAll);
  // A sum of sparse tensors: everybody gets all indices and values and adds them up, in the order of
  // ranks, as Gloo's backend does.
  void sum_sparse(const at::Tensor& tensor);
  // What is between them. Whoever waits in this node's memory hears of it when it throws.
  void then(std::function<void()> step) { step_ = std::move(step); }
  template <typename Collective, typename... Arguments>
  void after(shm::Type type, Arguments&&... arguments) {
    emplace<Collective>(second_, type, std::forward<Arguments>(arguments)...);
  }

  void begin() override {
    if (first_) first_->begin();
  }
  void finish(std::chrono::nanoseconds spin) override;
  bool is_quick() const override { return !step_ && !second_ && first_->is_quick(); }
  bool can_finish(std::chrono::nanoseconds spin) override { return first_->can_finish(spin); }

 private:
  template <typename Collective, typename... Arguments>
  void emplace(std::optional<shm::Run>& run, shm::Type type, Arguments&&... arguments) {
    auto collective =
        std::make_unique<Collective>(node_.exchange(), std::forward<Arguments>(arguments)...);
    collective->say(type);
    run.emplace(node_.exchange(), std::move(collective), until_);
  }

  std::vector<void*> places_for(const at::Tensor& own, Tensors& all);
  Tensors gather_padded(const at::Tensor& own, std::int64_t rows);

  shm::NodeGroup& node_;
  shm::Clock::time_point until_;
  std::deque<at::Tensor> kept_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copied_;
  std::optional<shm::Run> first_, second_;
  std::function<void()> step_;
};

// A message: ends by itself. Without a future, as those of Gloo.
class MessageWork : public c10d::Work {
 public:
  MessageWork(int rank, c10d::OpType type, at::Tensor tensor, std::shared_ptr<shm::NodeGroup> node)
      : Work(rank, type), tensor_(std::move(tensor)), moved_(tensor_.contiguous()), node_(node) {}

  // Before message(): says in the record, if there is one, that this rank sends or receives.
  void enter(const std::shared_ptr<GroupRecord>& record, int peer, int tag);
  shm::Messages::Message message(int peer, int tag, shm::Clock::time_point until);

  bool wait(std::chrono::milliseconds timeout) override {
    const GroupRecord::Waiting waiting(record_, ticket_);
    return Work::wait(timeout);
  }
  int sourceRank() const override { return source_; }
  std::vector<at::Tensor> result() override { return {tensor_}; }
  void abort() override {
    if (const auto node = node_.lock()) node->close();
  }

 private:
  void end(std::exception_ptr error, int source);

  at::Tensor tensor_;
  at::Tensor moved_;
  std::weak_ptr<shm::NodeGroup> node_;  // which holds the message
  std::shared_ptr<GroupRecord> record_;
  record::Ticket ticket_ = 0;
  std::atomic<int> source_ = -1;
};

}  // namespace ddprun
