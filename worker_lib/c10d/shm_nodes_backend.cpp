#include "worker_lib/c10d/shm_nodes_backend.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "worker_lib/c10d/gloo_types.h"
#include "worker_lib/c10d/shm_work.h"
#include "worker_lib/c10d/words.h"

namespace ddprun {
namespace {

using Tensors = NodesBackend::Tensors;

constexpr int kLeader = 0;  // a node's, among its ranks

const at::Tensor& only(const char* name, const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "shm: ", name, " takes one tensor, not ", tensors.size());
  return tensors[0];
}

// Between the leaders, with the types that Gloo knows, and bool as a byte.
void all_reduce_by_gloo(c10d::Backend& leaders, const at::Tensor& tensor, c10d::ReduceOp op,
                        std::chrono::milliseconds timeout) {
  using c10d::ReduceOp;
  at::Tensor sent = widened_for_gloo(tensor);
  if (tensor.scalar_type() == at::kBool) {
    sent = tensor.to(at::kByte);
    if (op == ReduceOp::SUM) op = ReduceOp::MAX;
    if (op == ReduceOp::PRODUCT) op = ReduceOp::MIN;
  }
  Tensors tensors{sent};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  options.timeout = timeout;
  leaders.allreduce(tensors, options)->wait();
  if (!sent.is_same(tensor)) tensor.copy_(sent);
}

}  // namespace

// Within the node, between the leaders, within the node: each part where there is something to do.
class NodesBackend::Job : public ShmJob {
 public:
  Job(shm::NodeGroup& node, std::chrono::milliseconds limit, Tensors results)
      : ShmJob(std::move(results)), node_(node), until_(shm::Clock::now() + limit) {}

  // Memory of `tensor`, which is written back there at the end if it lies otherwise.
  at::Tensor dense(const at::Tensor& tensor) {
    original_ = tensor;
    copy_ = tensor.contiguous();
    return copy_;
  }
  template <typename Collective, typename... Arguments>
  void before(Arguments&&... arguments) {
    before_.emplace(node_.rounds(), make<Collective>(std::forward<Arguments>(arguments)...),
                    until_);
  }
  void between(std::function<void()> leaders_part) { between_ = std::move(leaders_part); }
  template <typename Collective, typename... Arguments>
  void after(Arguments&&... arguments) {
    after_.emplace(node_.rounds(), make<Collective>(std::forward<Arguments>(arguments)...), until_);
  }

  void begin() override {
    if (before_) before_->begin();
  }
  void finish(std::chrono::nanoseconds spin) override {
    if (before_) before_->finish(spin);
    if (between_) among_leaders();
    if (after_) {
      after_->begin();
      after_->finish(spin);
    }
    if (copy_.defined() && !copy_.is_same(original_)) original_.copy_(copy_);
  }
  // Others need this rank for all of its parts.
  bool is_quick() const override { return false; }
  bool can_finish(std::chrono::nanoseconds) override { return false; }

 private:
  template <typename Collective, typename... Arguments>
  std::unique_ptr<Collective> make(Arguments&&... arguments) {
    return std::make_unique<Collective>(node_.rounds(), std::forward<Arguments>(arguments)...);
  }

  // Whoever waits in this node's memory hears of it when the connections fail.
  void among_leaders() {
    try {
      between_();
    } catch (const std::exception& error) {
      node_.rounds().give_up(Failure(code_of(error), words_of(error)));
    }
  }

  shm::NodeGroup& node_;
  shm::Clock::time_point until_;
  at::Tensor original_;
  at::Tensor copy_;
  std::optional<shm::Run> before_;
  std::function<void()> between_;
  std::optional<shm::Run> after_;
};

NodesBackend::NodesBackend(shm::Joined joined, int rank, BackendPtr leaders, BackendPtr all,
                           std::function<void(c10d::Backend&)> close_gloo,
                           std::chrono::milliseconds timeout)
    : Backend(rank, static_cast<int>(joined.placement.members())),
      joined_(std::move(joined)),
      leaders_(std::move(leaders)),
      all_(std::move(all)),
      close_gloo_(std::move(close_gloo)),
      timeout_(timeout) {}

NodesBackend::~NodesBackend() { joined_.node->close(); }

void NodesBackend::setTimeout(std::chrono::milliseconds timeout) {
  timeout_ = timeout;
  all_->setTimeout(timeout);
  if (leaders_) leaders_->setTimeout(timeout);
}

void NodesBackend::close() {
  joined_.node->close();
  if (leaders_) close_gloo_(*leaders_);
  close_gloo_(*all_);
}

