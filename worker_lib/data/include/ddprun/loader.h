// Loader: the batches of a rank's pass over a dataset, loaded by threads beside the one that
// trains. Owned and used by one thread; lives within its dataset's and context's life.
//
//   ddprun::DistributedSampler sampler(dataset_size, context, {.seed = 1});
//   ddprun::Loader loader(dataset, sampler, {.batch_size = 64, .device = context.device()});
//   for (epoch ...) {
//     sampler.set_epoch(epoch);
//     for (auto& batch : loader) train(batch.data, batch.target);
//   }
//
// A dataset is anything with size() and one of these (the first that is there is used):
//   get(index, generator)  one sample. The at::Generator is seeded by the sampler's seed, the epoch
//                          and the index: draw augmentation from it, and the number of threads, of
//                          ranks and the size of a batch change nothing. (Never from the default
//                          generator: the training thread draws from that one.)
//   get_batch(indices)     a batch; indices convert from std::vector<std::size_t>
//   get(index)             one sample
// Samples become a batch by dataset.collate(std::vector<Sample>) if there is one, else as collate.h
// says; a std::vector that get_batch() returns is one of samples. All of torch::data's datasets that
// have an index are such, with Stack<> or without (not its chunks and streams).
//
// The order is the sampler's, whatever the threads do, and so is the position: it moves when a
// batch is handed out, not when it is loaded. sampler.consumed() inside the loop includes the batch
// in hand and nothing that was loaded ahead, which is what a checkpoint needs.
//
// Threads call the dataset at the same time. One whose get or get_batch is const is shared; of
// others each thread has a copy, as in torch::data; one that is given as a std::shared_ptr is
// shared in any case.
//
// What a dataset throws is thrown to the caller in its batch's turn, as a Failure (a UsageError if
// it was one) that names the sample and nests what was thrown; the position stays before its batch.
// A batch is valid until the next one is asked for. A `break` is fine: begin()
// always starts the pass of the epoch from where set_epoch() put it.
//
// After torch.utils.data.DataLoader and torch/data/dataloader.h, with threads where Python has
// processes.
#pragma once

#include <ATen/core/Generator.h>
#include <torch/types.h>

#include <cstdint>
#include <deque>
#include <future>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddprun/collate.h"
#include "ddprun/loader_threads.h"
#include "ddprun/sampler.h"

namespace ddprun {

struct LoaderOptions {
  // Exactly one of the two is given. A total is divided among the ranks; one that does not divide
  // is refused, since DistributedDataParallel gives every rank's gradient the same weight.
  std::int64_t batch_size = 0;        // samples per rank
  std::int64_t total_batch_size = 0;  // samples over all ranks
  int threads = 2;                    // that load; 0: the calling thread loads
  int prefetch = 2;                   // batches that are loaded ahead, per thread
  bool drop_last = false;             // a last batch that is shorter than the others is left out
  // Where batches are to be. For a GPU the threads put them into pinned memory, and the copy does
  // not block the calling thread. "cuda" without a number: the one that the Context chose.
  torch::Device device = torch::kCPU;
};

namespace detail {

using Indices = std::vector<std::size_t>;

// Its threads would take GPU 0 for "cuda": they are told the calling thread's.
LoaderOptions with_gpu_number(LoaderOptions options);
// A rank's batch size; throws UsageError for options that cannot be.
std::int64_t checked_batch_size(const LoaderOptions& options, const DistributedSampler& sampler);
void check_dataset_size(std::int64_t dataset_size, const DistributedSampler& sampler);
void check_same(const std::optional<Indices>& taken, const Indices& loaded);

// Call inside a handler: throws what is being handled again, with the samples' names.
[[noreturn]] void rethrow_naming(const std::size_t* first, std::size_t count);

// In a thread that loads: keeps Torch from starting a pool of threads for it, without changing the
// number that the training thread has.
void use_one_torch_thread();
void pin(torch::Tensor& tensor, torch::Device device);

at::Generator make_sample_generator();
void seed_for_sample(at::Generator& generator, std::uint64_t seed, std::int64_t epoch,
                     std::size_t index);

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};

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
  if constexpr (HasSeededGet<D>) {
    return false;
  } else if constexpr (HasGetBatch<D>) {
    // A vector of samples (torch::data's Dataset) is no batch yet; one by one, an error can name
    // its sample.
    using Given = decltype(std::declval<D&>().get_batch(std::declval<const Indices&>()));
    return !HasGet<D> || !IsVector<std::decay_t<Given>>::value;
  } else {
    return false;
  }
}

