#include "worker_lib/c10d/shm_backend.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "worker_lib/c10d/shm_work.h"

namespace ddprun {
namespace {

using shm::Op;
using shm::Type;
using Tensors = ShmBackend::Tensors;

const at::Tensor& only(const char* name, const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "shm: ", name, " takes one tensor, not ", tensors.size());
  TORCH_CHECK_VALUE(tensors[0].is_cpu(), "shm: ", name, " takes tensors on the CPU, not on ",
                    tensors[0].device());
  return tensors[0];
}

const Tensors& only(const char* name, const std::vector<Tensors>& lists) {
  TORCH_CHECK_VALUE(lists.size() == 1, "shm: ", name, " takes one list of tensors, not ",
                    lists.size());
  return lists[0];
}

void check_like(const char* name, const at::Tensor& one, const at::Tensor& other) {
  TORCH_CHECK_VALUE(one.scalar_type() == other.scalar_type() && one.numel() == other.numel(),
                    "shm: ", name, " takes tensors of one size and type, not ", one.scalar_type(),
                    one.sizes(), " and ", other.scalar_type(), other.sizes());
}

void check_count(const char* name, const Tensors& tensors, int size) {
  TORCH_CHECK_VALUE(static_cast<int>(tensors.size()) == size, "shm: ", name, " takes ", size,
                    " tensors, one for each rank, not ", tensors.size());
}

// What can be reduced as it lies in memory: a complex sum is one of its parts.
at::Tensor as_reducible(const char* name, const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const bool is_sum = shm_op_of(op) == Op::kSum || shm_op_of(op) == Op::kAverage;
  const at::Tensor real = tensor.is_complex() && is_sum ? at::view_as_real(tensor) : tensor;
  const std::string why_not = shm::why_not(shm_type_of(real), shm_op_of(op));
  TORCH_CHECK_VALUE(why_not.empty(), "shm: ", name, " of ", tensor.scalar_type(), ": ", why_not);
  return real;
}

void scale(at::Tensor tensor, const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return;
  const auto& factor = *static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (factor.tensor_factor.defined()) {
    tensor.mul_(factor.tensor_factor);
  } else {
    tensor.mul_(factor.double_factor);
  }
}

}  // namespace

// A collective on tensors. Those that are not contiguous are replaced by copies, which go back where
// they came from at the end.
class ShmBackend::Job : public ShmJob {
 public:
  Job(shm::NodeGroup& node, shm::Clock::time_point until, Tensors results)
      : ShmJob(std::move(results)), node_(node), until_(until) {}

  // Memory to read, and to write; for as long as the job is there.
  void* read(const at::Tensor& tensor) {
    kept_.push_back(tensor.contiguous());
    return kept_.back().data_ptr();
  }
  void* write(const at::Tensor& tensor) {
    kept_.push_back(tensor);
    if (tensor.is_contiguous()) return tensor.data_ptr();
    at::Tensor copy = tensor.contiguous();
    copied_.emplace_back(tensor, copy);
    return copy.data_ptr();
  }

  template <typename Collective, typename... Arguments>
  void set(Type type, Arguments&&... arguments) {
    auto collective =
        std::make_unique<Collective>(node_.rounds(), std::forward<Arguments>(arguments)...);
    collective->say(type);
    run_.emplace(node_.rounds(), std::move(collective), until_);
  }
  // Called at the end.
  void conclude(std::function<void()> conclusion) { conclusion_ = std::move(conclusion); }

  void begin() override { run_->begin(); }
  void finish(std::chrono::nanoseconds spin) override {
    run_->finish(spin);
    for (auto& [original, copy] : copied_) original.copy_(copy);
    if (conclusion_) conclusion_();
  }
  bool is_quick() const override { return run_->is_quick(); }
  bool can_finish(std::chrono::nanoseconds spin) override { return run_->can_finish(spin); }

 protected:
  shm::NodeGroup& node_;
  shm::Clock::time_point until_;

 private:
  Tensors kept_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copied_;
  std::optional<shm::Run> run_;
  std::function<void()> conclusion_;
};

// A sum of sparse tensors: everybody gets all indices and values and adds them up, in the order of
// ranks, as Gloo's backend does.
class ShmBackend::SparseSum : public Job {
 public:
  SparseSum(shm::NodeGroup& node, shm::Clock::time_point until, at::Tensor tensor)
      : Job(node, until, {tensor}), tensor_(std::move(tensor)) {}

