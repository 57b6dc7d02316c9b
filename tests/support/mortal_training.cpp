// mortal_training FOLDER now|later [BACKEND [MEMORY_EVERY]]: a small training with every kind of state that a checkpoint
// must keep (momentum, batch statistics, random numbers of each rank, a schedule, a scale of
// gradients, several buckets, the position in an epoch). It continues from FOLDER and dies where a
// test says (death.h). Its checkpoints are written synchronously (now) or asynchronously (later).
// The last of them, of step kSteps, is what tests compare. DDPRUN_MORTAL_STEPS=N: it ends after N steps;
// DDPRUN_MORTAL_END=FILE: after a multiple of kSteps, as soon as there is this file. DDPRUN_MORTAL_REST=FILE: each
// step waits for 20 ms while there is this file. DDPRUN_MORTAL_DEVICE=cuda:0: all ranks train there, over
// NCCL too.
// DDPRUN_MORTAL_PARTS=N: the gradients of each step are accumulated from N parts of its batch. DDPRUN_MORTAL_AHEAD=1: no
// step reads its loss, so that the host is ahead of a GPU. DDPRUN_MORTAL_GPU_FAILS=RANK: the fake GPU of this rank fails
// in step 8 of the first round. DDPRUN_MORTAL_BALLAST_MB=N: each rank takes so much more of its GPU.
// DDPRUN_MORTAL_COUNTS=1: the model has no buffers, and rank 0 prints how often its steps have waited for the fake GPU.
#include <ATen/CPUGeneratorImpl.h>
#include <dlfcn.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "ddprun/checkpoint.h"
#include "ddprun/ddp.h"
#include "ddprun/lr_scheduler.h"
#include "ddprun/metrics.h"
#include "ddprun/mixed_precision.h"
#include "ddprun/recoverable.h"
#include "ddprun/run.h"
#include "ddprun/sampler.h"
#include "tests/support/death.h"
#include "tests/support/end_quickly.h"

