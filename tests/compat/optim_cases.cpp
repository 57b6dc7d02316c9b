// Trainings by ddprun::optim with gradients that are drawn, to be compared with Python's bit for bit.
// optim_parity.py has the same cases and makes the same draws: keep the two alike, line by line.
//
//   optim_cases FOLDER STEPS   for each case: a checkpoint after half of the steps in <folder>/<case>, from which a
//                              new optimizer goes on, and what there is at the end in <folder>/<case>.end, raw
#include <torch/nn.h>

#include <fstream>
#include <functional>
#include <string>
#include <tuple>

#include "ddprun/checkpoint.h"
#include "ddprun/optim.h"
#include "ddprun/run.h"

namespace {

using torch::Tensor;
namespace optim = ddprun::optim;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;

constexpr double kLr = 0.01;

enum class Way { kSingle, kForeach, kFused };
constexpr std::pair<Way, const char*> kWays[] = {
    {Way::kSingle, "single"}, {Way::kForeach, "foreach"}, {Way::kFused, "fused"}};

struct Case {
  std::string name;
  bool is_sgd;
  // The parameters' second half is a group of its own, with half the rate.
  std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<Tensor>&, Way)> make;
};

template <typename Optimizer, typename Options>
Case make_case(std::string name, const Options& options) {
  return {std::move(name), std::is_same_v<Optimizer, optim::SGD>,
          [options](const std::vector<Tensor>& parameters, Way way) {
            Options first = options;
            if (way == Way::kForeach) first.foreach (true);
            if (way == Way::kFused) first.fused(true);
            auto second = std::make_unique<Options>(first);
            second->lr(kLr / 2);
            const auto middle = parameters.begin() + std::ssize(parameters) / 2;
            Groups groups;
            groups.emplace_back(std::vector<Tensor>(parameters.begin(), middle));
            groups.emplace_back(std::vector<Tensor>(middle, parameters.end()), std::move(second));
            return std::make_unique<Optimizer>(groups, first);
          }};
}

std::vector<Case> cases() {
  const auto sgd = [](std::string name, const optim::SGDOptions& options) {
    return make_case<optim::SGD>(std::move(name), options);
  };
  const auto adam = [](std::string name, const optim::AdamOptions& options) {
    return make_case<optim::Adam>(std::move(name), options);
  };
  const auto adamw = [](std::string name, const optim::AdamOptions& options) {
    return make_case<optim::AdamW>(std::move(name), options);
  };
  using optim::AdamOptions;
  using optim::AdamWOptions;
  using optim::SGDOptions;
  return {
      sgd("sgd", SGDOptions(kLr)),
      sgd("sgd_decay", SGDOptions(kLr).weight_decay(0.03).maximize(true)),
      sgd("sgd_momentum", SGDOptions(kLr).momentum(0.9)),
      sgd("sgd_dampening", SGDOptions(kLr).momentum(0.9).dampening(0.1).weight_decay(0.03)),
      sgd("sgd_nesterov", SGDOptions(kLr).momentum(0.9).nesterov(true)),
      sgd("sgd_nesterov_decay", SGDOptions(kLr).momentum(0.9).nesterov(true).weight_decay(0.03)),
      sgd("sgd_all",
          SGDOptions(kLr).momentum(0.7).nesterov(true).weight_decay(0.03).maximize(true)),
      adam("adam", AdamOptions(kLr)),
      adam("adam_betas", AdamOptions(kLr).betas({0.85, 0.8}).eps(1e-5)),
      adam("adam_decay", AdamOptions(kLr).weight_decay(0.03)),
      adam("adam_amsgrad", AdamOptions(kLr).amsgrad(true)),
      adam("adam_maximize", AdamOptions(kLr).maximize(true)),
      adam("adam_all", AdamOptions(kLr).weight_decay(0.03).amsgrad(true).maximize(true)),
      adamw("adamw", AdamWOptions(kLr)),
      adamw("adamw_no_decay", AdamWOptions(kLr).weight_decay(0)),
      adamw("adamw_all", AdamWOptions(kLr).weight_decay(0.03).amsgrad(true).maximize(true)),
  };
}

// The parameters of a case, and the draws of their gradients.
class Training {
 public:
  Training(const Case& of, Way way) : case_(of), way_(way) {
    add({7, 5}, torch::kFloat32);
    add({33}, torch::kFloat32);
    add({2, 3, 4, 5}, torch::kFloat32, at::MemoryFormat::ChannelsLast);
    add({}, torch::kFloat32);
    add({11}, torch::kFloat64);
    add({3, 130}, torch::kFloat32);
    // Python's fused SGD leaves these as they are.
    if (way != Way::kFused || !of.is_sgd) add({17}, torch::kBFloat16);
    if (way != Way::kFused) add({6}, torch::kComplexFloat);
    optimizer_ = of.make(parameters_, way);
  }

  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      for (std::size_t i = 0; i < parameters_.size(); ++i) {
        Tensor& parameter = parameters_[i];
        const Tensor drawn = torch::randn(parameter.sizes(), parameter.scalar_type());
        // Python's fused SGD cannot begin with one parameter later than with the others.
        const bool begins_later = i == 1 && !(way_ == Way::kFused && case_.is_sgd);
        if (begins_later && step < 3) continue;
        parameter.mutable_grad() = torch::empty_like(parameter).copy_(drawn);
      }
      for (auto& group : optimizer_->param_groups()) {
        group.options().set_lr(group.options().get_lr() * (step % 2 == 0 ? 0.99 : 1.01));
      }
      optimizer_->step();
    }
  }

  void write(const std::string& path) const {
    std::ofstream file(path, std::ios::binary);
    for (const Tensor& parameter : parameters_) {
      for (const Tensor& tensor : {parameter.detach(), parameter.grad()}) {
        const Tensor values = tensor.contiguous();
        file.write(static_cast<const char*>(values.const_data_ptr()),
                   static_cast<std::streamsize>(values.nbytes()));
      }
    }
  }

  const torch::nn::Module& module() const { return module_; }
  torch::optim::Optimizer& optimizer() { return *optimizer_; }

 private:
  void add(at::IntArrayRef sizes, torch::ScalarType type,
           at::MemoryFormat format = at::MemoryFormat::Contiguous) {
    const Tensor values = torch::randn(sizes, type).contiguous(format);
    parameters_.push_back(module_.register_parameter(std::to_string(parameters_.size()), values));
  }

  const Case& case_;
  const Way way_;
  torch::nn::Module module_;
  std::vector<Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

void run_case(const Case& of, Way way, int steps, const std::string& path,
              ddprun::Context& context) {
  ddprun::Checkpointer checkpoints(context, path);
  torch::manual_seed(7);
  Training first(of, way);
  first.train(0, steps / 2);
  checkpoints.save(first.module(), first.optimizer(), {.step = steps / 2});

  Training second(of, way);
  std::ignore = checkpoints.resume(second.module(), second.optimizer());  // the random numbers, too
  for (std::size_t i = 0; i < 2; ++i) {  // rates are the program's, not the file's
    second.optimizer().param_groups()[i].options().set_lr(
        first.optimizer().param_groups()[i].options().get_lr());
  }
  second.train(steps / 2, steps);
  second.write(path + ".end");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return ddprun::run(argc, argv,
                     [&](ddprun::Context& context) {
                       const std::string folder = argv[1];
                       const int steps = std::stoi(argv[2]);
                       for (const Case& each : cases()) {
                         for (const auto& [way, name] : kWays) {
                           run_case(each, way, steps, folder + "/" + each.name + "." + name,
                                    context);
                         }
                       }
                     },
                     {.device = torch::kCPU});
}