  void begin() override {
    own_ = tensor_.coalesce();
    numbers_ = at::zeros({kNumbers}, at::kLong);
    auto* const numbers = numbers_.mutable_data_ptr<std::int64_t>();
    numbers[0] = own_._nnz();
    numbers[1] = own_.sparse_dim();
    numbers[2] = own_.dense_dim();
    numbers[3] = static_cast<std::int64_t>(own_.scalar_type());
    TORCH_CHECK_VALUE(own_.dim() <= kNumbers - 4, "shm: a sparse tensor of ", own_.dim(),
                      " dimensions");
    std::copy(own_.sizes().begin(), own_.sizes().end(), numbers + 4);
    first_.emplace(gather(numbers_, all_numbers_));
    first_->begin();
  }

  void finish(std::chrono::nanoseconds spin) override {
    first_->finish(spin);
    std::int64_t most = 0;
    for (const at::Tensor& numbers : all_numbers_) {
      if (!at::equal(numbers.slice(0, 1), numbers_.slice(0, 1))) {
        node_.rounds().give_up(Failure(ErrorCode::kInvalidArgument,
                                       "the ranks give all_reduce sparse tensors of different "
                                       "shapes or types"));
      }
      most = std::max(most, numbers[0].item<std::int64_t>());
    }
    const Tensors indices = gather_padded(own_.indices().t().contiguous(), most, spin);
    const Tensors values = gather_padded(own_.values().contiguous(), most, spin);
    at::Tensor sum;
    for (std::size_t rank = 0; rank < indices.size(); ++rank) {
      const std::int64_t count = all_numbers_[rank][0].item<std::int64_t>();
      const at::Tensor part = at::sparse_coo_tensor(indices[rank].narrow(0, 0, count).t(),
                                                    values[rank].narrow(0, 0, count), own_.sizes());
      if (rank == 0) {
        sum = part;
      } else {
        sum += part;
      }
    }
    tensor_.copy_(sum.coalesce());
  }
  bool is_quick() const override { return false; }

 private:
  static constexpr std::int64_t kNumbers = 32;

  shm::Run gather(const at::Tensor& own, Tensors& all) {
    std::vector<void*> places;
    for (int rank = 0; rank < node_.rounds().size(); ++rank) {
      all.push_back(at::empty_like(own));
      places.push_back(all.back().data_ptr());
    }
    return shm::Run(node_.rounds(),
                    std::make_unique<shm::Gather>(node_.rounds(), own.data_ptr(), own.nbytes(),
                                                  std::move(places)),
                    until_);
  }

  Tensors gather_padded(const at::Tensor& own, std::int64_t most, std::chrono::nanoseconds spin) {
    std::vector<std::int64_t> sizes = own.sizes().vec();
    sizes[0] = most;
    const at::Tensor padded = at::zeros(sizes, own.options());
    padded.narrow(0, 0, own.size(0)).copy_(own);
    Tensors all;
    shm::Run run = gather(padded, all);
    run.begin();
    run.finish(spin);
    return all;
  }

  at::Tensor tensor_;
  at::Tensor own_;
  at::Tensor numbers_;
  Tensors all_numbers_;
  std::optional<shm::Run> first_;
};

// A message: ends by itself.
class ShmBackend::MailWork : public c10d::Work {
 public:
  MailWork(int rank, c10d::OpType type, at::Tensor tensor, std::shared_ptr<shm::NodeGroup> node)
      : Work(rank, type), tensor_(std::move(tensor)), moved_(tensor_.contiguous()), node_(node) {}

  shm::Mail::Message message(int peer, int tag, shm::Clock::time_point until) {
    // Kept until the end, whoever forgets it.
    auto self = c10::intrusive_ptr<MailWork>::unsafe_reclaim_from_nonowning(this);
    return {.peer = peer,
            .tag = tag,
            .type = shm_type_of(moved_),
            .data = moved_.data_ptr(),
            .bytes = moved_.nbytes(),
            .until = until,
            .ended = [self = std::move(self)](std::exception_ptr error, int source) {
              self->end(error ? torch_error(error) : nullptr, source);
            }};
  }

  int sourceRank() const override { return source_; }
  Tensors result() override { return {tensor_}; }
  void abort() override {
    if (const auto node = node_.lock()) node->close();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return promise_.future({tensor_});
  }

