// unreplaceable WAY: a short training over Gloo in which ranks cannot be replaced in place, for a reason that
// ddprun must tell.
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "ddprun/comm_hooks.h"
#include "ddprun/ddp.h"
#include "ddprun/recoverable.h"
#include "ddprun/run.h"

namespace ddprun::test {
namespace {

using torch::optim::SGDOptions;

struct Net : torch::nn::Module {
  explicit Net(bool is_sparse) {
    const auto options = torch::nn::EmbeddingOptions(4, 4).sparse(is_sparse);
    embedding = register_module("embedding", torch::nn::Embedding(options));
    linear = register_module("linear", torch::nn::Linear(4, 1));
    calls = register_buffer("calls", torch::zeros({1}));
  }
  torch::Tensor forward(const torch::Tensor& indices) { return linear(embedding(indices)); }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear linear{nullptr};
  torch::Tensor calls;
};

struct SignDescent : torch::optim::Optimizer {
  explicit SignDescent(std::vector<torch::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<SGDOptions>(0.1)) {}
  torch::Tensor step(LossClosure /*closure*/ = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (const torch::Tensor& parameter : param_groups()[0].params()) {
      parameter.sub_(parameter.grad().sign(), 0.1);
    }
    return {};
  }
};

struct Loop {
  std::vector<double> losses;
  template <typename Fields>
  void fields(Fields& field) {
    field(losses);
  }
};

using Model = DistributedDataParallel<Net>;

void one_step(Loop& loop, Model& model, torch::optim::Optimizer& optimizer) {
  optimizer.zero_grad();
  const torch::Tensor loss = model(torch::tensor({1, 2})).sum();
  loss.backward();
  optimizer.step();
  loop.losses.push_back(loss.item<double>());
}

// A sum that is kept by hand outside of what the step is given to change.
void step_that_writes_into_const(Loop& /*loop*/, Model& model, torch::optim::Optimizer& optimizer,
                                 const torch::Tensor& sum) {
  optimizer.zero_grad();
  const torch::Tensor loss = model(torch::tensor({1, 2})).sum();
  sum.add_(loss.detach());
  loss.backward();
  optimizer.step();
}

void train(Context& context, const std::string& way) {
  DdpOptions options;
  if (way == "hook") options.comm_hook = fp16_compress_hook();
  DistributedDataParallel model(std::make_shared<Net>(way == "sparse"), context, options);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (way == "optimizer") {
    optimizer = std::make_unique<SignDescent>(model.parameters());
  } else {
    optimizer =
        std::make_unique<torch::optim::SGD>(model.parameters(), SGDOptions(0.1).momentum(0.9));
  }
  Recoverable recoverable(context, model, *optimizer);
  std::int64_t steps = 0;
  recoverable.keep(steps);
  Loop loop;
  recoverable.keep(loop);
  recoverable.join();
  if (way == "late_field") return recoverable.run(loop, one_step, model, *optimizer);
  if (way == "stranger") {
    torch::optim::SGD other(model.parameters(), SGDOptions(0.1));
    return recoverable.run(loop, one_step, model, other);
  }
  if (way == "const_tensor") {
    return recoverable.run(loop, step_that_writes_into_const, model, *optimizer, torch::zeros({}));
  }
  std::int64_t made = 0;
  const auto step = [&] {
    recoverable.step([&] {
      optimizer->zero_grad();
      model(torch::tensor({1, 2})).sum().backward();
      optimizer->step();
      const bool is_fifth = made == 4;
      if (way == "late_value" || (way == "later_value" && is_fifth)) ++steps;
      if (way == "late_buffer" || (way == "later_buffer" && is_fifth)) model->calls.add_(1);
      if (way == "late_random" || (way == "later_random" && is_fifth)) torch::rand({1});
    });
    ++made;
  };
  step();
  if (way.starts_with("later")) {
    while (made < 6) step();
  }
  if (way == "join") {
    model.join([&] { step(); });
  } else if (way == "backward") {
    model(torch::tensor({1, 2})).sum().backward();
  } else if (way == "message") {
    torch::Tensor number = torch::ones({1});
    context.rank() == 0 ? context.send(number, 1) : context.recv(number, 0);
  } else if (way == "thread") {
    torch::Tensor number = torch::ones({1});
    std::thread([&] { context.all_reduce(number); }).join();
  } else if (way == "group") {
    std::ignore = context.new_group({0, 1});
  }
  step();
}

}  // namespace
}  // namespace ddprun::test

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  return ddprun::run(argc, argv,
                     [&](ddprun::Context& context) { ddprun::test::train(context, argv[1]); },
                     {.backend = ddprun::Backend::kGloo});
}