namespace ddprun::test {
namespace {

namespace F = torch::nn::functional;
using torch::Tensor;

constexpr int kSteps = 30;
constexpr int kStepsBetweenCheckpoints = 3;
constexpr int kFirstCounted = 10;  // before it what a step does is looked at
constexpr std::int64_t kSamples = 250;
constexpr std::int64_t kInputs = 32;
constexpr std::int64_t kClasses = 10;
constexpr std::int64_t kBatch = 8;
constexpr std::uint64_t kSeed = 11;

int number_in(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

bool counts_waits() { return number_in("DDPRUN_MORTAL_COUNTS", 0) != 0; }

std::uint64_t waits_for_gpu() {
  const auto waits = reinterpret_cast<std::uint64_t (*)()>(::dlsym(RTLD_DEFAULT, "fake_gpu_waits"));
  return waits == nullptr ? 0 : waits();
}

struct Net : torch::nn::Module {
  Net() {
    fc1 = register_module("fc1", torch::nn::Linear(kInputs, 64));
    norm = register_module(
        "norm", torch::nn::BatchNorm1d(
                    torch::nn::BatchNorm1dOptions(64).track_running_stats(!counts_waits())));
    fc2 = register_module("fc2", torch::nn::Linear(64, 64));
    fc3 = register_module("fc3", torch::nn::Linear(64, kClasses));
  }
  Tensor forward(Tensor x) {
    x = torch::relu(norm(fc1(x)));
    death::reach(is_training() ? "forward" : "evaluation");
    x = torch::dropout(x, 0.3, is_training());
    x = torch::relu(fc2(x));
    // At this point the gradients of fc3 are being sent to the other ranks.
    if (x.requires_grad()) x.register_hook([](const Tensor&) { death::reach("backward"); });
    return fc3(x);
  }
  torch::nn::Linear fc1{nullptr}, fc2{nullptr}, fc3{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

class MortalSgd : public torch::optim::SGD {
 public:
  using SGD::SGD;
  Tensor step(LossClosure closure = nullptr) override {
    Tensor loss = SGD::step(std::move(closure));
    death::reach("optimizer");
    return loss;
  }
};

// A part of the checkpoint; saving and loading its state are points of death.
struct Mark : Stateful {
  std::string state_dict() const override {
    death::reach("saving");
    return "";
  }
  void load_state_dict(const std::string&) override { death::reach("resuming"); }
};

std::shared_ptr<Net> make_net(torch::Device device) {
  torch::manual_seed(kSeed);
  auto net = std::make_shared<Net>();
  net->to(device);
  return net;
}

int steps_planned() {
  const bool is_open =
      std::getenv("DDPRUN_MORTAL_STEPS") != nullptr || std::getenv("DDPRUN_MORTAL_END") != nullptr;
  return is_open ? 1'000'000 : kSteps;
}

class Training {
 public:
  Training(Context& context, const std::string& folder, bool is_asynchronous, int memory_every)
      : context_(context),
        sampler_(kSamples, context, {.seed = kSeed}),
        model_(make_net(context.device()), context,
               {.bucket_bytes_cap = 8 << 10, .first_bucket_bytes_cap = 4 << 10}),
        optimizer_(model_.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
        schedule_(optimizer_,
                  lr_scheduler::one_cycle_lr({.max_lr = {0.2}, .total_steps = steps_planned()})),
        scaler_({.init_scale = 1024, .growth_interval = 7}),
        checkpoints_(context, folder,
                     {.keep_last = 2,
                      .best = MetricMode::kMax,
                      .async_save = is_asynchronous,
                      .memory_every = memory_every}),
        recoverable_(context, model_, optimizer_) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(kSeed);
    const Tensor inputs = torch::randn({kSamples, kInputs}, generator);
    inputs_ = inputs.to(context.device());
    targets_ =
        inputs.matmul(torch::randn({kInputs, kClasses}, generator)).argmax(1).to(context.device());
    torch::manual_seed(kSeed + 1 + static_cast<std::uint64_t>(context.rank()));  // for dropout
    checkpoints_.register_for_checkpointing("buckets", model_);
    checkpoints_.register_for_checkpointing("schedule", schedule_);
    checkpoints_.register_for_checkpointing("scaler", scaler_);
    checkpoints_.register_for_checkpointing("mark", mark_);
    at_.seed = kSeed;
    if (auto saved = checkpoints_.resume(model_, optimizer_)) at_ = *saved;
    recoverable_.keep(at_.step, at_.epoch, at_.consumed, loss_sum_, asked_);
    recoverable_.keep(schedule_);
    recoverable_.keep_replicated(scaler_);
    const std::int64_t ballast = std::int64_t{number_in("DDPRUN_MORTAL_BALLAST_MB", 0)} << 20;
    ballast_ = torch::empty({ballast}, torch::dtype(torch::kUInt8).device(context.device()));
    if (std::getenv("DDPRUN_PREPARED") != nullptr) death::recovery_begins();
    recoverable_.join();
  }

  void run() {
    while (!is_over()) {
      sampler_.set_epoch(at_.epoch, at_.consumed);
      while (!is_over()) {
        const auto batch = sampler_.next(kBatch);
        if (!batch) break;
        step(torch::tensor(std::vector<std::int64_t>(batch->begin(), batch->end()), torch::kInt64)
                 .to(context_.device()));
        at_.consumed = sampler_.consumed();
        checkpoints_.keep(model_, optimizer_, at_);
        if (at_.step % kStepsBetweenCheckpoints == 0) save();
      }
      ++at_.epoch;
      at_.consumed = 0;
    }
    checkpoints_.wait();
    // Every rank's own state has gone the same way, and its copy of the model.
    const auto sums = context_.all_gather(torch::tensor({loss_sum_}, torch::kFloat64));
    const auto models = context_.all_gather(torch::tensor({hash_of_model()}, torch::kInt64));
    if (!context_.is_main_process()) return;
    for (const Tensor& sum : sums) std::printf("loss %a\n", sum.item<double>());
    for (const Tensor& model : models) std::printf("model %lx\n", model.item<std::int64_t>());
    if (counts_waits()) std::printf("waits %lu\n", waits_);
  }

 private:
  // Between two steps, at the same ones on all ranks.
  bool is_over() {
    if (at_.step % kSteps != 0 || at_.step == 0) return false;
    if (const char* const steps = std::getenv("DDPRUN_MORTAL_STEPS")) {
      return at_.step >= std::atoi(steps);
    }
    const char* const end = std::getenv("DDPRUN_MORTAL_END");
    if (end == nullptr || is_to_end_) return true;
    if (std::exchange(asked_, at_.step) == at_.step) return false;
    return is_to_end_ = context_.broadcast_object(std::filesystem::exists(end), 0);
  }

  std::int64_t hash_of_model() const {
    std::string bytes;
    const auto append = [&](const Tensor& on_device) {
      const Tensor tensor = on_device.cpu();
      bytes.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
    };
    for (const Tensor& parameter : model_->parameters()) append(parameter);
    for (const Tensor& buffer : model_->buffers()) append(buffer);
    return static_cast<std::int64_t>(std::hash<std::string>()(bytes));
  }

  // What a test that waits for standbys spares itself, and the undisturbed training that it is compared with.
  static void rest() {
    const char* const file = std::getenv("DDPRUN_MORTAL_REST");
    if (file != nullptr && std::filesystem::exists(file)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  void step(const Tensor& indices) {
    death::at_step(at_.step + 1);
    rest();
    const std::uint64_t waits_before = waits_for_gpu();
    recoverable_.step([&] {
      death::recovery_ends();
      optimizer_.zero_grad();
      const std::vector<Tensor> parts = indices.chunk(number_in("DDPRUN_MORTAL_PARTS", 1));
      for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto no_sync = model_.no_sync();
        compute_gradients(parts[i]);
      }
      compute_gradients(parts.back());
      death::reach("reduced");
      fail_as_a_gpu();
      scaler_.step(optimizer_);
      scaler_.update();
    });
    death::recovery_ends();
    if (at_.step >= kFirstCounted) waits_ += waits_for_gpu() - waits_before;
    ++at_.step;
    schedule_.step();
    death::reach("after_step");
  }

  void compute_gradients(const Tensor& indices) {
    const Tensor logits = model_(inputs_.index_select(0, indices));
    const Tensor loss = F::cross_entropy(logits, targets_.index_select(0, indices));
    if (number_in("DDPRUN_MORTAL_AHEAD", 0) == 0) loss_sum_ += loss.item<double>();
    try {
      death::collectives_begin();
      scaler_.scale(loss).backward();
      death::collectives_end();
    } catch (...) {
      death::collectives_end();
      death::recovery_begins();
      throw;
    }
  }

  void fail_as_a_gpu() const {
    constexpr int kLaunchFailure = 719;  // cudaErrorLaunchFailure
    if (number_in("DDPRUN_MORTAL_GPU_FAILS", -1) != context_.rank() || at_.step != 7 ||
        number_in("TORCHELASTIC_RESTART_COUNT", 0) > 0) {
      return;
    }
    const auto fail = reinterpret_cast<void (*)(int)>(::dlsym(RTLD_DEFAULT, "fake_gpu_break"));
    if (fail != nullptr) fail(kLaunchFailure);
  }

  void save() {
    const torch::NoGradGuard no_grad;
    model_->eval();
    const Tensor mine = torch::arange(context_.rank(), kSamples, context_.world_size(),
                                      torch::dtype(torch::kInt64).device(context_.device()));
    const Tensor hits =  // by the wrapper, which gives all ranks the buffers of rank 0 before
        model_(inputs_.index_select(0, mine)).argmax(1).eq(targets_.index_select(0, mine));
    model_->train();
    Mean accuracy;
    accuracy.update(hits.sum().item<double>(), hits.numel());
    checkpoints_.save(model_, optimizer_, at_, accuracy.compute(context_));
  }

  Context& context_;
  DistributedSampler sampler_;
  DistributedDataParallel<Net> model_;
  MortalSgd optimizer_;
  LRScheduler schedule_;
  GradScaler scaler_;
  Mark mark_;
  Checkpointer checkpoints_;
  Tensor inputs_;
  Tensor targets_;
  Tensor ballast_;
  TrainingPosition at_;
  double loss_sum_ = 0;
  std::uint64_t waits_ = 0;
  std::int64_t asked_ = 0;  // after this step
  bool is_to_end_ = false;
  Recoverable recoverable_;
};

}  // namespace
}  // namespace ddprun::test

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const bool is_asynchronous = argv[2] == std::string("later");
  ddprun::ContextOptions options{.backend = ddprun::backend_from(argc > 3 ? argv[3] : "gloo")};
  if (const char* const device = std::getenv("DDPRUN_MORTAL_DEVICE"))
    options.device = torch::Device(device);
  if (options.device && options.backend == ddprun::Backend::kNccl) {
    // NCCL refuses two ranks of one host on a GPU. A process that is forked for a rank would have the
    // name of the process before.
    options.can_be_standby = false;
    if (const char* const rank = std::getenv("RANK")) ::setenv("NCCL_HOSTID", rank, 1);
  }
  const int code = ddprun::run(
      argc, argv,
      [&](ddprun::Context& context) {
        ddprun::test::Training(context, argv[1], is_asynchronous, argc > 4 ? std::atoi(argv[4]) : 0)
            .run();
      },
      options);
  ddprun::test::end_quickly(code);
}