 private:
  void end(std::exception_ptr error, int source) {
    source_ = source;
    if (!error && retrieveOpType() != c10d::OpType::SEND && !moved_.is_same(tensor_)) {
      tensor_.copy_(moved_);
    }
    promise_.end(error, {tensor_});
    finish(std::move(error));
  }

  at::Tensor tensor_;
  at::Tensor moved_;
  std::weak_ptr<shm::NodeGroup> node_;  // which holds the message
  std::atomic<int> source_ = -1;
  ShmPromise promise_;
};

ShmBackend::ShmBackend(std::shared_ptr<shm::NodeGroup> node, std::chrono::milliseconds timeout)
    : Backend(node->rounds().rank(), node->rounds().size()),
      node_(std::move(node)),
      timeout_(timeout) {}

ShmBackend::~ShmBackend() { close(); }

shm::Clock::time_point ShmBackend::until(std::chrono::milliseconds timeout) const {
  return shm::Clock::now() + (timeout == c10d::kUnsetTimeout ? timeout_ : timeout);
}

ShmBackend::WorkPtr ShmBackend::post(std::shared_ptr<Job> job, c10d::OpType type) {
  auto work = c10::make_intrusive<ShmWork>(getRank(), type, node_, job, ++posted_);
  node_->queue().post(std::move(job));
  return work;
}

ShmBackend::WorkPtr ShmBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only("broadcast", tensors);
  auto job = std::make_shared<Job>(*node_, until(options.timeout), tensors);
  void* const data = job->write(tensor);
  job->set<shm::Broadcast>(shm_type_of(tensor), data, tensor.nbytes(),
                           static_cast<int>(options.rootRank));
  return post(std::move(job), c10d::OpType::BROADCAST);
}

ShmBackend::WorkPtr ShmBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only("all_reduce", tensors);
  const auto end = until(options.timeout);
  if (tensor.layout() == at::kSparse) {
    TORCH_CHECK_VALUE(options.reduceOp == c10d::ReduceOp::SUM,
                      "shm: all_reduce of a sparse tensor is a sum and nothing else");
    return post(std::make_shared<SparseSum>(*node_, end, tensor), c10d::OpType::_ALLREDUCE_SPARSE);
  }
  const at::Tensor real = as_reducible("all_reduce", tensor, options.reduceOp);
  auto job = std::make_shared<Job>(*node_, end, tensors);
  scale(real, options.reduceOp);
  void* const data = job->write(real);
  job->set<shm::Reduction>(shm_type_of(real), data, static_cast<std::size_t>(real.numel()),
                           shm_type_of(real), shm_op_of(options.reduceOp));
  return post(std::move(job), c10d::OpType::ALLREDUCE);
}

ShmBackend::WorkPtr ShmBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK_VALUE(!tensors.empty(), "shm: all_reduce of no tensor");
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.is_cpu() && tensor.scalar_type() == tensors[0].scalar_type(),
                      "shm: all_reduce of several takes tensors of one type on the CPU");
    flat.push_back(as_reducible("all_reduce", tensor, options.reduceOp).reshape({-1}));
  }
  const at::Tensor all = at::cat(flat);
  scale(all, options.reduceOp);
  auto job = std::make_shared<Job>(*node_, until(options.timeout), tensors);
  void* const data = job->write(all);
  job->set<shm::Reduction>(shm_type_of(all), data, static_cast<std::size_t>(all.numel()),
                           shm_type_of(all), shm_op_of(options.reduceOp));
  job->conclude([all, tensors] {
    std::int64_t at = 0;
    for (const at::Tensor& tensor : tensors) {
      const at::Tensor real = tensor.is_complex() ? at::view_as_real(tensor) : tensor;
      real.copy_(all.narrow(0, at, real.numel()).view(real.sizes()));
      at += real.numel();
    }
  });
  return post(std::move(job), c10d::OpType::ALLREDUCE_COALESCED);
}

ShmBackend::WorkPtr ShmBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor real = as_reducible("reduce", only("reduce", tensors), options.reduceOp);
  auto job = std::make_shared<Job>(*node_, until(options.timeout), tensors);
  scale(real, options.reduceOp);
  void* const data = job->write(real);
  job->set<shm::Reduction>(shm_type_of(real), data, static_cast<std::size_t>(real.numel()),
                           shm_type_of(real), shm_op_of(options.reduceOp),
                           static_cast<int>(options.rootRank));
  return post(std::move(job), c10d::OpType::REDUCE);
}