// Its get (or what is used of it) is const: several threads may call it.
template <typename D>
constexpr bool is_const_to_get() {
  if constexpr (HasSeededGet<D>) {
    return HasSeededGet<const D>;
  } else if constexpr (gives_whole_batches<D>()) {
    return HasGetBatch<const D>;
  } else {
    return HasGet<const D>;
  }
}

template <typename D, typename Sample>
auto collate_for(D& dataset, std::vector<Sample> samples) {
  if constexpr (requires { dataset.collate(std::move(samples)); }) {
    return dataset.collate(std::move(samples));
  } else {
    return collate(std::move(samples));
  }
}

template <typename D>
auto load_batch(D& dataset, const Indices& indices, std::uint64_t seed, std::int64_t epoch) {
  if constexpr (gives_whole_batches<D>()) {
    try {
      auto batch = dataset.get_batch(indices);
      if constexpr (IsVector<decltype(batch)>::value) {
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

}  // namespace detail

template <typename Dataset>
class Loader {
  static_assert(detail::HasSeededGet<Dataset> || detail::HasGetBatch<Dataset> ||
                    detail::HasGet<Dataset>,
                "a dataset has get(index), get(index, at::Generator&) or get_batch(indices)");

 public:
  using Batch = decltype(detail::load_batch(std::declval<Dataset&>(),
                                            std::declval<const detail::Indices&>(), 0, 0));

  // The sampler's position is shared with `sampler` (it is a handle). Throws UsageError for a batch
  // size that cannot be and for a dataset of another size than the sampler's.
  Loader(Dataset dataset, DistributedSampler sampler, const LoaderOptions& options)
      : Loader(std::make_shared<Dataset>(std::move(dataset)), std::move(sampler), options,
               /*is_shared=*/detail::is_const_to_get<Dataset>()) {}
  Loader(std::shared_ptr<Dataset> dataset, DistributedSampler sampler, const LoaderOptions& options)
      : Loader(std::move(dataset), std::move(sampler), options, /*is_shared=*/true) {}
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;

    reference operator*() const { return *batch_; }
    pointer operator->() const { return batch_; }
    Iterator& operator++() {
      batch_ = loader_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return batch_ == nullptr; }

   private:
    friend Loader;
    explicit Iterator(Loader* loader) : loader_(loader), batch_(loader->next()) {}
    Loader* loader_;
    Batch* batch_;
  };
  Iterator begin() {
    start();
    return Iterator(this);
  }
  std::default_sentinel_t end() const { return {}; }

  // The same without a range: start() and then next() until it gives nullptr.
  void start() {
    forget_what_was_loaded();
    sampler_.reset();
  }
  Batch* next() {
    batch_.reset();
    load_ahead();
    if (ahead_.empty()) return nullptr;
    try {
      batch_ = ahead_.front().batch.get();
    } catch (...) {
      forget_what_was_loaded();
      throw;
    }
    indices_ = std::move(ahead_.front().indices);
    ahead_.pop_front();
    detail::check_same(sampler_.next(indices_.size()), indices_);
    asked_ -= static_cast<std::int64_t>(indices_.size());
    load_ahead();
    if (options_.device != torch::kCPU) {
      for_each_batch_tensor(*batch_, [this](torch::Tensor& tensor) {
        tensor = tensor.to(options_.device, /*non_blocking=*/true);
      });
    }
    return &*batch_;
  }

  // Which samples the batch in hand is made of.
  const std::vector<std::size_t>& indices() const { return indices_; }
  std::int64_t batch_size() const { return batch_size_; }  // of this rank
  // That are still to come in this pass; all of them before it began.
  std::int64_t batches_left() const {
    const std::int64_t samples = sampler_.remaining();
    return (options_.drop_last ? samples : samples + batch_size_ - 1) / batch_size_;
  }
  const DistributedSampler& sampler() const { return sampler_; }

 private:
  struct Ahead {
    detail::Indices indices;
    std::future<Batch> batch;
  };

  Loader(std::shared_ptr<Dataset> dataset, DistributedSampler sampler, const LoaderOptions& options,
         bool is_shared)
      : sampler_(std::move(sampler)),
        options_(detail::with_gpu_number(options)),
        batch_size_(detail::checked_batch_size(options, sampler_)) {
    detail::check_dataset_size(detail::size_of(*dataset), sampler_);
    datasets_.push_back(std::move(dataset));
    for (int thread = 1; thread < options_.threads; ++thread) {
      if (is_shared) {
        datasets_.push_back(datasets_.front());
        continue;
      }
      if constexpr (std::is_copy_constructible_v<Dataset>) {
        datasets_.push_back(std::make_shared<Dataset>(*datasets_.front()));
      } else {
        throw UsageError(
            "several threads cannot load from a dataset that has no const get and no copies: use "
            "threads = 1, or give it as a std::shared_ptr if get may be called at the same time");
      }
    }
    if (options_.threads > 0) {
      threads_ = std::make_unique<LoaderThreads>(options_.threads, detail::use_one_torch_thread);
    }
  }

  void forget_what_was_loaded() {
    if (threads_) threads_->drop_waiting();
    ahead_.clear();
    asked_ = 0;
    batch_.reset();
    indices_.clear();
  }

  void load_ahead() {
    const std::size_t most = threads_ ? static_cast<std::size_t>(options_.threads) *
                                            static_cast<std::size_t>(options_.prefetch)
                                      : 1;
    while (ahead_.size() < most) {
      auto indices = sampler_.peek(asked_, static_cast<std::size_t>(batch_size_));
      const auto count = static_cast<std::int64_t>(indices.size());
      if (count == 0 || (options_.drop_last && count < batch_size_)) return;
      asked_ += count;
      ahead_.push_back({indices, load(std::move(indices))});
    }
  }

  std::future<Batch> load(detail::Indices indices) {
    const auto seed = sampler_.seed();
    const auto epoch = sampler_.epoch();
    if (!threads_) {
      return std::async(std::launch::deferred, [this, indices = std::move(indices), seed, epoch] {
        return detail::load_batch(*datasets_.front(), indices, seed, epoch);
      });
    }
    // Shared, because a std::function can be copied.
    auto task = std::make_shared<std::packaged_task<Batch(int)>>(
        [this, indices = std::move(indices), seed, epoch](int thread) {
          Batch batch = detail::load_batch(*datasets_[static_cast<std::size_t>(thread)], indices,
                                           seed, epoch);
          if (options_.device.is_cuda()) {
            for_each_batch_tensor(
                batch, [this](torch::Tensor& tensor) { detail::pin(tensor, options_.device); });
          }
          return batch;
        });
    auto batch = task->get_future();
    threads_->add([task](int thread) { (*task)(thread); });
    return batch;
  }

  DistributedSampler sampler_;
  LoaderOptions options_;
  std::int64_t batch_size_;
  std::vector<std::shared_ptr<Dataset>> datasets_;  // one per thread, perhaps the same
  std::int64_t asked_ = 0;                          // samples in ahead_
  std::deque<Ahead> ahead_;
  std::optional<Batch> batch_;  // in hand
  detail::Indices indices_;
  std::unique_ptr<LoaderThreads> threads_;  // last: they use the rest
};

}  // namespace ddprun
