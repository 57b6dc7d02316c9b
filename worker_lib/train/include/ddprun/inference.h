// predict(): a model over a dataset on all ranks. Each sample is on exactly one rank (no padding:
// ranks may have different numbers of batches, or none), and the outputs come back in the dataset's
// order, as if one process had done it all. Collective, one thread of each rank.
//
//   torch::Tensor scores = ddprun::predict(context, *net, dataset, {.batch_size = 250});
//
// The mistake to avoid: a model whose forward is itself collective (SyncBatchNorm in training
// mode). DistributedDataParallel is seen through: its bare module is called.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddprun/context.h"
#include "ddprun/evaluation_mode.h"
#include "ddprun/loader.h"

namespace ddprun {

enum class Gather {
  kEverywhere,
  kMainProcess,  // the others get an undefined tensor
};

struct PredictOptions {
  std::int64_t batch_size = 64;  // samples per rank
  int threads = 2;               // that load, as LoaderOptions has it
  int prefetch = 2;
  Gather gather = Gather::kEverywhere;
};

namespace detail {

// Rank r of n has the rows r, r + n, … of `total`; they come together in order, on the CPU. `mine`
// is undefined on a rank that has none.
torch::Tensor gather_rows(Context& context, const torch::Tensor& mine, std::int64_t total,
                          Gather where);

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

template <typename Model, typename Input>
concept TakesByCall = requires(Model& model, Input& input) {
  { model(input) } -> std::convertible_to<torch::Tensor>;
};
template <typename Model, typename Input>
concept TakesByForward = requires(Model& model, Input& input) {
  { model.forward(input) } -> std::convertible_to<torch::Tensor>;
};
// The call of torch::nn::Sequential and its like has no result by its type.
template <typename Model, typename Input>
concept TakesByHeldForward = requires(Model& model, Input& input) {
  { model->forward(input) } -> std::convertible_to<torch::Tensor>;
};
template <typename Model, typename Batch>
concept TakesData = requires(Batch& batch) {
  requires TakesByCall<Model, decltype(batch.data)> ||
      TakesByForward<Model, decltype(batch.data)> ||
      TakesByHeldForward<Model, decltype(batch.data)>;
};

template <typename Model, typename Batch>
torch::Tensor output_of(Model& model, Batch& batch) {
  if constexpr (TakesData<Model, Batch>) {
    return output_of(model, batch.data);
  } else if constexpr (TakesByCall<Model, Batch>) {
    return model(batch);
  } else if constexpr (TakesByHeldForward<Model, Batch>) {
    return model->forward(batch);
  } else {
    return model.forward(batch);
  }
}

}  // namespace detail

// `model`: a module, what TORCH_MODULE makes, or a function. It is called without gradients and in
// evaluation mode with batch.data if it takes that, else with the whole batch, on
// context.device(); its output is a tensor [samples of the batch, ...], of one shape and type for
// all batches. `dataset`: as for Loader. Returns [size of the dataset, ...] on the CPU.
//
// Throws UsageError for an empty dataset and for an output of another number of rows.
template <typename Model, typename Dataset>
torch::Tensor predict(Context& context, Model&& model, Dataset dataset,
                      const PredictOptions& options = {}) {
  if constexpr (requires { *model.module(); }) {  // DistributedDataParallel
    return predict(context, *model.module(), std::move(dataset), options);
  } else {
    const std::int64_t total = detail::size_of(dataset);
    Loader loader(std::move(dataset),
                  DistributedSampler(total, context, {.shuffle = false, .pad = false}),
                  {.batch_size = options.batch_size,
                   .threads = options.threads,
                   .prefetch = options.prefetch,
                   .device = context.device()});
    const EvaluationMode evaluation(detail::module_of(model));
    std::vector<torch::Tensor> outputs;
    for (auto& batch : loader) {
      outputs.push_back(detail::output_of(model, batch).cpu());
      detail::check_rows(outputs.back(), loader.indices().size());
    }
    return detail::gather_rows(context, outputs.empty() ? torch::Tensor() : torch::cat(outputs),
                               total, options.gather);
  }
}

}  // namespace ddprun