NodesBackend::WorkPtr NodesBackend::post(std::shared_ptr<Job> job, c10d::OpType type) {
  auto work = c10::make_intrusive<ShmWork>(getRank(), type, joined_.node, job, ++posted_);
  joined_.node->queue().post(std::move(job));
  return work;
}

NodesBackend::WorkPtr NodesBackend::reduce_everywhere(const at::Tensor& tensor,
                                                      const c10d::ReduceOp& op,
                                                      std::chrono::milliseconds timeout,
                                                      c10d::OpType type) {
  const at::Tensor real =
      tensor.is_complex() && op.op_ == c10d::ReduceOp::SUM ? at::view_as_real(tensor) : tensor;
  const shm::Type element = shm_type_of(real);
  std::string why_not = shm::why_not(element, shm_op_of(op));
  const bool is_known = op.op_ != c10d::ReduceOp::AVG && op.op_ != c10d::ReduceOp::PREMUL_SUM &&
                        element != shm::Type::kUInt64;
  if (why_not.empty() && !is_known) why_not = "Gloo, which connects the nodes, cannot do it";
  TORCH_CHECK_VALUE(why_not.empty(), "shm: a reduction of ", tensor.scalar_type(), ": ", why_not);
  auto job = std::make_shared<Job>(*joined_.node, limit(timeout), Tensors{tensor});
  const at::Tensor data = job->dense(real);
  const auto count = static_cast<std::size_t>(data.numel());
  job->before<shm::Reduction>(data.data_ptr(), count, element, shm_op_of(op), kLeader);
  if (leaders_) {
    job->between([leaders = leaders_, data, op, timeout = limit(timeout)] {
      all_reduce_by_gloo(*leaders, data, op, timeout);
    });
  }
  job->after<shm::Broadcast>(data.data_ptr(), data.nbytes(), kLeader);
  return post(std::move(job), type);
}

NodesBackend::WorkPtr NodesBackend::allreduce(Tensors& tensors,
                                              const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only("all_reduce", tensors);
  if (tensor.layout() != at::kStrided) return all_->allreduce(tensors, options);
  return reduce_everywhere(tensor, options.reduceOp, options.timeout, c10d::OpType::ALLREDUCE);
}

// What the others' tensors hold afterwards is not defined: here it is the result as well.
NodesBackend::WorkPtr NodesBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return reduce_everywhere(only("reduce", tensors), options.reduceOp, options.timeout,
                           c10d::OpType::REDUCE);
}

NodesBackend::WorkPtr NodesBackend::broadcast(Tensors& tensors,
                                              const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only("broadcast", tensors);
  const int root = static_cast<int>(options.rootRank);
  const auto& nodes = joined_.placement.nodes;
  const auto& roots = joined_.placement.node_of(root);
  const auto root_node = std::find(nodes.begin(), nodes.end(), roots) - nodes.begin();
  const auto place = std::find(roots.begin(), roots.end(), root) - roots.begin();
  const bool is_on_roots = &joined_.placement.node_of(getRank()) == &roots;
  auto job = std::make_shared<Job>(*joined_.node, limit(options.timeout), tensors);
  const at::Tensor data = job->dense(tensor);
  if (is_on_roots) {
    job->before<shm::Broadcast>(data.data_ptr(), data.nbytes(), static_cast<int>(place));
  }
  if (leaders_) {
    job->between([leaders = leaders_, data, root_node, timeout = limit(options.timeout)] {
      // As bytes: what is only moved needs no type that Gloo can calculate with.
      Tensors bytes{
          at::from_blob(data.data_ptr(), {static_cast<std::int64_t>(data.nbytes())}, at::kByte)};
      c10d::BroadcastOptions between;
      between.rootRank = root_node;
      between.timeout = timeout;
      if (data.nbytes() > 0) leaders->broadcast(bytes, between)->wait();
    });
  }
  if (!is_on_roots) job->after<shm::Broadcast>(data.data_ptr(), data.nbytes(), kLeader);
  return post(std::move(job), c10d::OpType::BROADCAST);
}

NodesBackend::WorkPtr NodesBackend::barrier(const c10d::BarrierOptions& options) {
  auto job = std::make_shared<Job>(*joined_.node, limit(options.timeout), Tensors{});
  job->before<shm::Barrier>();
  if (leaders_) {
    job->between([leaders = leaders_, timeout = limit(options.timeout)] {
      c10d::BarrierOptions between;
      between.timeout = timeout;
      leaders->barrier(between)->wait();
    });
  }
  job->after<shm::Barrier>();
  return post(std::move(job), c10d::OpType::BARRIER);
}

void NodesBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool /*wait_for_all*/) {
  barrier(options)->wait();
}

}  // namespace ddprun
