// Torch's tensors as the arrays of a safetensors file, and back. Blocking; one thread.
#pragma once

#include <torch/types.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/result.h"
#include "worker_lib/checkpoint/safetensors.h"

namespace ddprun {

using NamedTensors = std::map<std::string, torch::Tensor>;

// On the CPU, and in the array's own memory where its place there allows it: for as long as that
// lives, and only to be read. Error: a type that Torch does not have.
Result<torch::Tensor> tensor_of(const safetensors::Array& array);
Result<NamedTensors> tensors_of(const std::vector<safetensors::Array>& arrays);

// Error: a tensor that safetensors has no form for.
Result<void> check_storable(const NamedTensors& tensors);

// A copy of tensors, laid out as the data of a file. The memory is kept from one copy to the next,
// which makes the second one as fast as a memcpy: fresh pages cost more than the copying.
class ArrayBuffer {
 public:
  // Of storable tensors, from whichever device they are on, with as many threads as Torch has.
  void copy(const NamedTensors& tensors);

  // Of the last copy.
  const std::vector<safetensors::Array>& arrays() const { return arrays_; }
  std::string_view bytes() const;

 private:
  struct Part;

  torch::Tensor memory_;  // bytes; may be larger than what is used
  std::size_t size_ = 0;
  std::vector<safetensors::Array> arrays_;
};

}  // namespace ddprun
