#include "worker_lib/c10d/shm_nodes_backend.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace ddprun {
namespace {

using Tensors = NodesBackend::Tensors;

constexpr int kLeader = 0;  // a node's, among its ranks

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
  leaders.allreduce(tensors, {.reduceOp = op, .timeout = timeout})->wait();
  if (!sent.is_same(tensor)) tensor.copy_(sent);
}

}  // namespace

NodesBackend::NodesBackend(shm::Joined joined, c10::intrusive_ptr<c10d::Backend> leaders,
                           const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                           const ProcessGroupOptions& options, std::shared_ptr<GroupRecord> record)
    : GlooBackend(store, rank, size, options, std::move(record)),
      joined_(std::move(joined)),
      leaders_(std::move(leaders)),
      timeout_(options.timeout) {}

NodesBackend::~NodesBackend() { joined_.node->close(); }

void NodesBackend::setTimeout(std::chrono::milliseconds timeout) {
  timeout_ = timeout;
  GlooBackend::setTimeout(timeout);
  if (leaders_) leaders_->setTimeout(timeout);
}

void NodesBackend::abort() {
  joined_.node->close();
  if (leaders_) leaders_->abort();
  GlooBackend::abort();
}

std::shared_ptr<TensorJob> NodesBackend::job_for(Tensors results,
                                                 std::chrono::milliseconds timeout) {
  return std::make_shared<TensorJob>(*joined_.node, shm::Clock::now() + limit(timeout),
                                     std::move(results));
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
  auto job = job_for({tensor}, timeout);
  const at::Tensor data = job->reduce(real, op, kLeader);
  if (leaders_) {
    job->then([leaders = leaders_, data, op, timeout = limit(timeout)] {
      all_reduce_by_gloo(*leaders, data, op, timeout);
    });
  }
  job->after<shm::Broadcast>(element, data.data_ptr(), data.nbytes(), kLeader);
  return post(std::move(job), type);
}

NodesBackend::WorkPtr NodesBackend::allreduce(Tensors& tensors,
                                              const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only("all_reduce", tensors);
  if (tensor.layout() != at::kStrided) return GlooBackend::allreduce(tensors, options);
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
  auto job = job_for(tensors, options.timeout);
  const at::Tensor data = job->write(tensor);
  const shm::Type type = shm_type_of(data);
  if (is_on_roots) {
    job->set<shm::Broadcast>(type, data.data_ptr(), data.nbytes(), static_cast<int>(place));
  }
  if (leaders_) {
    job->then([leaders = leaders_, data, root_node, timeout = limit(options.timeout)] {
      // As bytes: what is only moved needs no type that Gloo can calculate with.
      Tensors bytes{
          at::from_blob(data.data_ptr(), {static_cast<std::int64_t>(data.nbytes())}, at::kByte)};
      if (data.nbytes() > 0) {
        leaders->broadcast(bytes, {.rootRank = root_node, .timeout = timeout})->wait();
      }
    });
  }
  if (!is_on_roots) job->after<shm::Broadcast>(type, data.data_ptr(), data.nbytes(), kLeader);
  return post(std::move(job), c10d::OpType::BROADCAST);
}

NodesBackend::WorkPtr NodesBackend::barrier(const c10d::BarrierOptions& options) {
  auto job = job_for({}, options.timeout);
  job->set<shm::Barrier>(shm::Type::kUnknown);
  if (leaders_) {
    job->then([leaders = leaders_, timeout = limit(options.timeout)] {
      c10d::BarrierOptions between;
      between.timeout = timeout;
      leaders->barrier(between)->wait();
    });
  }
  job->after<shm::Barrier>(shm::Type::kUnknown);
  return post(std::move(job), c10d::OpType::BARRIER);
}

}  // namespace ddprun
