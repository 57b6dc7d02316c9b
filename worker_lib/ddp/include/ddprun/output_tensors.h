// Finding the tensors inside what a module's forward returns, or inside a batch: tensors, and
// optionals, pairs, tuples, arrays, vectors, maps and torch::data::Examples of them; numbers and text
// have none. For a type of your own write a function beside it, found by its namespace, or the same
// as a member without the first argument:
//
//   struct Prediction { torch::Tensor scores, boxes; };
//   void for_each_tensor(Prediction& value, const ddprun::TensorVisitor& visit) {
//     visit(value.scores);
//     visit(value.boxes);
//   }
//
// Pure; any thread. A visitor may put another tensor in place of the one that it is shown.
#pragma once

#include <torch/data/example.h>
#include <torch/types.h>

#include <functional>
#include <ranges>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace ddprun {

using TensorVisitor = std::function<void(torch::Tensor&)>;

namespace detail {

template <typename T>
concept HasMember = requires(T& value, const TensorVisitor& visit) {
  value.for_each_tensor(visit);
};
template <typename T>
concept HasFunction = requires(T& value, const TensorVisitor& visit) {
  for_each_tensor(value, visit);
};
template <typename T>
concept HasNone = std::is_arithmetic_v<T> || std::is_enum_v<T> ||
    std::is_convertible_v<const T&, std::string_view>;
template <typename T>
concept IsTuple = requires {
  std::tuple_size<T>::value;
};  // pairs and arrays too
template <typename T>
concept IsOptional = requires(T& value) {
  value.has_value();
  *value;
};
template <typename T>  // a path is a range of paths
concept IsRange = std::ranges::range<T> && !std::is_same_v<std::ranges::range_value_t<T>, T>;

template <template <typename...> class Template, typename T>
inline constexpr bool kIs = false;
template <template <typename...> class Template, typename... Arguments>
inline constexpr bool kIs<Template, Template<Arguments...>> = true;

}  // namespace detail

// Shows the defined tensors in `value`. Parts of other kinds than those named above are passed over:
// std::false_type if its type has any.
template <typename T>
auto visit_tensors(T& value, const TensorVisitor& visit) {
  if constexpr (std::is_same_v<T, torch::Tensor>) {
    if (value.defined()) visit(value);
    return std::true_type();
  } else if constexpr (detail::HasMember<T>) {
    value.for_each_tensor(visit);
    return std::true_type();
  } else if constexpr (detail::HasFunction<T>) {
    for_each_tensor(value, visit);
    return std::true_type();
  } else if constexpr (detail::kIs<torch::data::Example, T>) {
    if constexpr (requires { value.target; }) {
      auto both = std::tie(value.data, value.target);
      return visit_tensors(both, visit);
    } else {
      return visit_tensors(value.data, visit);
    }
  } else if constexpr (detail::IsTuple<T>) {
    return std::apply(
        [&](auto&... part) {
          (visit_tensors(part, visit), ...);
          return std::bool_constant<(true && ... && decltype(visit_tensors(part, visit))::value)>();
        },
        value);
  } else if constexpr (detail::IsOptional<T>) {
    using Found = decltype(visit_tensors(*value, visit));
    if (value.has_value()) visit_tensors(*value, visit);
    return Found();
  } else if constexpr (detail::IsRange<T> && !detail::HasNone<T>) {
    for (auto&& part : value) visit_tensors(part, visit);
    return decltype(visit_tensors(std::declval<std::ranges::range_value_t<T>&>(), visit))();
  } else {
    return std::bool_constant<detail::HasNone<T>>();
  }
}

}  // namespace ddprun
