#include "worker_lib/checkpoint/rng_state.h"

#include <ATen/Context.h>

#include <mutex>
#include <utility>
#include <vector>

#include "worker_lib/process/split_mix.h"

namespace ddprun {
namespace {

constexpr const char* kCpu = "rng.cpu";
constexpr const char* kCuda = "rng.cuda";

std::vector<std::pair<std::string, at::Generator>> generators_of(const Context& context) {
  std::vector<std::pair<std::string, at::Generator>> generators;
  generators.emplace_back(kCpu, at::globalContext().defaultGenerator(torch::kCPU));
  if (context.device().is_cuda()) {
    generators.emplace_back(kCuda, at::globalContext().defaultGenerator(context.device()));
  }
  return generators;
}

// A Generator is a handle.
torch::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();  // bytes, on the CPU for every device
}

}  // namespace

NamedTensors gather_rng(Context& context) {
  NamedTensors gathered;
  for (const auto& [name, state] : generator_states(context)) {
    const auto rows = context.gather(state);
    if (context.is_main_process()) gathered.emplace(name, torch::stack(rows));
  }
  return gathered;
}

void restore_rng(const NamedTensors& saved, const Context& context, std::uint64_t seed_for_new) {
  for (auto [name, generator] : generators_of(context)) {
    const std::int64_t size = state_of(generator).numel();
    const auto rows = saved.find(name);
    const std::lock_guard lock(generator.mutex());
    if (rows != saved.end() && rows->second.dim() == 2 && rows->second.size(1) == size &&
        context.rank() < rows->second.size(0)) {
      generator.set_state(rows->second[context.rank()].clone());
    } else {
      generator.set_current_seed(seed_for_new);
    }
  }
}

NamedTensors generator_states(const Context& context) {
  NamedTensors states;
  for (const auto& [name, generator] : generators_of(context)) {
    states.emplace(name, state_of(generator));
  }
  return states;
}

void restore_generators(const NamedTensors& saved, const Context& context,
                        std::uint64_t seed_for_new) {
  NamedTensors rows;
  for (const auto& [name, state] : saved) {  // restore_rng() takes the row of this rank
    rows.emplace(name, state.expand({context.rank() + 1, state.numel()}));
  }
  restore_rng(rows, context, seed_for_new);
}

std::uint64_t seed_of_new_rank(std::uint64_t seed, std::int64_t step, int rank) {
  return split_mix(split_mix(seed + static_cast<std::uint64_t>(step)) +
                   static_cast<std::uint64_t>(rank));
}

}  // namespace ddprun
