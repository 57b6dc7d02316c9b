#include "ddprun/recoverable.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <typeinfo>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ddprun/gradients.h"
#include "ddprun/log.h"
#include "ddprun/serialize.h"
#include "worker_lib/checkpoint/state_arrays.h"
#include "worker_lib/group/context_access.h"
#include "worker_lib/group/leave_vote.h"
#include "worker_lib/group/recovery.h"
#include "worker_lib/recover/optimizer_options.h"
#include "worker_lib/recover/shared_state.h"

namespace ddprun {
namespace {

using detail::ContextAccess;
using torch::Tensor;

// Where all tensors of the state lie in one rank, for those that have none yet.
struct Description {
  struct Entry {
    std::string name;
    std::int8_t type = 0;
    std::vector<std::int64_t> sizes;
    template <typename Fields>
    void fields(Fields& field) {
      field(name, type, sizes);
    }
  };
  std::vector<Entry> tensors;
  std::string layout;                   // of the reducer's buckets
  std::string options;                  // the optimizer's, after the last step that is committed
  std::vector<std::string> replicated;  // states
  std::string told;                     // by Recovery
  template <typename Fields>
  void fields(Fields& field) {
    field(tensors, layout, options, replicated, told);
  }
};

// Torch's default generator on the CPU. Its own state as a tensor has twice the bytes and takes a microsecond.
struct GeneratorState {
  at::mt19937_data_pod engine;
  std::optional<float> next_float;
  std::optional<double> next_double;

