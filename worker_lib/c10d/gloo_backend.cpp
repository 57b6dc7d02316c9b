#include "worker_lib/c10d/gloo_backend.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <gloo/common/error.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "worker_lib/c10d/error_text.h"
#include "worker_lib/c10d/recorded_call.h"

namespace ddprun {
namespace {

using c10d::ProcessGroupGloo;

// The address of this machine from which `host` is reached, as text; empty if that cannot be told.
// Asks the routing table (a datagram socket sends nothing on connect), not the name of this
// machine, whose look-up, Gloo's default, can take seconds.
std::string local_address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return {};
  std::string text;
  for (const addrinfo* at = found; at != nullptr && text.empty(); at = at->ai_next) {
    const int fd = ::socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    char name[NI_MAXHOST];
    if (::connect(fd, at->ai_addr, at->ai_addrlen) == 0 &&
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), size, name, sizeof name, nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      text = name;
    }
    ::close(fd);
  }
  freeaddrinfo(found);
  return text;
}

std::shared_ptr<::gloo::transport::Device> device_for(const ProcessGroupOptions& options) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) {
    return ProcessGroupGloo::createDeviceForInterface(interface);
  }
  if (options.is_one_node) return ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  const std::string address = local_address_towards(options.master_addr);
  if (address.empty()) return ProcessGroupGloo::createDefaultDevice();
  return ProcessGroupGloo::createDeviceForHostname(address);
}

c10::intrusive_ptr<ProcessGroupGloo::Options> gloo_options(const ProcessGroupOptions& options) {
  auto for_gloo = ProcessGroupGloo::Options::create(options.join_timeout);
  for_gloo->devices.push_back(device_for(options));
  return for_gloo;
}

}  // namespace

// All are connected within the one time limit, and from then on there is the other.
GlooBackend::GlooBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                         const ProcessGroupOptions& options, std::shared_ptr<GroupRecord> record)
    : ProcessGroupGloo(store, rank, size, gloo_options(options)), record_(std::move(record)) {
  ProcessGroupGloo::setTimeout(options.timeout);
}

void GlooBackend::abort() {
  for (const auto& context : contexts_) context->closeConnections();
}

namespace {

// What this thread's next calls are a part of: PyTorch makes its reduce_scatter over Gloo from
// all_reduce, and the work that it returns has no future.
thread_local const record::Call* whole = nullptr;

// Gloo's work, with what is known of it. A message is left when its wait has returned, or cannot come any more.
class RecordedWork : public c10d::Work {
 public:
  RecordedWork(int rank, c10d::OpType type, GlooBackend::WorkPtr work,
               std::shared_ptr<GroupRecord> record, record::Ticket ticket, bool is_message)
      : Work(rank, type),
        work_(std::move(work)),
        record_(std::move(record)),
        ticket_(ticket),
        is_message_(is_message) {}
  ~RecordedWork() override {
    if (is_message_) record_->leave(ticket_);
  }

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  void synchronize() override { work_->synchronize(); }
  bool wait(std::chrono::milliseconds timeout) override {
    const GroupRecord::Waiting waiting(record_, ticket_);
    const bool is_done = work_->wait(timeout);
    record_->leave(ticket_);
    return is_done;
  }
  void abort() override { work_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return work_->getFuture(); }
  std::uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }

 private:
  const GlooBackend::WorkPtr work_;
  const std::shared_ptr<GroupRecord> record_;
  const record::Ticket ticket_;
  const bool is_message_;
};

}  // namespace

// Gloo's thread finds the call done, and completes its future.
template <typename Begin>
GlooBackend::WorkPtr GlooBackend::recorded(const record::Call& call, const Begin& begin) {
  if (!record_) return begin();
  const record::Ticket ticket = record_->enter(whole != nullptr ? *whole : call);
  try {
    WorkPtr work = begin();
    work->getFuture()->addCallback(
        [record = record_, ticket](c10::ivalue::Future&) { record->leave(ticket); });
    const auto type = work->retrieveOpType();
    return c10::make_intrusive<RecordedWork>(getRank(), type, std::move(work), record_, ticket,
                                             /*is_message=*/false);
  } catch (...) {
    record_->leave(ticket);
    throw;
  }
}

namespace {

using c10d::OpType;

// A list that Gloo refuses is its own to refuse.
record::Call call_on(OpType type, const GlooBackend::Tensors& tensors, std::int64_t root = -1,
                     const c10d::ReduceOp* reduction = nullptr) {
  return tensors.size() == 1 ? equal_call(type, tensors[0], root, reduction)
                             : call_of(type, nullptr);
}

}  // namespace

GlooBackend::WorkPtr GlooBackend::broadcast(Tensors& tensors,
                                            const c10d::BroadcastOptions& options) {
  return recorded(call_on(OpType::BROADCAST, tensors, options.rootRank),
                  [&] { return ProcessGroupGloo::broadcast(tensors, options); });
}

