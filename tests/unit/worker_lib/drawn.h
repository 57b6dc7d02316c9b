// Random tensors that do not come from the default generator, which ranks share as threads of a
// process. On the CPU: equal seeds give equal numbers everywhere.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include <cstdint>

namespace ddprun::test {

inline torch::Tensor drawn(at::IntArrayRef shape, std::uint64_t seed) {
  return torch::randn(shape, at::detail::createCPUGenerator(seed));
}

inline torch::Tensor drawn_classes(std::int64_t count, std::int64_t classes, std::uint64_t seed) {
  return torch::randint(classes, {count}, at::detail::createCPUGenerator(seed));
}

}  // namespace ddprun::test
