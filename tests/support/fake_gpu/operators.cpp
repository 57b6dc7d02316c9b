// PyTorch's operators for tensors on the fake GPU (README.md): each is queued on the current stream, and is run there by the
// CPU's kernel on the same memory, so its bits are those of the CPU. As with a GPU the host runs ahead where the form of the
// result is known before: of operators in place, with out=, and with a kernel for meta tensors. Else it waits for the stream.
// cudart.cpp loads this library.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

using c10::IValue;
using Values = std::vector<IValue>;
using torch::jit::Stack;

// ---- arguments

at::Tensor on_cpu(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU).requires_grad(false));
}

at::Tensor form_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

at::Tensor on_gpu(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cuda()) return tensor;
  at::Tensor result = at::empty_strided(
      tensor.sizes(), tensor.strides(),
      tensor.options().device(at::Device(at::kCUDA, c10::cuda::current_device())));
  if (tensor.is_cpu()) on_cpu(result).copy_(tensor);
  return result;
}

// `change` is done to each tensor in the value, and devices become `device`.
template <typename Change>
IValue changed(const IValue& value, at::DeviceType device, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) list.push_back(change(each));
    return list;
  }
  if (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
    c10::List<std::optional<at::Tensor>> list;
    for (const IValue& each : value.toListRef()) {
      list.push_back(each.isNone() ? std::optional<at::Tensor>()
                                   : std::optional<at::Tensor>(change(each.toTensor())));
    }
    return list;
  }
  if (value.isDevice() && value.toDevice().is_cuda()) return at::Device(device);
  return value;
}

IValue value_on_gpu(const IValue& value) {
  if (!value.isTensor() && !value.isTensorList()) return value;
  return changed(value, at::kCUDA, on_gpu);
}

void copy_to(const IValue& to, const IValue& from) {
  if (to.isTensor() && to.toTensor().defined()) to.toTensor().copy_(from.toTensor());
  if (to.isTensorList()) {
    const auto targets = to.toTensorVector(), sources = from.toTensorVector();
    for (std::size_t i = 0; i < targets.size(); ++i) targets[i].copy_(sources[i]);
  }
}

// ---- calls

Stack run(const c10::OperatorHandle& op, const Values& arguments) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Stack stack = arguments;
  op.callBoxed(stack);
  return stack;
}

void queue(cudaStream_t stream, std::function<void()> work) {
  cudaLaunchHostFunc(
      stream,
      [](void* data) {
        const std::unique_ptr<std::function<void()>> its(static_cast<std::function<void()>*>(data));
        const at::AutoDispatchBelowADInplaceOrView below_autograd;
        try {
          (*its)();
        } catch (const std::exception& error) {  // as after an assertion of a kernel
          std::fprintf(stderr, "fake_gpu: %s\n", error.what());
          std::abort();
        }
      },
      new std::function<void()>(std::move(work)));
}

// A generator for one call on a stream: the numbers follow from the seed and the offset of the GPU's generator, which moves
// on at the time of the call.
IValue generator_of_call(const IValue& given) {
  at::Generator its =
      given.isNone() ? at::cuda::detail::getDefaultCUDAGenerator() : given.toGenerator();
  const std::scoped_lock lock(its.mutex());
  auto* const gpu = at::check_generator<at::CUDAGeneratorImpl>(its);
  constexpr std::uint64_t kNumbersOfCall = 4;
  const auto [seed, offset] = gpu->philox_engine_inputs(kNumbersOfCall);
  return at::detail::createCPUGenerator(seed * 0x9e3779b97f4a7c15U + offset);
}