  static GeneratorState of_this_process() {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::scoped_lock lock(generator.mutex());
    auto* const impl = at::check_generator<at::CPUGeneratorImpl>(generator);
    GeneratorState state;
    std::memset(static_cast<void*>(&state), 0, sizeof state);  // with the gaps, which are compared
    state.engine = impl->engine().data();
    state.next_float = impl->next_float_normal_sample();
    state.next_double = impl->next_double_normal_sample();
    return state;
  }
  void put_back() const {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::scoped_lock lock(generator.mutex());
    auto* const impl = at::check_generator<at::CPUGeneratorImpl>(generator);
    at::mt19937 whole;
    whole.set_data(engine);
    impl->set_engine(whole);
    impl->set_next_float_normal_sample(next_float);
    impl->set_next_double_normal_sample(next_double);
  }
};

void append_tensor(ByteWriter& writer, const Tensor& tensor) {
  const Tensor dense = tensor.is_contiguous() ? tensor : tensor.contiguous();
  writer.bytes(dense.const_data_ptr(), dense.nbytes());
}

Tensor bytes_of(const Tensor& tensor) {
  return tensor.detach().contiguous().view({-1}).view(torch::kByte);
}

// On a GPU with one copy of all, and so one wait for it.
void append_tensors(ByteWriter& writer, const std::vector<Tensor>& tensors) {
  if (!tensors.empty() && std::ranges::none_of(tensors, &Tensor::is_cpu)) {
    std::vector<Tensor> parts;
    std::ranges::transform(tensors, std::back_inserter(parts), bytes_of);
    return append_tensor(writer, torch::cat(parts).cpu());
  }
  for (const Tensor& tensor : tensors) append_tensor(writer, tensor.detach().cpu());
}

// A module's member may be a reference to its buffer's place, so that an assignment gives it another tensor, also of other
// sizes: all are looked up each time.
void append_buffers(ByteWriter& writer, const std::vector<Tensor>& buffers) {
  writer.count(buffers.size());
  for (const Tensor& buffer : buffers) {
    Codec<std::int8_t>::write(writer, static_cast<std::int8_t>(buffer.scalar_type()));
    writer.count(static_cast<std::size_t>(buffer.dim()));
    writer.bytes(buffer.sizes().data(), buffer.sizes().size() * sizeof(std::int64_t));
  }
  append_tensors(writer, buffers);
}

void restore_buffers(ByteReader& reader, const torch::nn::Module& module) {
  const std::vector<Tensor> buffers = module.buffers();
  if (reader.count() != buffers.size()) {
    throw UsageError(
        "the model has not as many buffers as before this step: register all of them before its "
        "first step");
  }
  const torch::NoGradGuard no_grad;
  std::vector<Tensor> states;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const auto type = static_cast<torch::ScalarType>(Codec<std::int8_t>::read(reader));
    std::vector<std::int64_t> sizes(reader.count(sizeof(std::int64_t)));
    reader.bytes(sizes.data(), sizes.size() * sizeof(std::int64_t));
    states.push_back(torch::empty(sizes, type));
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    reader.bytes(states[i].mutable_data_ptr(), states[i].nbytes());
    Tensor buffer = buffers[i];
    const bool fits =
        buffer.scalar_type() == states[i].scalar_type() && buffer.sizes() == states[i].sizes();
    if (fits) {
      buffer.copy_(states[i]);
    } else {
      buffer.set_data(states[i].to(buffer.device()));
    }
  }
}

// Small ones together, up to kTogetherBytes: each call has its price, and models have thousands of them.
constexpr std::size_t kSmallBytes = 256 << 10;
constexpr std::size_t kTogetherBytes = 4 << 20;

void broadcast_together(Group& group, const std::vector<Tensor>& tensors, int source) {
  if (tensors.empty()) return;
  const bool is_source = group.rank() == source;
  std::int64_t size = 0;
  std::vector<Tensor> parts;
  for (const Tensor& tensor : tensors) {
    size += static_cast<std::int64_t>(tensor.nbytes());
    if (is_source) parts.push_back(bytes_of(tensor).to(group.device()));
  }
  const Tensor all = is_source
                         ? torch::cat(parts)
                         : torch::empty({size}, torch::dtype(torch::kByte).device(group.device()));
  group.broadcast(all, source);
  if (is_source) return;
  std::int64_t at = 0;
  for (const Tensor& tensor : tensors) {
    const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
    // A copy, since a view as another type must lie as that type does.
    const Tensor part = all.narrow(0, at, bytes).clone();
    tensor.detach().copy_(part.view(tensor.scalar_type()).view(tensor.sizes()));
    at += bytes;
  }
}

void broadcast_all(Group& group, const std::vector<Tensor>& tensors, int source) {
  std::vector<Tensor> together;
  std::size_t size = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.nbytes() > kSmallBytes) {
      group.broadcast(tensor, source);
      continue;
    }
    if (tensor.numel() == 0) continue;
    if (size + tensor.nbytes() > kTogetherBytes) {
      broadcast_together(group, std::exchange(together, {}), source);
      size = 0;
    }
    size += tensor.nbytes();
    together.push_back(tensor);
  }
  broadcast_together(group, together, source);
}

// The first steps, in which a change that is not carried is an error, and contents of buffers are compared where later steps
// compare marks.
constexpr int kFirstSteps = 3;

constexpr char kOwnPart[] = "rank's own part ";

// Of a GPU: it has its own numbers, and its state is a few bytes. A Generator is a handle.
std::string state_of(at::Generator generator) {
  const std::scoped_lock lock(generator.mutex());
  std::string state;
  ByteWriter writer(state);
  append_tensor(writer, generator.get_state());
  return state;
}

void put_back(at::Generator generator, std::string_view state) {
  const Tensor bytes = torch::empty({static_cast<std::int64_t>(state.size())}, torch::kByte);
  std::memcpy(bytes.mutable_data_ptr(), state.data(), state.size());
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(bytes);
}

}  // namespace

struct Recoverable::Parts final : RecoverableState {
  // What append_to() had last for this rank only.
  struct Own {
    bool is_of_this_attempt = false;
    std::string of_process;  // random numbers, …
    detail::TensorMarks marks_of_buffers;
    std::string buffers;
    std::string values;
    std::string parts;
  };

  Parts(Context& its_context, torch::nn::Module& its_module, GradientReducer& its_reducer,
        torch::optim::Optimizer& its_optimizer)
      : context(its_context),
        module(its_module),
        reducer(its_reducer),
        optimizer(its_optimizer),
        recovery(ContextAccess::recovery(its_context)),
        parameters(its_module.parameters()),
        beside(parameters_beside(its_module, its_optimizer)) {
    parameters.insert(parameters.end(), beside.begin(), beside.end());
    if (context.device().is_cuda()) {
      of_gpu = at::globalContext().defaultGenerator(context.device());
    }
  }