ShmBackend::WorkPtr ShmBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) {
  const at::Tensor& input = only("all_gather", inputs);
  const Tensors& parts = only("all_gather", outputs);
  check_count("all_gather", parts, getSize());
  auto job = std::make_shared<Job>(*node_, until(options.timeout), parts);
  std::vector<void*> places;
  for (const at::Tensor& part : parts) {
    check_like("all_gather", input, part);
    places.push_back(job->write(part));
  }
  const void* const own = job->read(input);
  job->set<shm::Gather>(shm_type_of(input), own, input.nbytes(), std::move(places));
  return post(std::move(job), c10d::OpType::ALLGATHER);
}

ShmBackend::WorkPtr ShmBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(
      output.numel() == input.numel() * getSize() && output.scalar_type() == input.scalar_type(),
      "shm: all_gather into a tensor of ", output.numel(), " ", output.scalar_type(), " from ",
      getSize(), " ranks with ", input.numel(), " ", input.scalar_type(), " each");
  auto job = std::make_shared<Job>(*node_, until(options.timeout), Tensors{output});
  auto* const all = static_cast<std::byte*>(job->write(output));
  std::vector<void*> places;
  for (int rank = 0; rank < getSize(); ++rank) {
    places.push_back(all + static_cast<std::size_t>(rank) * input.nbytes());
  }
  const void* const own = job->read(input);
  job->set<shm::Gather>(shm_type_of(input), own, input.nbytes(), std::move(places));
  return post(std::move(job), c10d::OpType::_ALLGATHER_BASE);
}

ShmBackend::WorkPtr ShmBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::GatherOptions& options) {
  const at::Tensor& input = only("gather", inputs);
  const int root = static_cast<int>(options.rootRank);
  const bool is_root = getRank() == root;
  const Tensors parts = is_root ? only("gather", outputs) : Tensors{};
  if (is_root) check_count("gather", parts, getSize());
  auto job = std::make_shared<Job>(*node_, until(options.timeout), parts);
  std::vector<void*> places;
  for (const at::Tensor& part : parts) {
    check_like("gather", input, part);
    places.push_back(job->write(part));
  }
  const void* const own = job->read(input);
  job->set<shm::Gather>(shm_type_of(input), own, input.nbytes(), std::move(places), root);
  return post(std::move(job), c10d::OpType::GATHER);
}

ShmBackend::WorkPtr ShmBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ScatterOptions& options) {
  const at::Tensor& output = only("scatter", outputs);
  const int root = static_cast<int>(options.rootRank);
  const bool is_root = getRank() == root;
  const Tensors parts = is_root ? only("scatter", inputs) : Tensors{};
  if (is_root) check_count("scatter", parts, getSize());
  auto job = std::make_shared<Job>(*node_, until(options.timeout), outputs);
  std::vector<const void*> sources;
  for (const at::Tensor& part : parts) {
    check_like("scatter", output, part);
    sources.push_back(job->read(part));
  }
  void* const own = job->write(output);
  job->set<shm::Scatter>(shm_type_of(output), own, output.nbytes(), std::move(sources), root);
  return post(std::move(job), c10d::OpType::SCATTER);
}

ShmBackend::WorkPtr ShmBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                               const c10d::ReduceScatterOptions& options) {
  const at::Tensor output =
      as_reducible("reduce_scatter", only("reduce_scatter", outputs), options.reduceOp);
  const Tensors& parts = only("reduce_scatter", inputs);
  check_count("reduce_scatter", parts, getSize());
  auto job = std::make_shared<Job>(*node_, until(options.timeout), outputs);
  std::vector<const void*> sources;
  for (const at::Tensor& part : parts) {
    check_like("reduce_scatter", outputs[0], part);
    at::Tensor real = as_reducible("reduce_scatter", part, options.reduceOp);
    if (options.reduceOp.op_ == c10d::ReduceOp::PREMUL_SUM) {
      real = real.clone();  // the inputs stay what they are
      scale(real, options.reduceOp);
    }
    sources.push_back(job->read(real));
  }
  void* const own = job->write(output);
  job->set<shm::ReduceScatter>(shm_type_of(output), own, static_cast<std::size_t>(output.numel()),
                               std::move(sources), shm_type_of(output),
                               shm_op_of(options.reduceOp));
  return post(std::move(job), c10d::OpType::REDUCE_SCATTER);
}

