#include "worker_lib/checkpoint/tensor_arrays.h"

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "ddprun/error.h"
#include "worker_lib/process/crc32c.h"

namespace ddprun {
namespace {

constexpr std::pair<torch::ScalarType, const char*> kDtypes[] = {
    {torch::kFloat32, "F32"},
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
  for (const auto& [known, name] : kDtypes) {
    if (known == type) return name;
  }
  return nullptr;
}

// Where bytes can be copied as they lie.
bool is_plain(const torch::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

torch::ScalarType type_of(const safetensors::Place& place) {
  for (const auto& [known, name] : kDtypes) {
    if (place.dtype == name) return known;
  }
  throw UsageError("array '" + place.name + "' has the type " + place.dtype +
                   ", which Torch lacks");
}

}  // namespace

torch::Tensor tensor_of(const safetensors::Place& place, std::string_view data) {
  const auto type = torch::dtype(type_of(place));
  const char* const bytes = data.data() + place.begin;
  const auto address = reinterpret_cast<std::uintptr_t>(bytes);
  if (place.size > 0 && address % type.dtype().itemsize() == 0) {
    return torch::from_blob(const_cast<char*>(bytes), place.shape, type);
  }
  torch::Tensor tensor = torch::empty(place.shape, type);
  std::copy_n(bytes, place.size, static_cast<char*>(tensor.mutable_data_ptr()));
  return tensor;
}

std::vector<Described> described_by(const std::vector<safetensors::Place>& places) {
  std::vector<Described> arrays;
  arrays.reserve(places.size());
  for (const auto& place : places) arrays.push_back({place.name, type_of(place), place.shape});
  return arrays;
}

ArrayReceiver::ArrayReceiver(const std::vector<safetensors::Place>& places,
                             const std::vector<torch::Tensor>& tensors)
    : places_(places), tensors_(tensors) {}

std::pair<char*, std::size_t> ArrayReceiver::room_for(std::size_t size) {
  while (places_[array_].size == 0) ++array_;
  const safetensors::Place& place = places_[array_];
  if (!values_.defined()) {
    tensor_ = tensors_[array_];
    values_ = is_plain(tensor_)
                  ? tensor_
                  : torch::empty(tensor_.sizes(), torch::dtype(tensor_.scalar_type()));
    taken_ = 0;
  }
  return {static_cast<char*>(values_.mutable_data_ptr()) + taken_,
          std::min<std::uint64_t>(size, place.size - taken_)};
}

void ArrayReceiver::took(std::size_t size) {
  const safetensors::Place& place = places_[array_];
  taken_ += size;
  if (taken_ < place.size) return;
  if (!values_.is_same(tensor_)) {
    const torch::NoGradGuard no_grad;
    tensor_.copy_(values_);
  }
  values_.reset();
  ++array_;
}

void ArrayReceiver::take(std::string_view bytes) {
  take(bytes, [](char* to, const char* from, std::size_t size) { std::memcpy(to, from, size); });
}

void check_storable(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (name == "__metadata__") {
      throw UsageError("a tensor is called '__metadata__', which safetensors keeps for itself");
    }
    if (tensor.layout() != torch::kStrided) {
      throw UsageError("the tensor '" + name + "' is sparse, which safetensors has no form for");
    }
    if (dtype_name(tensor.scalar_type()) == nullptr) {
      throw UsageError("the tensor '" + name + "' is of " + c10::toString(tensor.scalar_type()) +
                       ", which safetensors has no name for");
    }
  }
}

ArrayLayout::ArrayLayout(const NamedTensors& tensors) {
  parts_.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) parts_.push_back({&name, &tensor});
  // Every array begins at a multiple of its element's size when the large elements come first.
  std::stable_sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) {
    return a.tensor->element_size() > b.tensor->element_size();
  });
  for (Part& part : parts_) {
    part.begin = size_;
    size_ += part.size();
  }
}

std::vector<safetensors::Place> ArrayLayout::places() const {
  std::vector<safetensors::Place> places;
  places.reserve(parts_.size());
  for (const Part& part : parts_) {
    places.push_back({*part.name, dtype_name(part.tensor->scalar_type()),
                      part.tensor->sizes().vec(), part.begin, part.size()});
  }
  return places;
}

std::uint64_t ArrayLayout::sum() const {
  std::string text;
  for (const Part& part : parts_) {
    text += *part.name;
    text.push_back('\0');
    text.push_back(static_cast<char>(part.tensor->scalar_type()));
    const auto sizes = part.tensor->sizes();
    text.push_back(static_cast<char>(sizes.size()));
    text.append(reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof sizes[0]);
  }
  return stream_sum(text);
}

torch::Tensor ArrayLayout::Part::plain() const {
  if (is_plain(*tensor)) return *tensor;
  const torch::NoGradGuard no_grad;
  return torch::empty(tensor->sizes(), torch::dtype(tensor->scalar_type())).copy_(*tensor);
}

void ArrayBuffer::copy(const NamedTensors& tensors) {
  const ArrayLayout layout(tensors);
  const auto& parts = layout.parts_;
  size_ = layout.size();

  if (memory_.size() < size_) {
    const auto on_gpu = std::find_if(parts.begin(), parts.end(),
                                     [](const auto& part) { return part.tensor->is_cuda(); });
    c10::OptionalDeviceGuard guard;
    if (on_gpu != parts.end()) guard.reset_device(on_gpu->tensor->device());
    memory_ = {};  // before the new one, not beside it
    memory_ = PageMemory(size_, on_gpu != parts.end());
  }
  char* const memory = memory_.data();

  const torch::NoGradGuard no_grad;
  places_ = layout.places();
  for (const auto& part : parts) {
    const torch::Tensor& tensor = *part.tensor;
    if (part.size() == 0 || is_plain(tensor)) continue;
    torch::from_blob(memory + part.begin, tensor.sizes(), torch::dtype(tensor.scalar_type()))
        .copy_(tensor);
  }
  constexpr std::int64_t kLeastForAThread = std::int64_t{4} << 20;
  at::parallel_for(0, static_cast<std::int64_t>(size_), kLeastForAThread,
                   [&](std::int64_t from, std::int64_t to) {
                     const auto first = static_cast<std::size_t>(from);
                     const auto last = static_cast<std::size_t>(to);
                     for (const auto& part : parts) {
                       const std::size_t begin = std::max(part.begin, first);
                       const std::size_t end = std::min(part.begin + part.size(), last);
                       if (begin >= end || !is_plain(*part.tensor)) continue;
                       const auto* source = static_cast<const char*>(part.tensor->const_data_ptr());
                       std::memcpy(memory + begin, source + (begin - part.begin), end - begin);
                     }
                   });
}

std::string_view ArrayBuffer::bytes() const {
  return size_ == 0 ? std::string_view() : std::string_view(memory_.data(), size_);
}

}  // namespace ddprun
