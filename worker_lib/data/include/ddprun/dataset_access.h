// How DataLoader (data_loader.h) reads a dataset: which of its functions it calls, and what they give.
// Any thread that may call the dataset.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddprun/collate.h"
#include "ddprun/error.h"
#include "ddprun/output_tensors.h"

namespace ddprun::detail {

using Indices = std::vector<std::size_t>;

// Call inside a handler: throws what is being handled again, with the samples' names.
[[noreturn]] void rethrow_naming(const std::size_t* first, std::size_t count);

at::Generator make_sample_generator();
void seed_for_sample(at::Generator& generator, std::uint64_t seed, std::int64_t epoch,
                     std::size_t index);

template <typename D>
concept HasSeededGet = requires(D d, std::size_t i, at::Generator g) {
  d.get(i, g);
};
template <typename D>
concept HasGet = requires(D d, std::size_t i) {
  d.get(i);
};
template <typename D>
concept HasGetBatch = requires(D d, const Indices indices) {
  d.get_batch(indices);
};

template <typename D>
constexpr bool gives_whole_batches() {
  if constexpr (!HasSeededGet<D> && HasGetBatch<D>) {
    // A vector of samples (torch::data's Dataset) is no batch yet; one by one, an error can name
    // its sample.
    using Given = decltype(std::declval<D&>().get_batch(std::declval<const Indices&>()));
    return !HasGet<D> || !kIs<std::vector, std::decay_t<Given>>;
  } else {
    return false;
  }
}

// Its get (or what is used of it) is const: several threads may call it.
template <typename D>
constexpr bool is_const_to_get() {
  return HasSeededGet<D>            ? HasSeededGet<const D>
         : gives_whole_batches<D>() ? HasGetBatch<const D>
                                    : HasGet<const D>;
}

template <typename D, typename Sample>
auto collate_for(D& dataset, std::vector<Sample> samples) {
  if constexpr (requires { dataset.collate(std::move(samples)); }) {
    return dataset.collate(std::move(samples));
  } else {
    return default_collate(std::move(samples));
  }
}

template <typename D>
auto load_batch(D& dataset, const Indices& indices, std::uint64_t seed, std::int64_t epoch) {
  if constexpr (gives_whole_batches<D>()) {
    try {
      auto batch = dataset.get_batch(indices);
      if constexpr (kIs<std::vector, decltype(batch)>) {
        return collate_for(dataset, std::move(batch));
      } else {
        return batch;
      }
    } catch (...) {
      rethrow_naming(indices.data(), indices.size());
    }
  } else {
    auto generator = HasSeededGet<D> ? make_sample_generator() : at::Generator();
    const auto get = [&](const std::size_t& index) {
      try {
        if constexpr (HasSeededGet<D>) {
          seed_for_sample(generator, seed, epoch, index);
          return dataset.get(index, generator);
        } else {
          return dataset.get(index);
        }
      } catch (...) {
        rethrow_naming(&index, 1);
      }
    };
    std::vector<std::decay_t<decltype(get(0))>> samples;
    samples.reserve(indices.size());
    for (const std::size_t& index : indices) samples.push_back(get(index));
    try {
      return collate_for(dataset, std::move(samples));
    } catch (...) {
      rethrow_naming(indices.data(), indices.size());
    }
  }
}

template <typename D>
std::int64_t size_of(const D& dataset) {
  if constexpr (requires { *dataset.size(); }) {  // std::optional, as torch::data says it
    const auto size = dataset.size();
    if (!size) throw UsageError("the dataset does not know its size: a sampler cannot divide it");
    return static_cast<std::int64_t>(*size);
  } else {
    return static_cast<std::int64_t>(dataset.size());
  }
}
template <typename D>
std::int64_t size_of(const std::shared_ptr<D>& dataset) {
  return size_of(*dataset);
}

}  // namespace ddprun::detail