class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack* stack)
      : op_(op),
        stack_(*stack),
        arguments_(stack->end() - static_cast<std::ptrdiff_t>(schema().arguments().size()),
                   stack->end()) {
    torch::jit::drop(*stack, arguments_.size());
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      cpu_.push_back(changed(arguments_[i], at::kCPU, [&](const at::Tensor& tensor) {
        note(tensor);
        return on_cpu(tensor);
      }));
      if (is_generator(i)) cpu_.back() = generator_of_call(arguments_[i]);
      if (is_empty_output(i)) {
        has_empty_output_ = true;
        cpu_.back() = at::empty({0}, arguments_[i].toTensor().options().device(at::kCPU));
      }
    }
  }

  void perform() {
    if (returns_written()) return perform_in_place();
    if (has_gpu_ && !has_host_ && perform_ahead()) return;
    cudaStreamSynchronize(stream());
    for (const IValue& each : run(op_, cpu_)) stack_.push_back(value_on_gpu(each));
  }

 private:
  const c10::FunctionSchema& schema() const { return op_.schema(); }
  static cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

  void note(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    has_gpu_ = has_gpu_ || tensor.is_cuda();
    has_host_ =
        has_host_ || (tensor.is_cpu() && !tensor.unsafeGetTensorImpl()->is_wrapped_number());
  }

  bool is_written(std::size_t argument) const {
    const auto* alias = schema().arguments()[argument].alias_info();
    return alias != nullptr && alias->isWrite();
  }

  bool is_generator(std::size_t argument) const {
    const auto type = schema().arguments()[argument].type();
    const auto optional = type->cast<c10::OptionalType>();
    return (optional ? optional->getElementType() : type)->kind() == c10::TypeKind::GeneratorType;
  }

  bool is_empty_output(std::size_t argument) const {
    return is_written(argument) && schema().arguments()[argument].is_out() &&
           arguments_[argument].isTensor() && arguments_[argument].toTensor().defined() &&
           arguments_[argument].toTensor().numel() == 0;
  }

  bool returns_written() const {
    return std::ranges::all_of(schema().returns(),
                               [](const auto& each) { return each.alias_info() != nullptr; });
  }

  void push_written() {
    std::size_t pushed = 0;
    for (std::size_t i = 0; i < arguments_.size() && pushed < schema().returns().size(); ++i) {
      if (!is_written(i)) continue;
      stack_.push_back(arguments_[i]);
      ++pushed;
    }
  }

  void perform_in_place() {
    if (has_empty_output_ || has_host_) {
      cudaStreamSynchronize(stream());
      run(op_, cpu_);
      if (has_empty_output_) fill_outputs();
    } else {
      queue(stream(), [op = op_, arguments = cpu_] { run(op, arguments); });
    }
    push_written();
  }

  // An empty output gets the size of the result.
  void fill_outputs() {
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (!is_written(i)) continue;
      const at::Tensor result = cpu_[i].toTensor(), output = arguments_[i].toTensor();
      if (output.sizes() == result.sizes()) continue;
      output.resize_(result.sizes());
      on_cpu(output).copy_(result);
    }
  }

  // False: the form of the result is not known.
  bool perform_ahead() {
    if (!op_.hasKernelForDispatchKey(c10::DispatchKey::Meta)) return false;
    Stack forms;
    try {
      Values of_forms;
      for (const IValue& each : arguments_) of_forms.push_back(changed(each, at::kMeta, form_of));
      forms = run(op_, of_forms);
    } catch (const std::exception&) {
      return false;
    }
    for (const IValue& each : forms) {
      if (!each.isTensor() && !each.isTensorList()) return false;
    }
    Values results;
    for (const IValue& each : forms) {
      stack_.push_back(value_on_gpu(each));
      results.push_back(changed(stack_.back(), at::kCPU, on_cpu));
    }
    queue(stream(), [op = op_, arguments = cpu_, results] {
      const Stack computed = run(op, arguments);
      for (std::size_t i = 0; i < results.size(); ++i) copy_to(results[i], computed[i]);
    });
    return true;
  }

  const c10::OperatorHandle op_;
  Stack& stack_;
  const Values arguments_;
  Values cpu_;  // the same, on the same memory, for the CPU
  bool has_gpu_ = false, has_host_ = false, has_empty_output_ = false;
};

void emulate(const c10::OperatorHandle& op, Stack* stack) { Call(op, stack).perform(); }

// The CPU's kernel takes no generator.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  if (!train.value_or(true)) {
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {input * mask * (p < 1 ? 1 / (1 - p) : 0.0), mask};
}

// ---- SyncBatchNorm, whose operators have no kernel for the CPU

using Optional = std::optional<at::Tensor>;

std::vector<std::int64_t> all_but_channels(const at::Tensor& input) {
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t each = 2; each < input.dim(); ++each) dimensions.push_back(each);
  return dimensions;
}

at::Tensor by_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = -1;
  return values.view(shape);
}

std::tuple<at::Tensor, at::Tensor> batch_norm_stats(const at::Tensor& input, double eps) {
  const auto [variance, mean] = at::var_mean(input, all_but_channels(input), /*unbiased=*/false);
  return {mean, (variance + eps).rsqrt()};
}

at::Tensor batch_norm_elemt(const at::Tensor& input, const Optional& weight, const Optional& bias,
                            const at::Tensor& mean, const at::Tensor& inverse_deviation, double) {
  at::Tensor output = (input - by_channel(mean, input)) * by_channel(inverse_deviation, input);
  if (weight) output = output * by_channel(*weight, input);
  if (bias) output = output + by_channel(*bias, input);
  return output;
}

