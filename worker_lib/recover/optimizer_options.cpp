#include "worker_lib/recover/optimizer_options.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <tuple>
#include <type_traits>

#include "ddprun/error.h"
#include "ddprun/optim.h"

namespace ddprun {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;

// Calls f(name, value) for each option that the class has.
template <typename Options, typename F>
void each_option_of(Options& options, const F& f) {
  f("lr", options.lr());
  if constexpr (requires { options.momentum(); }) f("momentum", options.momentum());
  if constexpr (requires { options.dampening(); }) f("dampening", options.dampening());
  if constexpr (requires { options.weight_decay(); }) f("weight_decay", options.weight_decay());
  if constexpr (requires { options.nesterov(); }) f("nesterov", options.nesterov());
  if constexpr (requires { options.betas(); }) f("betas", options.betas());
  if constexpr (requires { options.eps(); }) f("eps", options.eps());
  if constexpr (requires { options.amsgrad(); }) f("amsgrad", options.amsgrad());
  if constexpr (requires { options.alpha(); }) f("alpha", options.alpha());
  if constexpr (requires { options.centered(); }) f("centered", options.centered());
  if constexpr (requires { options.lr_decay(); }) f("lr_decay", options.lr_decay());
  if constexpr (requires { options.initial_accumulator_value(); }) {
    f("initial_accumulator_value", options.initial_accumulator_value());
  }
  if constexpr (requires { options.maximize(); }) f("maximize", options.maximize());
  if constexpr (requires { options.foreach (); }) f("foreach", options.foreach ());
  if constexpr (requires { options.fused(); }) f("fused", options.fused());
}

// False, and no call of f: the options are of none of these classes.
template <typename... Classes, typename F>
bool each_option_of_one(OptimizerOptions& options, const F& f) {
  return (... || [&] {
    auto* const known = dynamic_cast<Classes*>(&options);
    if (known != nullptr) each_option_of(*known, f);
    return known != nullptr;
  }());
}

template <typename F>
bool each_option(OptimizerOptions& options, const F& f) {
  using namespace torch::optim;
  return each_option_of_one<optim::SGDOptions, optim::AdamOptions, SGDOptions, AdamOptions,
                            AdamWOptions, RMSpropOptions, AdagradOptions>(options, f);
}

template <typename Value>
using CodecOf = Codec<std::remove_cvref_t<Value>>;

std::string text_of(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}
std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(const std::optional<bool>& value) { return value ? text_of(*value) : "none"; }
std::string text_of(const std::tuple<double, double>& value) {
  return "(" + text_of(std::get<0>(value)) + ", " + text_of(std::get<1>(value)) + ")";
}

}  // namespace

bool are_options_known(Optimizer& optimizer) {
  return std::ranges::all_of(optimizer.param_groups(), [](auto& group) {
    return each_option(group.options(), [](const char*, const auto&) {});
  });
}

void append_options(ByteWriter& writer, Optimizer& optimizer) {
  writer.count(optimizer.param_groups().size());
  for (auto& group : optimizer.param_groups()) {
    each_option(group.options(), [&](const char*, const auto& value) {
      CodecOf<decltype(value)>::write(writer, value);
    });
  }
}

void restore_options(ByteReader& reader, Optimizer& optimizer) {
  auto& groups = optimizer.param_groups();
  if (const std::size_t count = reader.count(); count != groups.size()) {
    throw UsageError("the optimizer has " + std::to_string(groups.size()) +
                     " parameter groups, and had " + std::to_string(count) +
                     ": add all of them before Recoverable::join()");
  }
  for (auto& group : groups) {
    each_option(group.options(),
                [&](const char*, auto& value) { value = CodecOf<decltype(value)>::read(reader); });
  }
}

ModelDescription described_options(Optimizer& optimizer) {
  ModelDescription described;
  std::size_t number = 0;
  for (auto& group : optimizer.param_groups()) {
    const std::string where = " of parameter group " + std::to_string(number++);
    each_option(group.options(), [&](const char* name, const auto& value) {
      described.emplace_back("option " + std::string(name) + where, text_of(value));
    });
  }
  return described;
}

}  // namespace ddprun
