// unreplaceable WAY: a short training over Gloo in which ranks cannot be replaced in place, for a reason that
// ddprun must tell.
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "ddprun/comm_hooks.h"
#include "ddprun/ddp.h"
#include "ddprun/recoverable.h"
#include "ddprun/run.h"

namespace ddprun::test {
namespace {

void train(Context& context, const std::string& way) {
  DdpOptions options;
  if (way == "hook") options.comm_hook = fp16_compress_hook();
  DistributedDataParallel model(torch::nn::Linear(4, 1), context, options);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  Recoverable recoverable(context, model, optimizer);
  recoverable.join();
  const auto step = [&] {
    recoverable.step([&] {
      optimizer.zero_grad();
      model(torch::ones({2, 4})).sum().backward();
      optimizer.step();
    });
  };
  step();
  if (way == "join") {
    model.join([&] { step(); });
  } else if (way == "backward") {
    model(torch::ones({2, 4})).sum().backward();
  } else if (way == "message") {
    torch::Tensor number = torch::ones({1});
    context.rank() == 0 ? context.send(number, 1) : context.recv(number, 0);
  } else if (way == "group") {
    context.new_group({0, 1});
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