GlooBackend::WorkPtr GlooBackend::allreduce(Tensors& tensors,
                                            const c10d::AllreduceOptions& options) {
  const bool is_dense = tensors.size() == 1 && tensors[0].layout() == at::kStrided;
  return recorded(is_dense ? call_on(OpType::ALLREDUCE, tensors, -1, &options.reduceOp)
                           : call_of(OpType::ALLREDUCE, nullptr),
                  [&] { return ProcessGroupGloo::allreduce(tensors, options); });
}

GlooBackend::WorkPtr GlooBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return recorded(call_of(OpType::ALLREDUCE_COALESCED, nullptr),
                  [&] { return ProcessGroupGloo::allreduce_coalesced(tensors, options); });
}

GlooBackend::WorkPtr GlooBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return recorded(call_on(OpType::REDUCE, tensors, options.rootRank, &options.reduceOp),
                  [&] { return ProcessGroupGloo::reduce(tensors, options); });
}

GlooBackend::WorkPtr GlooBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& options) {
  return recorded(call_on(OpType::ALLGATHER, inputs),
                  [&] { return ProcessGroupGloo::allgather(outputs, inputs, options); });
}

GlooBackend::WorkPtr GlooBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& options) {
  return recorded(equal_call(OpType::_ALLGATHER_BASE, input),
                  [&] { return ProcessGroupGloo::_allgather_base(output, input, options); });
}

GlooBackend::WorkPtr GlooBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::GatherOptions& options) {
  return recorded(call_on(OpType::GATHER, inputs, options.rootRank),
                  [&] { return ProcessGroupGloo::gather(outputs, inputs, options); });
}

GlooBackend::WorkPtr GlooBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const c10d::ScatterOptions& options) {
  return recorded(call_on(OpType::SCATTER, outputs, options.rootRank),
                  [&] { return ProcessGroupGloo::scatter(outputs, inputs, options); });
}

GlooBackend::WorkPtr GlooBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                 const c10d::ReduceScatterOptions& options) {
  const auto call = call_of(OpType::REDUCE_SCATTER, outputs.empty() ? nullptr : outputs.data());
  whole = &call;
  const auto end = c10::make_scope_exit([] { whole = nullptr; });
  return ProcessGroupGloo::reduce_scatter(outputs, inputs, options);
}

GlooBackend::WorkPtr GlooBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& options) {
  const auto call = equal_call(OpType::_REDUCE_SCATTER_BASE, input, -1, &options.reduceOp);
  whole = &call;
  const auto end = c10::make_scope_exit([] { whole = nullptr; });
  return ProcessGroupGloo::_reduce_scatter_base(output, input, options);
}

GlooBackend::WorkPtr GlooBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<std::int64_t>& output_splits,
                                                std::vector<std::int64_t>& input_splits,
                                                const c10d::AllToAllOptions& options) {
  return recorded(call_of(OpType::ALLTOALL_BASE, &input), [&] {
    return ProcessGroupGloo::alltoall_base(output, input, output_splits, input_splits, options);
  });
}

GlooBackend::WorkPtr GlooBackend::barrier(const c10d::BarrierOptions& options) {
  return recorded(call_of(OpType::BARRIER, nullptr),
                  [&] { return ProcessGroupGloo::barrier(options); });
}

template <typename Begin>
GlooBackend::WorkPtr GlooBackend::message(OpType type, int peer, int tag, const Tensors& tensors,
                                          const Begin& begin) {
  if (!record_) return begin();
  const auto end = type == OpType::SEND ? GroupRecord::End::kSender : GroupRecord::End::kReceiver;
  const record::Ticket ticket = record_->enter_message(end, peer, tag, call_on(type, tensors));
  try {
    return c10::make_intrusive<RecordedWork>(getRank(), type, begin(), record_, ticket,
                                             /*is_message=*/true);
  } catch (...) {
    record_->leave(ticket);
    throw;
  }
}

GlooBackend::WorkPtr GlooBackend::send(Tensors& tensors, int to, int tag) {
  return message(OpType::SEND, to, tag, tensors,
                 [&] { return ProcessGroupGloo::send(tensors, to, tag); });
}

GlooBackend::WorkPtr GlooBackend::recv(Tensors& tensors, int from, int tag) {
  return message(OpType::RECV, from, tag, tensors,
                 [&] { return ProcessGroupGloo::recv(tensors, from, tag); });
}

bool is_of_connection(const std::exception& error) {
  return dynamic_cast<const c10::DistError*>(&error) != nullptr ||
         dynamic_cast<const gloo::Exception*>(&error) != nullptr;
}

torch::Tensor widened_for_gloo(const torch::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kInt16:
    case torch::kUInt16:
      return tensor.to(torch::kInt32);
    case torch::kUInt32:
      return tensor.to(torch::kInt64);
    default:
      return tensor;
  }
}

}  // namespace ddprun
