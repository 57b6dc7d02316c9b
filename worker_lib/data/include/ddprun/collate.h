// How samples become a batch: collate() stacks them as Python's default_collate does, and
// for_each_batch_tensor() finds the tensors of a batch, to pin and to move them. Pure functions; any
// thread.
//
//   Tensor                 stacked along a new first dimension; all of one shape
//   float, double, bool,   one tensor of that type, int64 for every kind of integer
//   integers
//   Example, pair, tuple   of the collated parts
//   anything else          std::vector of the samples
//
// Samples of different shapes (sentences) need a collate() of their dataset's own.
#pragma once

#include <torch/data/example.h>
#include <torch/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ddprun/output_tensors.h"

namespace ddprun {
namespace detail {

template <typename Part, typename Sample, typename Get>
auto collate_part(std::vector<Sample>& samples, Get get);

template <typename T>
struct Collate {
  static auto apply(std::vector<T> samples) {
    if constexpr (std::is_same_v<T, torch::Tensor>) {
      return torch::stack(samples);
    } else if constexpr (std::is_same_v<T, bool>) {
      return torch::tensor(std::vector<std::int64_t>(samples.begin(), samples.end()))
          .to(torch::kBool);
    } else if constexpr (std::is_integral_v<T>) {
      return torch::tensor(std::vector<std::int64_t>(samples.begin(), samples.end()));
    } else if constexpr (std::is_floating_point_v<T>) {
      return torch::tensor(samples);
    } else {
      return samples;
    }
  }
};

template <typename Data, typename Target>
struct Collate<torch::data::Example<Data, Target>> {
  using Sample = torch::data::Example<Data, Target>;
  static auto apply(std::vector<Sample> samples) {
    auto data = collate_part<Data>(samples, [](Sample& s) -> Data& { return s.data; });
    auto target = collate_part<Target>(samples, [](Sample& s) -> Target& { return s.target; });
    return torch::data::Example<decltype(data), decltype(target)>(std::move(data),
                                                                  std::move(target));
  }
};

template <typename Data>
struct Collate<torch::data::Example<Data, torch::data::example::NoTarget>> {
  using Sample = torch::data::Example<Data, torch::data::example::NoTarget>;
  static auto apply(std::vector<Sample> samples) {
    auto data = collate_part<Data>(samples, [](Sample& s) -> Data& { return s.data; });
    return torch::data::Example<decltype(data), torch::data::example::NoTarget>(std::move(data));
  }
};

template <typename First, typename Second>
struct Collate<std::pair<First, Second>> {
  using Sample = std::pair<First, Second>;
  static auto apply(std::vector<Sample> samples) {
    return std::pair(collate_part<First>(samples, [](Sample& s) -> First& { return s.first; }),
                     collate_part<Second>(samples, [](Sample& s) -> Second& { return s.second; }));
  }
};

template <typename... Parts>
struct Collate<std::tuple<Parts...>> {
  using Sample = std::tuple<Parts...>;
  static auto apply(std::vector<Sample> samples) {
    return apply(samples, std::index_sequence_for<Parts...>());
  }
  template <std::size_t... I>
  static auto apply(std::vector<Sample>& samples, std::index_sequence<I...>) {
    return std::tuple(
        collate_part<Parts>(samples, [](Sample& s) -> Parts& { return std::get<I>(s); })...);
  }
};

template <typename Part, typename Sample, typename Get>
auto collate_part(std::vector<Sample>& samples, Get get) {
  std::vector<Part> parts;
  parts.reserve(samples.size());
  for (Sample& sample : samples) parts.push_back(std::move(get(sample)));
  return Collate<Part>::apply(std::move(parts));
}

// A class for its partial specialisations: each is found whatever the order of declaration.
template <typename T>
struct Tensors {
  template <typename F>
  static void visit(T& value, F& f) {
    if constexpr (std::is_same_v<T, torch::Tensor>) {
      if (value.defined()) f(value);
    } else if constexpr (requires { value.for_each_tensor(f); }) {
      value.for_each_tensor(f);
    } else if constexpr (HasVisibleTensors<T>) {
      for_each_tensor(value, TensorVisitor(std::ref(f)));
    }
  }
};

template <typename Data, typename Target>
struct Tensors<torch::data::Example<Data, Target>> {
  template <typename F>
  static void visit(torch::data::Example<Data, Target>& example, F& f) {
    Tensors<Data>::visit(example.data, f);
    if constexpr (!std::is_void_v<Target>) Tensors<Target>::visit(example.target, f);
  }
};

template <typename First, typename Second>
struct Tensors<std::pair<First, Second>> {
  template <typename F>
  static void visit(std::pair<First, Second>& pair, F& f) {
    Tensors<First>::visit(pair.first, f);
    Tensors<Second>::visit(pair.second, f);
  }
};

template <typename... Parts>
struct Tensors<std::tuple<Parts...>> {
  template <typename F>
  static void visit(std::tuple<Parts...>& tuple, F& f) {
    std::apply([&f](auto&... part) { (Tensors<Parts>::visit(part, f), ...); }, tuple);
  }
};

template <typename T>
struct Tensors<std::vector<T>> {
  template <typename F>
  static void visit(std::vector<T>& values, F& f) {
    if constexpr (!std::is_same_v<T, bool>) {
      for (T& value : values) Tensors<T>::visit(value, f);
    }
  }
};

template <typename T, std::size_t size>
struct Tensors<std::array<T, size>> {
  template <typename F>
  static void visit(std::array<T, size>& values, F& f) {
    for (T& value : values) Tensors<T>::visit(value, f);
  }
};

template <typename Key, typename T>
struct Tensors<std::map<Key, T>> {
  template <typename F>
  static void visit(std::map<Key, T>& values, F& f) {
    for (auto& [key, value] : values) Tensors<T>::visit(value, f);
  }
};

template <typename Key, typename T>
struct Tensors<std::unordered_map<Key, T>> {
  template <typename F>
  static void visit(std::unordered_map<Key, T>& values, F& f) {
    for (auto& [key, value] : values) Tensors<T>::visit(value, f);
  }
};

template <typename T>
struct Tensors<std::optional<T>> {
  template <typename F>
  static void visit(std::optional<T>& value, F& f) {
    if (value) Tensors<T>::visit(*value, f);
  }
};

}  // namespace detail

template <typename Sample>
auto collate(std::vector<Sample> samples) {
  return detail::Collate<Sample>::apply(std::move(samples));
}

// Calls f(Tensor&) for each defined tensor in a tensor, Example, pair, tuple, vector, array, map,
// optional of such, or in a type of yours that shows its tensors (output_tensors.h). Others have none.
template <typename T, typename F>
void for_each_batch_tensor(T& value, F f) {
  detail::Tensors<T>::visit(value, f);
}

}  // namespace ddprun