  void append_to(std::string& state) override {
    ByteWriter writer(state);
    const std::size_t begin = state.size();
    append_process(writer);
    const std::size_t begin_of_buffers = state.size();
    const std::vector<Tensor> buffers = module.buffers();
    append_buffers(writer, buffers);
    const std::size_t begin_of_values = state.size();
    append_values(writer);
    const std::size_t begin_of_parts = state.size();
    append_parts(writer);
    last_own.is_of_this_attempt = true;
    last_own.of_process.assign(state, begin, begin_of_buffers - begin);
    last_own.marks_of_buffers = detail::marks_of(buffers);
    last_own.buffers.assign(state, begin_of_buffers, begin_of_values - begin_of_buffers);
    last_own.values.assign(state, begin_of_values, begin_of_parts - begin_of_values);
    last_own.parts.assign(state, begin_of_parts);
    // After the parts: one that moves the options (a schedule) has set its own of that moment.
    append_options(writer, optimizer);
    for (Stateful* const part : replicated) Codec<std::string>::write(writer, part->state_dict());
  }
  void append_process(ByteWriter& writer) const {
    const GeneratorState generator = GeneratorState::of_this_process();
    writer.bytes(&generator, sizeof generator);
    if (of_gpu.defined()) Codec<std::string>::write(writer, state_of(of_gpu));
    const LeaveVote::State vote = ContextAccess::leave_vote(context).state();
    writer.bytes(&vote, sizeof vote);
    const bool must_broadcast = reducer.must_broadcast_buffers();
    writer.bytes(&must_broadcast, sizeof must_broadcast);
  }
  void append_values(ByteWriter& writer) const {
    for (const auto& [data, size] : values) writer.bytes(data, size);
  }
  void append_parts(ByteWriter& writer) const {
    for (const auto& part : own) Codec<std::string>::write(writer, part->state_dict());
  }

  void restore(std::string_view state, bool with_replicated) override {
    ByteReader reader(state);  // of this very program, with what it had kept
    GeneratorState generator;
    reader.bytes(&generator, sizeof generator);
    generator.put_back();
    if (of_gpu.defined()) put_back(of_gpu, Codec<std::string>::read(reader));
    LeaveVote::State vote;
    reader.bytes(&vote, sizeof vote);
    ContextAccess::leave_vote(context).restore(vote, LeaveVote::Clock::now());
    bool must_broadcast = true;
    reader.bytes(&must_broadcast, sizeof must_broadcast);
    reducer.set_must_broadcast_buffers(must_broadcast);
    restore_buffers(reader, module);
    for (const auto& [data, size] : values) reader.bytes(data, size);
    for (std::size_t i = 0; i < own.size(); ++i) {
      const std::string text = Codec<std::string>::read(reader);
      own[i]->load_state_dict(text);
      if (own[i]->state_dict() != text) not_restored.insert(i);
    }
    restore_options(reader, optimizer);
    for (Stateful* const part : replicated) {
      const std::string text = Codec<std::string>::read(reader);
      if (with_replicated) part->load_state_dict(text);
    }
    zero_grad(parameters);
  }

  std::uint64_t version() override {
    std::uint64_t sum = 0;
    for (const Tensor& parameter : parameters) sum += parameter._version();
    return sum;
  }

