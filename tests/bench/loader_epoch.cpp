// An epoch with the DataLoader beside the same epoch without it, whose batches lie ready in memory.
// Epochs of both kinds take turns; rank 0 prints one line of JSON:
//   {"without_ms": [812.4, …], "with_ms": [830.1, …], "inline_ms": [911.7, …]}
// inline: the calling thread loads, so nothing overlaps; how much there is to hide.
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "ddprun/data_loader.h"
#include "ddprun/ddp.h"
#include "ddprun/run.h"
#include "worker_lib/examples/fashion_net.h"

namespace {

struct Settings {
  int batch_size = 64;
  int batches = 40;  // of each rank
  int pairs = 5;
  int threads = 1;
  bool is_augmented = false;
};

// Images as they are: a batch is an index_select and three operations.
struct Images {
  torch::Tensor pixels;  // [n, 1, 28, 28] uint8
  torch::Tensor labels = torch::full({pixels.size(0)}, 3);

  std::int64_t size() const { return pixels.size(0); }
  torch::data::Example<> get_batch(const std::vector<std::size_t>& indices) const {
    const torch::Tensor chosen =
        torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()));
    return {pixels.index_select(0, chosen).to(torch::kFloat32).div_(255).sub_(0.286).div_(0.353),
            labels.index_select(0, chosen)};
  }
};

// Images that are moved by some pixels and perhaps mirrored, each by itself: much to do.
struct Augmented {
  torch::Tensor pixels;  // [n, 1, 28, 28] uint8

  std::int64_t size() const { return pixels.size(0); }
  torch::data::Example<> get(std::size_t index, at::Generator& generator) const {
    const auto number = static_cast<std::int64_t>(index);
    torch::Tensor image = pixels[number].to(torch::kFloat32).div_(255).sub_(0.286).div_(0.353);
    const torch::Tensor dice = torch::randint(5, {3}, generator);
    const auto* const thrown = dice.const_data_ptr<std::int64_t>();
    image = torch::constant_pad_nd(image, {2, 2, 2, 2})
                .narrow(1, thrown[0], 28)
                .narrow(2, thrown[1], 28);
    if (thrown[2] < 2) image = image.flip(2);
    return {image, torch::tensor(number % 10)};
  }
};

std::int64_t samples(const Settings& settings, const ddprun::Context& context) {
  return std::int64_t{settings.batch_size} * settings.batches * context.world_size();
}

template <typename Dataset>
class Bench {
 public:
  Bench(const Settings& settings, ddprun::Context& context, const Dataset& dataset)
      : settings_(settings),
        context_(context),
        model_(std::make_shared<Net>(), context),
        optimizer_(model_.parameters(), torch::optim::SGDOptions(0.01)),
        beside_(dataset, sampler(), options(settings.threads)),
        inline_(dataset, sampler(), options(0)) {}

  void run() {
    std::vector<torch::data::Example<>> ready;
    for (auto& batch : inline_) ready.push_back(batch);
    std::vector<double> without, with, in_line;
    epoch(ready);  // warms up
    for (int pair = 0; pair < settings_.pairs; ++pair) {
      const std::vector<std::function<void()>> turns = {
          [&] { without.push_back(epoch(ready)); },
          [&] { with.push_back(epoch(beside_)); },
          [&] { in_line.push_back(epoch(inline_)); },
      };
      for (std::size_t i = 0; i < turns.size(); ++i) {
        turns[pair % 2 == 0 ? i : turns.size() - 1 - i]();
      }
    }
    if (!context_.is_main_process()) return;
    std::printf("{\"without_ms\": %s, \"with_ms\": %s, \"inline_ms\": %s}\n", json(without).c_str(),
                json(with).c_str(), json(in_line).c_str());
    std::fflush(stdout);
  }

 private:
  ddprun::DistributedSampler sampler() const { return {samples(settings_, context_), context_}; }
  ddprun::DataLoaderOptions options(int threads) const {
    return {.batch_size = settings_.batch_size, .num_workers = threads};
  }

  // Milliseconds; the ranks begin together and wait for each other in every step.
  template <typename Batches>
  double epoch(Batches& batches) {
    context_.barrier();
    const auto begun = std::chrono::steady_clock::now();
    for (auto& batch : batches) {
      optimizer_.zero_grad();
      torch::nn::functional::cross_entropy(model_(batch.data), batch.target).backward();
      optimizer_.step();
    }
    const std::chrono::duration<double, std::milli> passed =
        std::chrono::steady_clock::now() - begun;
    return passed.count();
  }

  static std::string json(const std::vector<double>& values) {
    std::string text = "[";
    for (const double value : values) {
      char number[32];
      std::snprintf(number, sizeof number, "%s%.3f", text.size() > 1 ? ", " : "", value);
      text += number;
    }
    return text + "]";
  }

  const Settings& settings_;
  ddprun::Context& context_;
  ddprun::DistributedDataParallel<Net> model_;
  torch::optim::SGD optimizer_;
  ddprun::DataLoader<Dataset> beside_;
  ddprun::DataLoader<Dataset> inline_;
};

void measure(const Settings& settings, ddprun::Context& context) {
  constexpr std::int64_t kSide = 28;
  const std::int64_t count = samples(settings, context);
  torch::manual_seed(1);
  const torch::Tensor pixels = torch::randint(256, {count, 1, kSide, kSide}, torch::kUInt8);
  if (settings.is_augmented) return Bench(settings, context, Augmented{pixels}).run();
  Bench(settings, context, Images{pixels}).run();
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Times an epoch with the DataLoader and without.");
  app.add_option("--batches", settings.batches);
  app.add_option("--pairs", settings.pairs);
  app.add_option("--threads", settings.threads);
  app.add_flag("--augment", settings.is_augmented);
  CLI11_PARSE(app, argc, argv);
  return ddprun::run(argc, argv, [&](ddprun::Context& context) { measure(settings, context); },
                     {.backend = ddprun::Backend::kGloo});
}
