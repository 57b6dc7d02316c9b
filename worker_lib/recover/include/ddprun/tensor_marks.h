// Whether a value's tensors were written into. LibTorch lets a const Tensor be written into, but counts the writes. Found are
// tensors in containers, tuples, optionals, batches of a loader, modules, structs that name their fields (serialize.h) and
// plain structs (aggregates without a base class); not those behind other pointers and in classes with private members. A
// write past LibTorch (data_ptr()) is not counted.
#pragma once

#include <torch/types.h>

#include <boost/pfr/core.hpp>
#include <concepts>
#include <cstdint>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <vector>

#include "ddprun/serialize.h"

namespace ddprun::detail {

// Changes when the tensor is written into, and differs between tensors. Not of those that were made under InferenceMode,
// whose writes are not counted.
struct TensorMark {
  explicit TensorMark(const torch::Tensor& tensor)
      : place(tensor.unsafeGetTensorImpl()),
        memory(tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr),
        version(tensor.defined() && !tensor.is_inference() ? tensor._version() : 0) {}
  bool operator==(const TensorMark&) const = default;

  const void* place;
  const void* memory;
  std::int64_t version;
};
using TensorMarks = std::vector<TensorMark>;

template <typename Value>
concept HoldsModule = requires(const Value& value) {
  static_cast<bool>(value);
  value->parameters();
  value->buffers();
};
template <typename Value>
concept Optional = requires(const Value& value) {
  value.has_value();
  *value;
};
template <typename Value>
concept TupleLike = requires {
  std::tuple_size<Value>::value;
};
template <typename Value>
concept RangeOfOthers = std::ranges::range<const Value> &&
                        !std::same_as<std::ranges::range_value_t<const Value>, Value> &&
                        !std::is_trivially_copyable_v<std::ranges::range_value_t<const Value>>;
template <typename Value>
concept HasData = requires(const Value& value) {
  value.data;
};  // torch::data::Example

template <typename Value>
void append_marks(TensorMarks& marks, const Value& value) {
  const auto append = [&marks](const auto&... fields) { (append_marks(marks, fields), ...); };
  if constexpr (std::is_base_of_v<at::TensorBase, Value>) {
    marks.emplace_back(value);
  } else if constexpr (std::is_trivially_copyable_v<Value>) {
    return;
  } else if constexpr (HoldsModule<Value>) {
    if (static_cast<bool>(value)) append(value->parameters(), value->buffers());
  } else if constexpr (HasFields<Value>) {
    const_cast<Value&>(value).fields(append);  // which are only read
  } else if constexpr (Optional<Value>) {
    if (value.has_value()) append(*value);
  } else if constexpr (TupleLike<Value>) {
    std::apply(append, value);
  } else if constexpr (RangeOfOthers<Value>) {
    for (const auto& each : value) append(each);
  } else if constexpr (std::is_aggregate_v<Value>) {
    boost::pfr::for_each_field(value, append);
  } else if constexpr (HasData<Value>) {
    append(value.data);
    if constexpr (requires { value.target; }) append(value.target);
  }
}

template <typename Value>
TensorMarks marks_of(const Value& value) {
  TensorMarks marks;
  append_marks(marks, value);
  return marks;
}

}  // namespace ddprun::detail
