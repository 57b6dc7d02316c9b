#include "ddprun/collectives.h"
#include "worker_lib/group/call_tensors.h"
#include "worker_lib/group/membership.h"
#include "worker_lib/group/recovery.h"

namespace ddprun {
namespace {

using namespace detail;
using Tensor = torch::Tensor;
using Tensors = std::vector<torch::Tensor>;

// A rank that takes another's place would send it again.
void refuse_recovery_between_steps(const Membership& membership) {
  if (membership.recovery && membership.recovery->is_between_steps()) {
    membership.recovery->refuse("the program sends messages between its steps");
  }
}

// Whether the memory must be the CPU's: Gloo hands a message to a socket as it is.
bool goes_through_cpu(const Membership& membership, const Tensor& tensor) {
  return !tensor.is_cpu() && is_gloo(membership, tensor);
}

// Of a message: over Gloo its own limit is the one that the group was connected within.
std::chrono::milliseconds limit_of_message(const Membership& membership, const Tensor& tensor) {
  return is_gloo(membership, tensor) ? membership.maker->timeout() : kNoTimeout;
}

// Where a message for `into` comes in, and what is left to do then.
struct Arrival {
  Arrival(const Membership& membership, const Tensor& into) : buffer(into) {
    if (!goes_through_cpu(membership, into)) return;
    buffer = torch::empty_like(into, torch::kCPU);
    finish = [into, buffer = buffer] { into.copy_(buffer); };
  }
  Tensor buffer;
  std::function<void()> finish;
};

}  // namespace

Work<> Group::send_async(const Tensor& tensor, int dst, int tag) {
  check_rank("send", dst);
  refuse_recovery_between_steps(*membership_);
  if (dst == rank()) refuse("send", "a rank cannot send to itself");
  Tensor own = dense("send", tensor);
  if (own.numel() == 0) return Work<>(Operation());
  if (goes_through_cpu(*membership_, own)) own = own.cpu();
  Tensors moved{as_bytes(own)};
  const auto limit = limit_of_message(*membership_, own);
  return Operation(
      membership_, "send", {own}, [&] { return membership_->group->send(moved, dst, tag); },
      nullptr, limit);
}

Work<> Group::recv_async(Tensor into, int src, int tag) {
  check_rank("recv", src);
  refuse_recovery_between_steps(*membership_);
  if (src == rank()) refuse("recv", "a rank cannot receive from itself");
  into = in_place("recv", into);
  if (into.numel() == 0) return Work<>(Operation());
  const Arrival arrival(*membership_, into);
  Tensors moved{as_bytes(arrival.buffer)};
  const auto limit = limit_of_message(*membership_, into);
  return Operation(
      membership_, "recv", {into}, [&] { return membership_->group->recv(moved, src, tag); },
      arrival.finish, limit);
}

int Group::recv_from_any(Tensor into, int tag) {
  refuse_recovery_between_steps(*membership_);
  into = in_place("recv_from_any", into);
  if (into.numel() == 0) refuse("recv_from_any", "an empty tensor receives nothing");
  const Arrival arrival(*membership_, into);
  Tensors moved{as_bytes(arrival.buffer)};
  c10::intrusive_ptr<c10d::Work> work;
  Operation(
      membership_, "recv_from_any", {into},
      [&] { return work = membership_->group->recvAnysource(moved, tag); }, arrival.finish,
      limit_of_message(*membership_, into))
      .wait();
  return work->sourceRank();
}

}  // namespace ddprun
