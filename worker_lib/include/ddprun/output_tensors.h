// Finding the tensors inside what a module's forward returns: tensors, and optionals, pairs, tuples,
// vectors, arrays and maps of them; anything else that is a number or text has none. For a type of
// your own write a function beside it, found by its namespace:
//
//   struct Prediction { torch::Tensor scores, boxes; };
//   void for_each_tensor(Prediction& value, const ddprun::TensorVisitor& visit) {
//     visit(value.scores);
//     visit(value.boxes);
//   }
//
// Pure; any thread. A visitor may put another tensor in place of the one that it is shown.
#pragma once

#include <torch/types.h>

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ddprun {

using TensorVisitor = std::function<void(torch::Tensor&)>;

inline void for_each_tensor(torch::Tensor& tensor, const TensorVisitor& visit) {
  if (tensor.defined()) visit(tensor);
}
inline void for_each_tensor(const std::string&, const TensorVisitor&) {}
template <typename T>
requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) void for_each_tensor(const T&,
                                                                            const TensorVisitor&) {}
// Declared before defined, since each may contain the others.
template <typename T>
void for_each_tensor(std::optional<T>& value, const TensorVisitor& visit);
template <typename T>
void for_each_tensor(std::vector<T>& values, const TensorVisitor& visit);
template <typename T, std::size_t size>
void for_each_tensor(std::array<T, size>& values, const TensorVisitor& visit);
template <typename K, typename V>
void for_each_tensor(std::map<K, V>& values, const TensorVisitor& visit);
template <typename K, typename V>
void for_each_tensor(std::unordered_map<K, V>& values, const TensorVisitor& visit);
template <typename A, typename B>
void for_each_tensor(std::pair<A, B>& values, const TensorVisitor& visit);
template <typename... Ts>
void for_each_tensor(std::tuple<Ts...>& values, const TensorVisitor& visit);

template <typename T>
void for_each_tensor(std::optional<T>& value, const TensorVisitor& visit) {
  if (value) for_each_tensor(*value, visit);
}
template <typename T>
void for_each_tensor(std::vector<T>& values, const TensorVisitor& visit) {
  for (auto& value : values) for_each_tensor(value, visit);
}
template <typename T, std::size_t size>
void for_each_tensor(std::array<T, size>& values, const TensorVisitor& visit) {
  for (auto& value : values) for_each_tensor(value, visit);
}
template <typename K, typename V>
void for_each_tensor(std::map<K, V>& values, const TensorVisitor& visit) {
  for (auto& entry : values) for_each_tensor(entry.second, visit);
}
template <typename K, typename V>
void for_each_tensor(std::unordered_map<K, V>& values, const TensorVisitor& visit) {
  for (auto& entry : values) for_each_tensor(entry.second, visit);
}
template <typename A, typename B>
void for_each_tensor(std::pair<A, B>& values, const TensorVisitor& visit) {
  for_each_tensor(values.first, visit);
  for_each_tensor(values.second, visit);
}
template <typename... Ts>
void for_each_tensor(std::tuple<Ts...>& values, const TensorVisitor& visit) {
  std::apply([&](auto&... value) { (for_each_tensor(value, visit), ...); }, values);
}

template <typename T>
concept HasVisibleTensors = requires(T& value, const TensorVisitor& visit) {
  for_each_tensor(value, visit);
};

}  // namespace ddprun