// Means, deviations and counts have a row for each rank.
std::tuple<at::Tensor, at::Tensor> batch_norm_gather_stats_with_counts(
    const at::Tensor&, const at::Tensor& means, const at::Tensor& inverse_deviations,
    const Optional& running_mean, const Optional& running_var, double momentum, double eps,
    const at::Tensor& counts) {
  const at::Tensor count = counts.view({-1, 1}), total = counts.sum();
  const at::Tensor mean = (means * count).sum(0) / total;
  const at::Tensor variances = inverse_deviations.square().reciprocal() - eps;
  const at::Tensor squares = ((variances + (means - mean).square()) * count).sum(0);
  if (running_mean) running_mean->mul_(1 - momentum).add_(mean, momentum);
  if (running_var) running_var->mul_(1 - momentum).add_(squares / (total - 1), momentum);
  return {mean, (squares / total + eps).rsqrt()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm_backward_reduce(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& mean,
    const at::Tensor& inverse_deviation, const Optional&, bool, bool, bool) {
  const auto dimensions = all_but_channels(input);
  const at::Tensor sum = gradient.sum(dimensions);
  const at::Tensor product = (gradient * (input - by_channel(mean, input))).sum(dimensions);
  return {sum, product, product * inverse_deviation, sum.clone()};
}

at::Tensor batch_norm_backward_elemt(const at::Tensor& gradient, const at::Tensor& input,
                                     const at::Tensor& mean, const at::Tensor& inverse_deviation,
                                     const Optional& weight, const at::Tensor& sum,
                                     const at::Tensor& product, const at::Tensor& counts) {
  const at::Tensor total = counts.sum();
  const at::Tensor slope = product / total * inverse_deviation.square();
  const at::Tensor rest = gradient - by_channel(sum / total, input) -
                          (input - by_channel(mean, input)) * by_channel(slope, input);
  const at::Tensor output = rest * by_channel(inverse_deviation, input);
  return weight ? output * by_channel(*weight, input) : output;
}

// These need no kernel of the device.
const std::set<std::string>& native_operators() {
  static const std::set<std::string> names = {"empty",
                                              "empty_strided",
                                              "as_strided",
                                              "view",
                                              "_reshape_alias",
                                              "resize_",
                                              "set_",
                                              "resize_as_",
                                              "unfold",
                                              "_local_scalar_dense",
                                              "is_pinned",
                                              "_pin_memory",
                                              "is_set_to",
                                              "record_stream",
                                              "native_dropout",
                                              "_efficientzerotensor",
                                              "_has_same_storage_numel"};
  return names;
}

bool is_to_be_emulated(const c10::OperatorHandle& op, const std::string& name) {
  if (native_operators().contains(name)) return false;
  if (name != "copy_" && !op.hasKernelForDispatchKey(c10::DispatchKey::CUDA)) return false;
  const auto is_view = [](const c10::Argument& each) {
    return each.alias_info() != nullptr && !each.alias_info()->isWrite();
  };
  return op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU) &&
         std::ranges::none_of(op.schema().returns(), is_view);
}

class Silent : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

class Operators {
 public:
  Operators() {
    Silent silent;  // kernels of CUDA are replaced
    const c10::WarningUtils::WarningHandlerGuard guard(&silent);
    at::globalContext().setUserEnabledCuDNN(false);
    library_.impl("native_dropout", &native_dropout);
    library_.impl("batch_norm_stats", &batch_norm_stats);
    library_.impl("batch_norm_elemt", &batch_norm_elemt);
    library_.impl("batch_norm_gather_stats_with_counts", &batch_norm_gather_stats_with_counts);
    library_.impl("batch_norm_backward_reduce", &batch_norm_backward_reduce);
    library_.impl("batch_norm_backward_elemt", &batch_norm_backward_elemt);
    constexpr std::string_view kNamespace = "aten::";
    for (const c10::OperatorName& each : c10::Dispatcher::singleton().getAllOpNames()) {
      if (!each.name.starts_with(kNamespace)) continue;
      const std::string name = each.name.substr(kNamespace.size());
      const auto op = c10::Dispatcher::singleton().findSchema(each);
      if (!op || !is_to_be_emulated(*op, name)) continue;
      const std::string full = each.overload_name.empty() ? name : name + "." + each.overload_name;
      library_.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&emulate>());
    }
  }

 private:
  torch::Library library_{torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__};
};

[[maybe_unused]] Operators* const installed = new Operators;  // until the process ends

}  // namespace
