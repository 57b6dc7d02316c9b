#include "worker_lib/group/call_tensors.h"

#include "worker_lib/c10d/shm_work.h"

namespace ddprun {
namespace detail {

void check_is_dense(const char* name, const torch::Tensor& tensor) {
  if (!tensor.defined()) refuse(name, "the tensor is not defined");
  if (tensor.layout() == torch::kStrided) return;
  refuse(name,
         "the tensor is sparse, which all_reduce alone takes (with coordinates); give its "
         "to_dense()");
}

torch::Tensor in_place(const char* name, const torch::Tensor& tensor) {
  check_is_dense(name, tensor);
  if (!tensor.is_non_overlapping_and_dense()) {
    refuse(name, "a tensor of sizes ", tensor.sizes(), " and strides ", tensor.strides(),
           " cannot be written in place; give its contiguous() copy and use that");
  }
  if (tensor.is_conj() || tensor.is_neg()) {
    refuse(name, "a conjugated view cannot be written in place; give its resolve_conj() copy");
  }
  return tensor.detach();
}

torch::Tensor dense(const char* name, const torch::Tensor& tensor) {
  check_is_dense(name, tensor);
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

torch::Tensor flat(const torch::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

torch::Tensor as_bytes(const torch::Tensor& tensor, at::IntArrayRef shape) {
  const torch::Tensor bytes = flat(tensor).view(torch::kUInt8);
  return shape.empty() ? bytes : bytes.view(shape);
}

bool is_gloo(const Membership& membership, const torch::Tensor& tensor) {
  return membership.group->getBackend(tensor.device().type())->getBackendName().starts_with("gloo");
}

}  // namespace detail

std::string Group::Call::to_string(const detail::Membership& membership,
                                   const Tensors& tensors) const {
  std::ostringstream text;
  text << name;
  if (op) {
    text << " " << (*op == ReduceOp::PREMUL_SUM ? "a scaled sum" : shm::name_of(shm_op_of(*op)));
  }
  if (!tensors.empty()) {
    text << " of " << tensors[0].scalar_type();
    const auto sizes = tensors[0].sizes();
    text << (has_equal_rows ? sizes : sizes.slice(1));
  }
  if (root >= 0) {
    text << " with the root " << membership.global_ranks[static_cast<std::size_t>(root)];
  }
  return text.str();
}

}  // namespace ddprun
