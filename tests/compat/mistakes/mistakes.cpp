// Mistakes of a user that a compiler could let pass. None of them compiles with -Werror: at each line with a mark the compiler
// says the text of the mark (consumer_test.cmake). With CORRECTED it is the same file without the mistakes, which compiles.
// clang-format off
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/checkpoint.h"
#include "ddprun/data_loader.h"
#include "ddprun/datasets.h"
#include "ddprun/ddp.h"
#include "ddprun/early_stopping.h"
#include "ddprun/evaluation_mode.h"
#include "ddprun/mixed_precision.h"
#include "ddprun/recoverable.h"
#include "ddprun/run.h"
#include "ddprun/sampler.h"
#include "ddprun/trainer.h"

#ifdef CORRECTED
#define MISTAKE(mistake, correct) correct
#else
#define MISTAKE(mistake, correct) mistake
#endif

using torch::Tensor;
using Model = ddprun::DistributedDataParallel<torch::nn::LinearImpl>;

// Only a tensor is written in place; everything else is returned.
void results_of_collectives(ddprun::Context& context, Tensor& tensor) {
  double loss = 1;
  MISTAKE(context.all_reduce(loss), loss = context.all_reduce(loss));      // says: the sum is returned
  MISTAKE(context.broadcast(loss), loss = context.broadcast(loss));        // says: the value is returned
  std::string name;
  MISTAKE(context.broadcast(name), name = context.broadcast(name));        // says: ignoring return value
  MISTAKE(context.broadcast_object(name), name = context.broadcast_object(name));  // says: ignoring return value
  bool is_good = true;
  MISTAKE(context.all_of(is_good), is_good = context.all_of(is_good));     // says: ignoring return value
  MISTAKE(context.all_gather(tensor), auto all = context.all_gather(tensor));  // says: ignoring return value
  MISTAKE(context.reduce_scatter(tensor), tensor = context.reduce_scatter(tensor));  // says: ignoring return value
  MISTAKE(context.all_reduce_async(tensor), context.all_reduce_async(tensor).wait());  // says: ends in wait()
}

// These last as long as their object, which without a name is gone at the end of the line.
void guards(Model& model) {
  MISTAKE(ddprun::Autocast(torch::kCPU), const ddprun::Autocast half(torch::kCPU));  // says: give it a name
  MISTAKE(ddprun::EvaluationMode(*model.module()), const ddprun::EvaluationMode mode(*model));  // says: give it a name
  MISTAKE(model.no_sync(), const auto no_sync = model.no_sync());          // says: give it a name
}

// What these return decides how the training goes on.
void decisions(ddprun::Context& context, Model& model, torch::optim::SGD& optimizer,
               ddprun::Checkpointer& checkpoints,
               ddprun::EarlyStopping& stopping, ddprun::GradScaler& scaler, const Tensor& loss) {
  MISTAKE(checkpoints.resume(model, optimizer), auto at = checkpoints.resume(model, optimizer));  // says: the position from which
  MISTAKE(context.should_leave(), if (context.should_leave()) return);     // says: save a checkpoint and return
  MISTAKE(stopping.add(0.5), if (stopping.add(0.5)) return);               // says: the training is over
  MISTAKE(scaler.scale(loss), scaler.scale(loss).backward());              // says: call backward() on it
}

int functions_of_run(int argc, char** argv) {
  ddprun::run(argc, argv, MISTAKE([] {}, [](ddprun::Context&) {}));        // says: takes a ddprun::Context&
  return ddprun::run(argc, argv, [](ddprun::Context& context) {            // says: returns nothing or an exit code
    return MISTAKE(context.is_main_process(), context.is_main_process() ? 0 : 1);
  });
}

struct Counters {
  double loss_sum = 0;
};

void steps(ddprun::Context& context, Model& model, torch::optim::SGD& optimizer, Tensor& scale) {
  ddprun::Recoverable recoverable(context, model, optimizer);
  Counters at;
  std::vector<Tensor> buffers;
  MISTAKE(recoverable.keep(scale), recoverable.keep(at));                  // says: is to be a buffer of the model
  MISTAKE(auto* place = &at; recoverable.keep(place), );                   // says: keep what it points to
  MISTAKE(recoverable.keep(context), );                                    // says: keep() takes plain data
  recoverable.step([&] { return MISTAKE(scale.sum(), ); });                // says: that returns nothing
  const auto f = [MISTAKE(&scale, )](Counters& loop, Model& net, torch::optim::SGD& sgd) {
    ++loop.loss_sum, net.parameters(), sgd.step();
    MISTAKE(scale.add_(1), );
  };
  recoverable.run(at, f, model, optimizer);                                // says: calls a function without captures
  recoverable.run(at, [](Counters&, MISTAKE(, const) Tensor& kept) { kept.sum(); }, scale);  // says: it takes as const
}

void losses(ddprun::Context& context, Model& model, torch::optim::SGD& optimizer) {
  ddprun::DataLoader loader(ddprun::TensorDataset(torch::ones({8, 4})),
                            ddprun::DistributedSampler(8, context), {.batch_size = 2});
  ddprun::Trainer trainer(context, model, optimizer);
  trainer.fit(loader, [](auto& net, auto& batch) {                         // says: which returns the mean loss
    const Tensor loss = net(batch.data).sum();
    return MISTAKE(loss.item<double>(), loss);
  });
}