  std::string share(int source, bool lacks_it, std::string told) override {
    Group& group = context;
    const bool is_source = group.rank() == source;
    Description description;
    NamedTensors tensors;
    const torch::nn::Module whole = with_parameters_beside(module, optimizer);
    if (!lacks_it) tensors = state_of(whole, optimizer);
    if (const std::string sparse = first_sparse(tensors); !sparse.empty()) throw UsageError(sparse);
    comparison.emplace();
    compared_from = -1;
    not_restored.clear();
    if (is_source) {
      for (const auto& [name, tensor] : tensors) {
        description.tensors.push_back(
            {name, static_cast<std::int8_t>(tensor.scalar_type()), tensor.sizes().vec()});
      }
      description.layout = reducer.state_dict();
      description.options = options_after_step;
      description.told = std::move(told);
      for (Stateful* const part : replicated) description.replicated.push_back(part->state_dict());
    }
    description = group.broadcast_object(std::move(description), source);
    reducer.regroup(group, description.layout);
    std::vector<Described> arrays;
    for (const auto& each : description.tensors) {
      arrays.push_back({each.name, static_cast<torch::ScalarType>(each.type), each.sizes});
    }
    std::vector<Tensor> in_order;
    if (lacks_it) {
      shape_buffers(arrays);
      in_order = places_of(arrays, whole);
    }
    for (const auto& each : description.tensors) {
      if (lacks_it) break;
      const auto at = tensors.find(each.name);
      if (at == tensors.end()) {
        throw UsageError("the ranks do not have the same state: rank " + std::to_string(source) +
                         " has " + each.name);
      }
      in_order.push_back(at->second);
    }
    const std::set<std::string, std::less<>> own_names = names_of_buffers();
    for (std::size_t i = 0; i < in_order.size(); ++i) {
      // With a count of versions of its own: version() says what steps have changed.
      in_order[i] = in_order[i].variable_data();
      // This rank's own stay, or come from its mirror.
      if (!is_source && own_names.contains(arrays[i].name)) in_order[i] = in_order[i].clone();
    }
    const auto begun = std::chrono::steady_clock::now();
    broadcast_all(group, in_order, source);
    std::size_t bytes = 0;
    for (const Tensor& tensor : in_order) bytes += tensor.nbytes();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begun;
    log::debug("model and optimizer, ", bytes >> 20, " MiB, from rank ", source, " in ",
               took.count(), " ms");
    if (!lacks_it) return description.told;
    take_state(arrays, in_order, whole, optimizer);
    options_after_step = description.options;
    set_options_after_step();
    for (std::size_t i = 0; i < replicated.size(); ++i) {
      replicated[i]->load_state_dict(description.replicated.at(i));
    }
    return description.told;
  }

  bool is_compared() const override { return !comparison || comparison->is_through(); }

  // Around one attempt at a step.
  void make(const std::function<void()>& f) {
    last_own.is_of_this_attempt = false;
    f();
    recovery->await_queued_calls();  // calls after the last backward()
    const std::string why_not = check_step();
    note_options_after_step();
    if (comparison) compare();
    if (!why_not.empty()) recovery->refuse(why_not);
  }

  void note_options_after_step() {
    options_after_step.clear();
    ByteWriter writer(options_after_step);
    append_options(writer, optimizer);
  }
  void set_options_after_step() {
    ByteReader reader(options_after_step);
    restore_options(reader, optimizer);
  }

  // A sentence on what would be lost with a rank that dies, without a word; empty: nothing.
  std::string check_step() {
    const bool is_first = steps_made < kFirstSteps;
    steps_made += is_first ? 1 : 0;
    if (!recovery->may_recover()) return {};
    if (is_first) {
      std::string sparse =
          first_sparse(state_of(with_parameters_beside(module, optimizer), optimizer));
      if (!sparse.empty()) return sparse;
    }
    if (!last_own.is_of_this_attempt) return {};  // the step has given nothing to others
    const auto is_still = [this](const std::string& before, const auto& append) {
      scratch.clear();
      ByteWriter writer(scratch);
      append(writer);
      return scratch == before;
    };
    // A part may have to wait for the GPU to say its state, as the Trainer's does.
    const bool are_parts_compared = is_first || context.device().is_cpu();
    if (!is_still(last_own.values, [this](ByteWriter& writer) { append_values(writer); }) ||
        (are_parts_compared &&
         !is_still(last_own.parts, [this](ByteWriter& writer) { append_parts(writer); }))) {
      const std::string why =
          "a step changes what was given to Recoverable::keep() after its backward(), and a rank "
          "that dies then would continue without the change: change it before backward() or after "
          "Recoverable::step(), or use keep_replicated()";
      if (is_first) throw UsageError(why);
      return why;
    }
    const std::vector<Tensor> buffers = module.buffers();
    const bool are_buffers_compared =
        is_first || last_own.marks_of_buffers != detail::marks_of(buffers);
    if (is_still(last_own.of_process, [this](ByteWriter& writer) { append_process(writer); }) &&
        (!are_buffers_compared || is_still(last_own.buffers, [&buffers](ByteWriter& writer) {
          append_buffers(writer, buffers);
        }))) {
      return {};
    }
    return "a step changes a buffer or draws random numbers after its backward(): do it before "
           "backward() or after Recoverable::step()";
  }

