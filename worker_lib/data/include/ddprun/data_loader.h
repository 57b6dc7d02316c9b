// DataLoader: the batches of a rank's pass over a dataset, loaded by threads beside the one that
// trains. Owned and used by one thread; lives within its dataset's and context's life.
//
//   ddprun::DistributedSampler sampler(dataset_size, context, {.seed = 1});
//   ddprun::DataLoader loader(dataset, sampler, {.batch_size = 64, .device = context.device()});
//   for (epoch ...) {
//     sampler.set_epoch(epoch);
//     for (auto& batch : loader) train(batch.data, batch.target);
//   }
//
// A dataset is anything with size() and one of these (the first that is there is used):
//   get(index, generator)  one sample. The at::Generator is seeded by the sampler's seed, the epoch
//                          and the index: draw augmentation from it (never from the default
//                          generator, which is the training thread's), and the number of threads,
//                          of ranks and the size of a batch change nothing.
//   get_batch(indices)     a batch; indices convert from std::vector<std::size_t>
//   get(index)             one sample
// Samples become a batch by dataset.collate(std::vector<Sample>) if there is one, else by
// default_collate() (collate.h); a std::vector that get_batch() returns is one of samples. All of
// torch::data's datasets that have an index are such, with Stack<> or without.
//
// Threads call the dataset at the same time. One whose get or get_batch is const is shared; of
// others each thread has a copy, as in torch::data; a std::shared_ptr is shared in any case.
//
// The order is the sampler's, and so is the position: it moves when a batch is handed out, not when
// it is loaded. sampler.consumed() inside the loop includes the batch in hand and nothing that was
// loaded ahead, which is what a checkpoint needs.
//
// What a dataset throws is thrown to the caller in its batch's turn, as a Failure (a UsageError if
// it was one) that names the sample and nests what was thrown; the position stays before its batch.
// A batch is valid until the next one is asked for. begin() always starts the pass of the epoch from
// where set_epoch() put it, also after a `break`.
#pragma once

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

#include "ddprun/dataset_access.h"
#include "ddprun/loader_threads.h"
#include "ddprun/output_tensors.h"
#include "ddprun/sampler.h"

namespace ddprun {

struct DataLoaderOptions {
  // Exactly one of the two is given. A total is divided among the ranks; one that does not divide
  // is refused, since DistributedDataParallel gives every rank's gradient the same weight.
  std::int64_t batch_size = 0;        // samples per rank
  std::int64_t total_batch_size = 0;  // samples over all ranks
  int num_workers = 2;                // threads that load; 0: the calling thread does
  int prefetch_factor = 2;            // batches that are loaded ahead, per thread
  bool drop_last = false;             // a last batch that is shorter than the others is left out
  // Where batches are to be. For a GPU the threads put them into pinned memory, and the copy does
  // not block the calling thread. "cuda" without a number: the one that the Context chose.
  torch::Device device = torch::kCPU;
};

namespace detail {

// Its threads would take GPU 0 for "cuda": they are told the calling thread's.
DataLoaderOptions with_gpu_number(DataLoaderOptions options);
// A rank's batch size; throws UsageError for options that cannot be.
std::int64_t checked_batch_size(const DataLoaderOptions& options,
                                const DistributedSampler& sampler);
void check_dataset_size(std::int64_t dataset_size, const DistributedSampler& sampler);
void check_same(const std::optional<Indices>& taken, const Indices& loaded);

// In a thread that loads: keeps Torch from starting a pool of threads for it, without changing the
// number that the training thread has.
void use_one_torch_thread();
void pin(torch::Tensor& tensor, torch::Device device);

}  // namespace detail

template <typename Dataset>
class DataLoader {
  static_assert(detail::HasSeededGet<Dataset> || detail::HasGetBatch<Dataset> ||
                    detail::HasGet<Dataset>,
                "a dataset has get(index), get(index, at::Generator&) or get_batch(indices)");