ShmBackend::WorkPtr ShmBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(
      input.numel() == output.numel() * getSize() && output.scalar_type() == input.scalar_type(),
      "shm: reduce_scatter of a tensor of ", input.numel(), " ", input.scalar_type(), " to ",
      getSize(), " ranks with ", output.numel(), " ", output.scalar_type(), " each");
  const at::Tensor flat = input.contiguous().view({getSize(), -1});
  std::vector<Tensors> parts{flat.unbind(0)};
  Tensors outputs{output};
  if (output.numel() == 0) parts[0].assign(static_cast<std::size_t>(getSize()), output);
  return reduce_scatter(outputs, parts, options);
}

ShmBackend::WorkPtr ShmBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<std::int64_t>& output_splits,
                                              std::vector<std::int64_t>& input_splits,
                                              const c10d::AllToAllOptions& options) {
  c10d::checkSplitSizes(input_splits, input, getSize());
  c10d::checkSplitSizes(output_splits, output, getSize());
  auto job = std::make_shared<Job>(*node_, until(options.timeout), Tensors{output});
  const auto bytes = [this](const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                            int rank) {
    if (splits.empty()) return tensor.nbytes() / static_cast<std::size_t>(getSize());
    const std::size_t rows = static_cast<std::size_t>(tensor.size(0));
    return rows == 0 ? 0
                     : tensor.nbytes() / rows *
                           static_cast<std::size_t>(splits[static_cast<std::size_t>(rank)]);
  };
  auto* from = static_cast<const std::byte*>(job->read(input));
  auto* to = static_cast<std::byte*>(job->write(output));
  std::vector<shm::AllToAll::Out> sent;
  std::vector<shm::AllToAll::In> received;
  for (int rank = 0; rank < getSize(); ++rank) {
    sent.push_back({from, bytes(input, input_splits, rank)});
    received.push_back({to, bytes(output, output_splits, rank)});
    from += sent.back().bytes;
    to += received.back().bytes;
  }
  job->set<shm::AllToAll>(shm_type_of(input), std::move(sent), std::move(received));
  return post(std::move(job), c10d::OpType::ALLTOALL_BASE);
}

ShmBackend::WorkPtr ShmBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                         const c10d::AllToAllOptions& options) {
  check_count("all_to_all", inputs, getSize());
  check_count("all_to_all", outputs, getSize());
  auto job = std::make_shared<Job>(*node_, until(options.timeout), outputs);
  std::vector<shm::AllToAll::Out> sent;
  std::vector<shm::AllToAll::In> received;
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    sent.push_back({job->read(inputs[rank]), inputs[rank].nbytes()});
    received.push_back({job->write(outputs[rank]), outputs[rank].nbytes()});
  }
  job->set<shm::AllToAll>(shm_type_of(inputs[0]), std::move(sent), std::move(received));
  return post(std::move(job), c10d::OpType::ALLTOALL);
}

ShmBackend::WorkPtr ShmBackend::barrier(const c10d::BarrierOptions& options) {
  auto job = std::make_shared<Job>(*node_, until(options.timeout), Tensors{});
  job->set<shm::Barrier>(Type::kUnknown);
  return post(std::move(job), c10d::OpType::BARRIER);
}

// Every barrier here names who does not come.
void ShmBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool /*wait_for_all*/) {
  barrier(options)->wait();
}

ShmBackend::WorkPtr ShmBackend::send(Tensors& tensors, int to, int tag) {
  auto work =
      c10::make_intrusive<MailWork>(getRank(), c10d::OpType::SEND, only("send", tensors), node_);
  node_->mail().send(work->message(to, tag, until(c10d::kUnsetTimeout)));
  return work;
}

ShmBackend::WorkPtr ShmBackend::receive(at::Tensor tensor, int from, int tag, c10d::OpType type) {
  auto work = c10::make_intrusive<MailWork>(getRank(), type, std::move(tensor), node_);
  node_->mail().receive(work->message(from, tag, until(c10d::kUnsetTimeout)));
  return work;
}

ShmBackend::WorkPtr ShmBackend::recv(Tensors& tensors, int from, int tag) {
  return receive(only("receive", tensors), from, tag, c10d::OpType::RECV);
}

ShmBackend::WorkPtr ShmBackend::recvAnysource(Tensors& tensors, int tag) {
  return receive(only("receive", tensors), shm::Mail::kAny, tag, c10d::OpType::RECVANYSOURCE);
}

}  // namespace ddprun