  // Steps may have given them other sizes than the set-up did.
  void shape_buffers(const std::vector<Described>& arrays) const {
    for (const auto& item : module.named_buffers()) {
      const auto its =
          std::ranges::find(arrays, std::string(kModelPrefix) + item.key(), &Described::name);
      if (its == arrays.end()) continue;
      Tensor buffer = item.value();
      if (buffer.scalar_type() == its->type && buffer.sizes() == its->sizes) continue;
      buffer.set_data(torch::empty(its->sizes, buffer.options().dtype(its->type)));
    }
  }

  std::set<std::string, std::less<>> names_of_buffers() const {
    std::set<std::string, std::less<>> names;
    for (const auto& item : module.named_buffers()) {
      names.insert(std::string(kModelPrefix) + item.key());
    }
    return names;
  }

  // After a replacement, before a step is committed. If a rank is lost meanwhile the step counts, and the next
  // generation is compared.
  void compare() {
    ModelDescription compared = described_options(optimizer);
    for (std::size_t i = 0; i < replicated.size(); ++i) {
      compared.emplace_back("part " + std::to_string(i) + " that was given to keep_replicated()",
                            replicated[i]->state_dict());
    }
    for (std::size_t i = 0; i < own.size(); ++i) {
      // With the rank, so that it differs also where no rank has restored it.
      compared.emplace_back(kOwnPart + std::to_string(i) + " given to keep()",
                            not_restored.contains(i)
                                ? "not restored by rank " + std::to_string(context.rank())
                                : "restored");
    }
    SharedStateComparison::Result result;
    try {
      result = comparison->next(context, compared, [this] {
        NamedTensors tensors = state_of(with_parameters_beside(module, optimizer), optimizer);
        for (const std::string& name : names_of_buffers()) tensors.erase(name);
        return tensors;
      });
    } catch (const GroupLost&) {
      return;
    }
    const std::int64_t step = recovery->committed() + 1;
    if (compared_from < 0) compared_from = step;
    if (result.difference.empty()) return;
    std::string why = result.difference + " in step " + std::to_string(step) +
                      " of this round, after a rank was replaced in step " +
                      std::to_string(compared_from);
    if (result.difference.starts_with(kOwnPart)) {
      why += ": load_state_dict() must restore all that state_dict() says";
    } else if (!result.is_of_tensors) {
      why += ": give Recoverable::keep() what the loop computes it from";
    } else if (step > compared_from) {
      why += "; a checkpoint that was saved since then is suspect";
    }
    recovery->refuse(why, /*nor_later=*/true);
    throw Failure(ErrorCode::kDataLoss, why);
  }

  Context& context;
  torch::nn::Module& module;
  GradientReducer& reducer;
  torch::optim::Optimizer& optimizer;
  std::shared_ptr<Recovery> recovery;
  at::Generator of_gpu;            // the rank's; undefined on the CPU
  std::vector<Tensor> parameters;  // the model's, and the optimizer's only
  std::vector<Tensor> beside;
  std::vector<std::pair<void*, std::size_t>> values;
  std::vector<std::shared_ptr<Stateful>> own;
  std::unordered_set<const void*> kept;  // where it is
  std::vector<Stateful*> replicated;
  std::string options_after_step;                   // the last one that is over
  std::optional<SharedStateComparison> comparison;  // since the last replacement
  std::int64_t compared_from = -1;                  // the number of the step
  std::set<std::size_t> not_restored;               // parts in `own`, since then
  int steps_made = 0;                               // at most kFirstSteps
  Own last_own;
  std::string scratch;
};

