// default_collate(): samples become a batch as Python's torch.utils.data.default_collate makes one.
// Pure; any thread.
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

#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddprun/output_tensors.h"

namespace ddprun {

template <typename T>
auto default_collate(std::vector<T> samples) {
  using detail::kIs;
  // One part of all samples, collated.
  [[maybe_unused]] const auto part = [&samples](auto get) {
    std::vector<std::remove_cvref_t<decltype(get(samples.front()))>> parts;
    parts.reserve(samples.size());
    for (T& sample : samples) parts.push_back(std::move(get(sample)));
    return default_collate(std::move(parts));
  };
  if constexpr (std::is_same_v<T, torch::Tensor>) {
    return torch::stack(samples);
  } else if constexpr (std::is_integral_v<T>) {
    const auto type = std::is_same_v<T, bool> ? torch::kBool : torch::kInt64;
    return torch::tensor(std::vector<std::int64_t>(samples.begin(), samples.end())).to(type);
  } else if constexpr (std::is_floating_point_v<T>) {
    return torch::tensor(samples);
  } else if constexpr (kIs<torch::data::Example, T>) {
    auto data = part([](T & sample) -> auto& { return sample.data; });
    if constexpr (requires(T & sample) { sample.target; }) {
      auto target = part([](T & sample) -> auto& { return sample.target; });
      return torch::data::Example<decltype(data), decltype(target)>(std::move(data),
                                                                    std::move(target));
    } else {
      return torch::data::Example<decltype(data), torch::data::example::NoTarget>(std::move(data));
    }
  } else if constexpr (kIs<std::pair, T>) {
    return std::pair(part([](T & sample) -> auto& { return sample.first; }),
                     part([](T & sample) -> auto& { return sample.second; }));
  } else if constexpr (kIs<std::tuple, T>) {
    return [&part]<std::size_t... i>(std::index_sequence<i...>) {
      return std::tuple(part([](T & sample) -> auto& { return std::get<i>(sample); })...);
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    return samples;
  }
}

}  // namespace ddprun
