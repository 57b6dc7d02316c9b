// predict(): a model over a dataset on all ranks. Each sample is on exactly one rank (no padding:
// ranks may have different numbers of batches, or none), and the outputs come back in the dataset's
// order, as if one process had done it all. Collective, one thread of each rank.
//
//   torch::Tensor scores = ddprun::predict(context, *net, dataset, {.batch_size = 250});
//
// The model's forward must not be collective. Of a DistributedDataParallel the bare module is called.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddprun/context.h"
#include "ddprun/data_loader.h"
#include "ddprun/evaluation_mode.h"

namespace ddprun {

struct PredictOptions {
  std::int64_t batch_size = 64;  // samples per rank
  int num_workers = 2;           // threads that load, as DataLoaderOptions has it
  int prefetch_factor = 2;
  bool all_gather =
      true;  // else only the main process gets the outputs, the others an undefined tensor
};

namespace detail {

// Rank r of n has the rows r, r + n, … of `total`; they come together in order, on the CPU. `mine`
// is undefined on a rank that has none.
torch::Tensor gather_rows(Context& context, const torch::Tensor& mine, std::int64_t total,
                          bool is_for_all);

void check_rows(const torch::Tensor& output, std::size_t samples);

template <typename Model>
torch::nn::Module* module_of(Model& model) {
  if constexpr (std::is_base_of_v<torch::nn::Module, Model>) {
    return &model;
  } else if constexpr (requires { std::shared_ptr<torch::nn::Module>(model.ptr()); }) {
    return model.ptr().get();  // what TORCH_MODULE makes
  } else {
    return nullptr;  // a function
  }
}

// What the model, called by one of the three ways, gives for `input`; void where none fits. (The call
// of torch::nn::Sequential and its like has no result by its type, its forward has.)
template <typename Model, typename Input>
auto output_for(Model& model, Input& input) {
  if constexpr (requires { torch::Tensor(model(input)); }) {
    return torch::Tensor(model(input));
  } else if constexpr (requires { torch::Tensor(model->forward(input)); }) {
    return torch::Tensor(model->forward(input));
  } else if constexpr (requires { torch::Tensor(model.forward(input)); }) {
    return torch::Tensor(model.forward(input));
  }
}

template <typename Model, typename Batch>
torch::Tensor output_of(Model& model, Batch& batch) {
  if constexpr (requires { torch::Tensor(output_for(model, batch.data)); }) {
    return output_for(model, batch.data);
  } else {
    return output_for(model, batch);
  }
}

}  // namespace detail

// `model`: a module, what TORCH_MODULE makes, or a function. It is called without gradients and in
// evaluation mode with batch.data if it takes that, else with the whole batch, on
// context.device(); its output is a tensor [samples of the batch, ...], of one shape and type for
// all batches. `dataset`: as for DataLoader. Returns [size of the dataset, ...] on the CPU.
//
// Throws UsageError for an empty dataset and for an output of another number of rows.
template <typename Model, typename Dataset>
torch::Tensor predict(Context& context, Model&& model, Dataset dataset,
                      const PredictOptions& options = {}) {
  if constexpr (requires { *model.module(); }) {  // DistributedDataParallel
    return predict(context, *model.module(), std::move(dataset), options);
  } else {
    const std::int64_t total = detail::size_of(dataset);
    DataLoader loader(
        std::move(dataset),
        DistributedSampler(total, context, {.shuffle = false, .allow_duplicates = false}),
        {.batch_size = options.batch_size,
         .num_workers = options.num_workers,
         .prefetch_factor = options.prefetch_factor,
         .device = context.device()});
    const EvaluationMode evaluation(detail::module_of(model));
    std::vector<torch::Tensor> outputs;
    for (auto& batch : loader) {
      outputs.push_back(detail::output_of(model, batch).cpu());
      detail::check_rows(outputs.back(), loader.indices().size());
    }
    return detail::gather_rows(context, outputs.empty() ? torch::Tensor() : torch::cat(outputs),
                               total, options.all_gather);
  }
}

}  // namespace ddprun
