#include "ddprun/data_loader.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <dlfcn.h>

#include <algorithm>
#include <exception>
#include <string>

#include "worker_lib/c10d/error_text.h"
#include "worker_lib/process/message_text.h"
#include "worker_lib/process/split_mix.h"

namespace ddprun::detail {

DataLoaderOptions with_gpu_number(DataLoaderOptions options) {
  if (options.device.is_cuda() && !options.device.has_index()) {
    options.device = torch::empty({0}, options.device).device();
  }
  return options;
}

std::int64_t checked_batch_size(const DataLoaderOptions& options,
                                const DistributedSampler& sampler) {
  if (options.num_workers < 0)
    throw UsageError("num_workers is negative: a loader has 0 threads or more");
  if (options.num_workers > 0 && options.prefetch_factor < 1) {
    throw UsageError("prefetch_factor is at least 1: a thread loads nothing otherwise");
  }
  if ((options.batch_size == 0) == (options.total_batch_size == 0) || options.batch_size < 0 ||
      options.total_batch_size < 0) {
    throw UsageError(
        "give a loader either batch_size (per rank) or total_batch_size (over all ranks), one "
        "number above 0");
  }
  if (options.batch_size > 0) return options.batch_size;
  const std::int64_t world = sampler.num_replicas();
  const std::int64_t lower = options.total_batch_size / world * world;
  if (lower != options.total_batch_size) {
    throw UsageError("a total batch of " + std::to_string(options.total_batch_size) +
                     " samples cannot be divided evenly among " + std::to_string(world) +
                     " ranks: use " + (lower > 0 ? std::to_string(lower) + " or " : "") +
                     std::to_string(lower + world) +
                     " (for a job that grows and shrinks, a multiple of all its sizes)");
  }
  return lower / world;
}

void check_dataset_size(std::int64_t dataset_size, const DistributedSampler& sampler) {
  if (dataset_size == sampler.dataset_size()) return;
  throw UsageError("the dataset has " + std::to_string(dataset_size) +
                   " samples, its sampler was made for " + std::to_string(sampler.dataset_size()));
}

void check_same(const std::optional<Indices>& taken, const Indices& loaded) {
  if (taken && *taken == loaded) return;
  throw UsageError(
      "the sampler was moved while its loader was in the middle of a pass: call set_epoch() before "
      "the loop, and next() only on a sampler that no loader has");
}

void rethrow_naming(const std::size_t* first, std::size_t count) {
  const std::string head = std::string("the dataset could not give ") +
                           (count == 1 ? "sample " : "a batch of the samples ") +
                           listed(std::vector(first, first + count)) + ": ";
  try {
    throw;
  } catch (const UsageError& error) {
    std::throw_with_nested(UsageError(head + error.what()));
  } catch (const Failure& error) {
    std::throw_with_nested(Failure(error.error().code, head + error.what()));
  } catch (...) {
    std::throw_with_nested(Failure(ErrorCode::kIo, head + error_text(std::current_exception())));
  }
}

void use_one_torch_thread() {
  // Torch gives a new thread the process' number of OpenMP threads the first time that it asks;
  // after that OpenMP's own setting, which is the calling thread's alone, stands.
  // at::set_num_threads would change the number of every later thread too. The library is the one
  // that LibTorch brings, so it is found rather than linked.
  at::get_num_threads();
  static const auto set =
      reinterpret_cast<void (*)(int)>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set != nullptr) set(1);
}

void pin(torch::Tensor& tensor, torch::Device device) {
  if (!tensor.is_cpu()) return;
  // Without it the pinned memory would belong to GPU 0, and start a context there.
  const c10::DeviceGuard guard(device);
  tensor = tensor.pin_memory();
}

at::Generator make_sample_generator() { return at::make_generator<at::CPUGeneratorImpl>(); }

void seed_for_sample(at::Generator& generator, std::uint64_t seed, std::int64_t epoch,
                     std::size_t index) {
  generator.set_current_seed(split_mix(
      split_mix(split_mix(seed) ^ static_cast<std::uint64_t>(epoch)) ^ std::uint64_t{index}));
}

}  // namespace ddprun::detail
