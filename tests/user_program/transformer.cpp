// transformer_single.cpp made distributed: its ranks are replaced in place when they die, and its last state is a
// checkpoint.
//
//   ddprun --nproc-per-node=2 --standby=auto transformer FOLDER
#include <torch/nn.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "ddprun/checkpoint.h"
#include "ddprun/ddp.h"
#include "ddprun/recoverable.h"
#include "ddprun/run.h"
#include "ddprun/sampler.h"

namespace {

using torch::Tensor;
namespace F = torch::nn::functional;

constexpr std::int64_t kDigits = 5;
constexpr std::int64_t kLength =
    2 * kDigits;  // the number, a separator, and all of its mirror image but the last digit
constexpr std::int64_t kSeparator = 10;
constexpr std::int64_t kTokens = 11;
constexpr std::int64_t kWidth = 48;
constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kLayers = 2;
constexpr std::int64_t kSamples = 4096;
constexpr std::size_t kBatch = 32;
constexpr std::int64_t kEpochs = 8;
constexpr double kRate = 3e-3;
constexpr double kDropout = 0.05;

struct AttentionImpl : torch::nn::Module {
  AttentionImpl() {
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, kWidth));
  }
  Tensor forward(const Tensor& x) {
    const auto heads = [&](const Tensor& each) {
      return each.view({x.size(0), x.size(1), kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const std::vector<Tensor> parts = qkv(x).chunk(3, -1);
    const Tensor mixed = at::scaled_dot_product_attention(
        heads(parts[0]), heads(parts[1]), heads(parts[2]), {}, 0.0, /*is_causal=*/true);
    return out(mixed.transpose(1, 2).reshape(x.sizes()));
  }
  torch::nn::Linear qkv{nullptr}, out{nullptr};
};
TORCH_MODULE(Attention);

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    const torch::nn::LayerNormOptions over_width({kWidth});
    norm1 = register_module("norm1", torch::nn::LayerNorm(over_width));
    attention = register_module("attention", Attention());
    norm2 = register_module("norm2", torch::nn::LayerNorm(over_width));
    wide = register_module("wide", torch::nn::Linear(kWidth, 4 * kWidth));
    narrow = register_module("narrow", torch::nn::Linear(4 * kWidth, kWidth));
  }
  Tensor forward(Tensor x) {
    x = x + torch::dropout(attention(norm1(x)), kDropout, is_training());
    return x + torch::dropout(narrow(torch::gelu(wide(norm2(x)))), kDropout, is_training());
  }
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  Attention attention{nullptr};
  torch::nn::Linear wide{nullptr}, narrow{nullptr};
};
TORCH_MODULE(Block);

struct TransformerImpl : torch::nn::Module {
  TransformerImpl() {
    tokens = register_module("tokens", torch::nn::Embedding(kTokens, kWidth));
    places = register_module("places", torch::nn::Embedding(kLength, kWidth));
    for (std::int64_t i = 0; i < kLayers; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    head = register_module("head", torch::nn::Linear(kWidth, kTokens));
  }
  Tensor forward(const Tensor& input) {
    Tensor x = tokens(input) + places(torch::arange(input.size(1), input.device()));
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head(norm(x));
  }
  torch::nn::Embedding tokens{nullptr}, places{nullptr};
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Transformer);

Transformer make_model(torch::Device device) {
  Transformer model;
  model->to(device);
  return model;
}

// Each row is a number, the separator and the number backwards.
Tensor make_rows(std::int64_t count) {
  const Tensor numbers = torch::randint(10, {count, kDigits}, torch::kInt64);
  return torch::cat({numbers, torch::full({count, 1}, kSeparator), numbers.flip(1)}, 1);
}

// What the model is to write: all that follows the separator.
Tensor answers_of(const Tensor& rows) { return rows.slice(1, kDigits + 1); }

template <typename Model>
Tensor logits_of(Model& model, const Tensor& rows) {
  return model(rows.slice(1, 0, kLength)).slice(1, kDigits);
}

void train(const std::string& folder, ddprun::Context& context) {
  torch::manual_seed(7);
  const torch::Device device = context.device();
  const Tensor rows = make_rows(kSamples).to(device);
  const Tensor new_rows = make_rows(1000).to(device);
  ddprun::DistributedDataParallel model(make_model(device), context);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(kRate));
  ddprun::DistributedSampler sampler(kSamples, context);
  std::int64_t epoch = 0, consumed = 0, step = 0;
  const auto make_step = [&](const Tensor& batch) {
    const double part = static_cast<double>(epoch) / kEpochs;
    const double rate = kRate * 0.5 * (1 + std::cos(M_PI * part));
    optimizer.param_groups().front().options().set_lr(rate);
    optimizer.zero_grad();
    F::cross_entropy(logits_of(model, batch).flatten(0, 1), answers_of(batch).flatten()).backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    optimizer.step();
  };
  ddprun::Recoverable recoverable(context, model, optimizer);
  recoverable.keep(epoch, consumed, step);
  recoverable.join();
  for (; epoch < kEpochs; ++epoch, consumed = 0) {
    sampler.set_epoch(epoch, consumed);
    while (const auto indices = sampler.next(kBatch)) {
      const std::vector<std::int64_t> chosen(indices->begin(), indices->end());
      recoverable.step([&] { make_step(rows.index({torch::tensor(chosen).to(device)})); });
      ++step, consumed = sampler.consumed();
    }
  }
  model->eval();
  const torch::NoGradGuard no_grad;
  const Tensor is_right = logits_of(model, new_rows).argmax(-1).eq(answers_of(new_rows)).all(1);
  const double right = 100 * is_right.to(torch::kFloat64).mean().item<double>();
  if (context.is_main_process()) std::printf("%.1f %% of new numbers are right\n", right);
  ddprun::Checkpointer(context, folder).save(model, optimizer, {.epoch = epoch, .step = step});
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : ".";
  return ddprun::run(argc, argv, [&](ddprun::Context& context) { train(folder, context); });
}