Recoverable::Recoverable(Context& context, torch::nn::Module& module, GradientReducer& reducer,
                         torch::optim::Optimizer& optimizer)
    : parts_(std::make_unique<Parts>(context, module, reducer, optimizer)) {}

Recoverable::~Recoverable() {
  if (parts_->recovery) parts_->recovery->leave();
}

void Recoverable::keep_bytes(void* data, std::size_t size) {
  parts_->values.emplace_back(data, size);
  parts_->kept.insert(data);
}

void Recoverable::keep_part(std::shared_ptr<Stateful> part, const void* place) {
  parts_->own.push_back(std::move(part));
  parts_->kept.insert(place);
}

void Recoverable::keep_replicated(Stateful& part) {
  parts_->replicated.push_back(&part);
  parts_->kept.insert(&part);
}

void Recoverable::check_is_carried(const void* place, const char* what) const {
  if (place == &parts_->module || place == &parts_->optimizer || parts_->kept.contains(place))
    return;
  throw UsageError(std::string("Recoverable::run() was given ") + what +
                   " that this Recoverable does not carry: give it to keep() or keep_replicated() "
                   "before join()");
}

void Recoverable::check_const(const std::vector<detail::TensorMarks>& now,
                              const std::vector<detail::TensorMarks>& before) {
  const auto changed = std::ranges::mismatch(now, before).in1;
  if (changed == now.end()) return;
  constexpr std::ptrdiff_t kFirst = 2;  // after the state
  throw UsageError("the function of Recoverable::run() writes into a tensor of its argument " +
                   std::to_string(changed - now.begin() + kFirst) +
                   ", which it was given as const, and a step that is made again would find what "
                   "the first attempt has written: write into a copy, into the state, or into a "
                   "buffer of the model");
}

namespace {

constexpr std::size_t kHooksMax = 8;  // 30 ns each

// A rank that computes gradients for a step which is lost would have the others wait for it.
void end_lost_backward(const std::vector<Tensor>& parameters,
                       const std::shared_ptr<Recovery>& recovery) {
  std::vector<Tensor> trained;
  std::ranges::copy_if(parameters, std::back_inserter(trained), &Tensor::requires_grad);
  const std::size_t every = std::max<std::size_t>(1, (trained.size() + kHooksMax - 1) / kHooksMax);
  for (std::size_t i = 0; i < trained.size(); i += every) {
    trained[i].register_hook([lost = std::weak_ptr(recovery)](const Tensor&) {
      if (const auto its = lost.lock()) its->end_lost_step();
    });
  }
}

}  // namespace

void Recoverable::join(const std::function<void()>& warm_up) {
  Parts& parts = *parts_;
  if (!parts.recovery) return;
  std::string why;
  if (kind_of(parts.optimizer).empty()) {
    why = "its optimizer (" + c10::demangle(typeid(parts.optimizer).name()) +
          ") is none whose state this library knows: SGD, Adam, AdamW, RMSprop and Adagrad";
  } else if (!are_options_known(parts.optimizer)) {
    why =
        "the options of its optimizer's parameter groups are of a class that this library does not "
        "know";
  } else if (parts.reducer.has_hook()) {
    why = "the model has a communication hook, which may have a memory of its own";
  } else if (!parts.parameters.empty() &&
             parts.parameters.front().device() != parts.context.device()) {
    why = "the model is not on the device of its rank";
  }
  if (!why.empty()) return parts.recovery->refuse(why);
  end_lost_backward(parts.parameters, parts.recovery);
  parts.note_options_after_step();
  parts.recovery->join(parts, warm_up);
}

void Recoverable::make_step(const std::function<void()>& f) {
  if (!parts_->recovery) return f();
  bool is_made = false;
  parts_->recovery->step([&] {
    parts_->make(f);
    is_made = true;
  });
  // It was committed by the other ranks, which had these options then.
  if (!is_made) parts_->set_options_after_step();
}

}  // namespace ddprun
