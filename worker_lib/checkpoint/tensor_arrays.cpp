#include "worker_lib/checkpoint/tensor_arrays.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "worker_lib/checkpoint/streaming_copy.h"

namespace ddprun {
namespace {

struct DtypeName {
  torch::ScalarType type;
  const char* name;
};
constexpr DtypeName kDtypes[] = {{torch::kFloat32, "F32"},
                                 {torch::kFloat64, "F64"},
                                 {torch::kFloat16, "F16"},
                                 {torch::kBFloat16, "BF16"},
                                 {torch::kInt64, "I64"},
                                 {torch::kInt32, "I32"},
                                 {torch::kInt16, "I16"},
                                 {torch::kInt8, "I8"},
                                 {torch::kUInt8, "U8"},
                                 {torch::kBool, "BOOL"},
                                 {torch::kUInt16, "U16"},
                                 {torch::kUInt32, "U32"},
                                 {torch::kUInt64, "U64"},
                                 {torch::kComplexFloat, "C64"},
                                 {torch::kFloat8_e4m3fn, "F8_E4M3"},
                                 {torch::kFloat8_e5m2, "F8_E5M2"},
                                 {torch::kFloat8_e4m3fnuz, "F8_E4M3FNUZ"},
                                 {torch::kFloat8_e5m2fnuz, "F8_E5M2FNUZ"}};

// Null: it has none.
const char* dtype_name(torch::ScalarType type) {
  for (const DtypeName& known : kDtypes) {
    if (known.type == type) return known.name;
  }
  return nullptr;
}

// Where bytes can be copied as they lie.
bool is_plain(const torch::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace

Result<torch::Tensor> tensor_of(const safetensors::Array& array) {
  for (const DtypeName& known : kDtypes) {
    if (array.dtype != known.name) continue;
    const auto type = torch::dtype(known.type);
    if (array.bytes.empty()) return torch::empty(array.shape, type);
    const auto address = reinterpret_cast<std::uintptr_t>(array.bytes.data());
    if (address % static_cast<std::size_t>(safetensors::element_size(array.dtype)) == 0) {
      return torch::from_blob(const_cast<char*>(array.bytes.data()), array.shape, type);
    }
    torch::Tensor tensor = torch::empty(array.shape, type);
    std::memcpy(tensor.mutable_data_ptr(), array.bytes.data(), array.bytes.size());
    return tensor;
  }
  return fail(ErrorCode::kInvalidArgument,
              "array '" + array.name + "' has the type " + array.dtype + ", which Torch lacks");
}

Result<NamedTensors> tensors_of(const std::vector<safetensors::Array>& arrays) {
  NamedTensors tensors;
  for (const safetensors::Array& array : arrays) {
    auto tensor = tensor_of(array);
    if (!tensor) return fail(std::move(tensor.error()));
    tensors.emplace(array.name, std::move(*tensor));
  }
  return tensors;
}

Result<void> check_storable(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (name == "__metadata__") {
      return fail(ErrorCode::kInvalidArgument,
                  "a tensor is called '__metadata__', which safetensors keeps for itself");
    }
    if (tensor.layout() != torch::kStrided) {
      return fail(ErrorCode::kInvalidArgument,
                  "the tensor '" + name + "' is sparse, which safetensors has no form for");
    }
    if (dtype_name(tensor.scalar_type()) == nullptr) {
      return fail(ErrorCode::kInvalidArgument, "the tensor '" + name + "' is of " +
                                                   c10::toString(tensor.scalar_type()) +
                                                   ", which safetensors has no name for");
    }
  }
  return {};
}

// A tensor and its place in the buffer.
struct ArrayBuffer::Part {
  const std::string* name;
  const torch::Tensor* tensor;
  std::size_t begin = 0;

  std::size_t size() const { return tensor->nbytes(); }
};

void ArrayBuffer::copy(const NamedTensors& tensors) {
  std::vector<Part> parts;
  for (const auto& [name, tensor] : tensors) parts.push_back({&name, &tensor});
  // Every array begins at a multiple of its element's size when the large elements come first.
  std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return a.tensor->element_size() > b.tensor->element_size();
  });
  size_ = 0;
  for (Part& part : parts) {
    part.begin = size_;
    size_ += part.size();
  }

  if (!memory_.defined() || static_cast<std::size_t>(memory_.numel()) < size_) {
    const bool has_cuda = std::any_of(parts.begin(), parts.end(),
                                      [](const Part& part) { return part.tensor->is_cuda(); });
    memory_.reset();  // before the new one, not beside it
    memory_ = torch::empty({static_cast<std::int64_t>(size_)},
                           torch::dtype(torch::kUInt8).pinned_memory(has_cuda));
  }
  char* const memory = static_cast<char*>(memory_.data_ptr());

  const torch::NoGradGuard no_grad;
  arrays_.clear();
  for (const Part& part : parts) {
    const torch::Tensor& tensor = *part.tensor;
    arrays_.push_back({*part.name,
                       dtype_name(tensor.scalar_type()),
                       tensor.sizes().vec(),
                       {memory + part.begin, part.size()}});
    if (part.size() == 0 || is_plain(tensor)) continue;
    torch::from_blob(memory + part.begin, tensor.sizes(), torch::dtype(tensor.scalar_type()))
        .copy_(tensor);
  }
  constexpr std::int64_t kLeastForAThread = std::int64_t{4} << 20;
  at::parallel_for(0, static_cast<std::int64_t>(size_), kLeastForAThread,
                   [&](std::int64_t from, std::int64_t to) {
                     const auto first = static_cast<std::size_t>(from);
                     const auto last = static_cast<std::size_t>(to);
                     for (const Part& part : parts) {
                       const std::size_t begin = std::max(part.begin, first);
                       const std::size_t end = std::min(part.begin + part.size(), last);
                       if (begin >= end || !is_plain(*part.tensor)) continue;
                       const auto* source = static_cast<const char*>(part.tensor->const_data_ptr());
                       streaming_copy(memory + begin, source + (begin - part.begin), end - begin);
                     }
                   });
}

std::string_view ArrayBuffer::bytes() const {
  return size_ == 0 ? std::string_view()
                    : std::string_view(static_cast<const char*>(memory_.const_data_ptr()), size_);
}

}  // namespace ddprun
