// Finding the tensors inside what a module's forward returns: tensors, and optionals, pairs, tuples,
// vectors, arrays and maps of them; anything else that is a number or text has none. For a type of
// your own write a function beside it, found by its namespace, or the same as a member without the
// first argument; both also show the tensors of a batch (collate.h):
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
#include <string_view>
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
inline void for_each_tensor(const std::string_view&, const TensorVisitor&) {}
inline void for_each_tensor(std::vector<bool>&, const TensorVisitor&) {}
template <typename T>
requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) void for_each_tensor(const T&,
                                                                            const TensorVisitor&) {}
template <typename T>
requires requires(T& value, const TensorVisitor& visit) { value.for_each_tensor(visit); }
void for_each_tensor(T& value, const TensorVisitor& visit) { value.for_each_tensor(visit); }
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

namespace detail {

template <typename T>
concept IsShown = requires(T& value, const TensorVisitor& visit) {
  for_each_tensor(value, visit);
};

// Of a container whose parts are not, too, a function above would be found, and not compile.
template <typename T>
struct ShowsTensors : std::bool_constant<IsShown<T>> {};
template <typename T>
struct ShowsTensors<std::optional<T>> : ShowsTensors<T> {};
template <typename T>
struct ShowsTensors<std::vector<T>> : ShowsTensors<T> {};
template <typename T, std::size_t size>
struct ShowsTensors<std::array<T, size>> : ShowsTensors<T> {};
template <typename K, typename V>
struct ShowsTensors<std::map<K, V>> : ShowsTensors<V> {};
template <typename K, typename V>
struct ShowsTensors<std::unordered_map<K, V>> : ShowsTensors<V> {};
template <typename A, typename B>
struct ShowsTensors<std::pair<A, B>> : std::conjunction<ShowsTensors<A>, ShowsTensors<B>> {};
template <typename... Ts>
struct ShowsTensors<std::tuple<Ts...>> : std::conjunction<ShowsTensors<Ts>...> {};

}  // namespace detail

// Every part of it is of a kind that the functions above, or one of yours, know.
template <typename T>
concept HasVisibleTensors = detail::ShowsTensors<T>::value;

}  // namespace ddprun