 public:
  using Batch = decltype(detail::load_batch(std::declval<Dataset&>(),
                                            std::declval<const detail::Indices&>(), 0, 0));

  // The sampler's position is shared with `sampler` (it is a handle). Throws UsageError for a batch
  // size that cannot be and for a dataset of another size than the sampler's.
  DataLoader(Dataset dataset, DistributedSampler sampler, const DataLoaderOptions& options)
      : DataLoader(std::make_shared<Dataset>(std::move(dataset)), std::move(sampler), options,
                   /*is_shared=*/detail::is_const_to_get<Dataset>()) {}
  DataLoader(std::shared_ptr<Dataset> dataset, DistributedSampler sampler,
             const DataLoaderOptions& options)
      : DataLoader(std::move(dataset), std::move(sampler), options, /*is_shared=*/true) {}
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  class Iterator {
   public:
    using iterator_concept = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;

    Batch& operator*() const { return *batch_; }
    Iterator& operator++() {
      batch_ = loader_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return batch_ == nullptr; }

   private:
    friend DataLoader;
    explicit Iterator(DataLoader* loader) : loader_(loader), batch_(loader->next()) {}
    DataLoader* loader_;
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
      visit_tensors(*batch_, [this](torch::Tensor& tensor) {
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

  DataLoader(std::shared_ptr<Dataset> dataset, DistributedSampler sampler,
             const DataLoaderOptions& options, bool is_shared)
      : sampler_(std::move(sampler)),
        options_(detail::with_gpu_number(options)),
        batch_size_(detail::checked_batch_size(options, sampler_)) {
    detail::check_dataset_size(detail::size_of(*dataset), sampler_);
    datasets_.push_back(std::move(dataset));
    for (int thread = 1; thread < options_.num_workers; ++thread) {
      if (is_shared) {
        datasets_.push_back(datasets_.front());
        continue;
      }
      if constexpr (std::is_copy_constructible_v<Dataset>) {
        datasets_.push_back(std::make_shared<Dataset>(*datasets_.front()));
      } else {
        throw UsageError(
            "several threads cannot load from a dataset that has no const get and no copies: use "
            "num_workers = 1, or give it as a std::shared_ptr if get may be called at the same "
            "time");
      }
    }
    if (options_.num_workers > 0) {
      threads_ =
          std::make_unique<LoaderThreads>(options_.num_workers, detail::use_one_torch_thread);
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
    const std::size_t most = threads_ ? static_cast<std::size_t>(options_.num_workers) *
                                            static_cast<std::size_t>(options_.prefetch_factor)
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
    auto loading = [this, indices = std::move(indices), seed = sampler_.seed(),
                    epoch = sampler_.epoch(),
                    pins = threads_ && options_.device.is_cuda()](int thread) {
      auto batch =
          detail::load_batch(*datasets_[static_cast<std::size_t>(thread)], indices, seed, epoch);
      if (pins) {
        visit_tensors(batch,
                      [this](torch::Tensor& tensor) { detail::pin(tensor, options_.device); });
      }
      return batch;
    };
    if (!threads_) return std::async(std::launch::deferred, std::move(loading), 0);
    // Shared, because a std::function can be copied.
    auto task = std::make_shared<std::packaged_task<Batch(int)>>(std::move(loading));
    auto batch = task->get_future();
    threads_->add([task](int thread) { (*task)(thread); });
    return batch;
  }

  DistributedSampler sampler_;
  DataLoaderOptions options_;
  std::int64_t batch_size_;
  std::vector<std::shared_ptr<Dataset>> datasets_;  // one per thread, perhaps the same
  std::int64_t asked_ = 0;                          // samples in ahead_
  std::deque<Ahead> ahead_;
  std::optional<Batch> batch_;  // in hand
  detail::Indices indices_;
  std::unique_ptr<LoaderThreads> threads_;  // last: they use the rest
};

}  // namespace ddprun
