#include "ddprun/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <future>
#include <utility>
#include <vector>

#include "ddprun/better.h"
#include "ddprun/log.h"
#include "worker_lib/checkpoint/checkpoint_folder.h"
#include "worker_lib/checkpoint/checkpoint_metadata.h"
#include "worker_lib/checkpoint/rng_state.h"
#include "worker_lib/checkpoint/state_arrays.h"
#include "worker_lib/checkpoint/tensor_arrays.h"
#include "worker_lib/process/agent_link.h"

namespace ddprun {
namespace {

constexpr std::string_view kRngPrefix = "rng.";
constexpr std::int64_t kGreatestStep = 999'999'999'999;  // files are found by their names' order

// Rank 0's outcome, for all: an error is thrown on every rank, so that none waits for one that is
// gone.
template <typename Exception>
void throw_together(Context& context, const std::optional<Error>& error) {
  const std::string shared = context.broadcast(
      error ? std::to_string(static_cast<int>(error->code)) + " " + error->to_string() : "");
  if (shared.empty()) return;
  const std::size_t space = shared.find(' ');
  const auto code = static_cast<ErrorCode>(std::stoi(shared.substr(0, space)));
  throw Exception(Error{code, shared.substr(space + 1), {}});
}

template <typename T>
std::optional<Error> error_of(const Result<T>& result) {
  return result ? std::nullopt : std::optional<Error>(result.error());
}

bool improves(Best best, double metric, const std::optional<double>& so_far) {
  return best != Best::kNone &&
         is_better(metric, so_far, best == Best::kHighest ? Better::kHigher : Better::kLower);
}

// A checkpoint's bytes, taken apart: `rest` is the model's and the optimizer's.
struct Opened {
  CheckpointMetadata metadata;
  NamedTensors rng;
  NamedTensors rest;
};

Result<Opened> open(std::string_view bytes, const torch::optim::Optimizer& optimizer) {
  const auto content = safetensors::unpack(bytes);
  if (!content) return fail(content.error());
  auto metadata = metadata_of(content->metadata);
  if (!metadata) return fail(std::move(metadata.error()));
  if (const std::string kind = kind_of(optimizer); metadata->optimizer != kind) {
    return fail(ErrorCode::kInvalidArgument, "it was saved with the optimizer " +
                                                 metadata->optimizer + ", and this one is " +
                                                 (kind.empty() ? "not known" : kind));
  }
  auto tensors = tensors_of(content->arrays);
  if (!tensors) return fail(std::move(tensors.error()));
  Opened opened{std::move(*metadata), {}, {}};
  for (auto& [name, tensor] : *tensors) {
    (name.starts_with(kRngPrefix) ? opened.rng : opened.rest).emplace(name, std::move(tensor));
  }
  return opened;
}

}  // namespace

struct Checkpointer::Parts {
  Parts(Context& used_context, const std::string& path, const CheckpointOptions& used_options)
      : context(used_context),
        options(used_options),
        folder(path, std::max(used_options.keep_last, 1)) {}

  CheckpointMetadata describe(const TrainingPosition& position,
                              const torch::optim::Optimizer& optimizer,
                              std::optional<double> metric, bool is_best) const;
  void load_parts(const std::map<std::string, std::string>& states);

  Context& context;
  const CheckpointOptions options;
  std::map<std::string, Stateful*> kept;

  // Rank 0's alone.
  CheckpointFolder folder;
  ArrayBuffer buffer;
  std::optional<double> best_metric;          // of what is on the disk, and
  std::optional<double> best_metric_written;  // when what is being written is there
  // While it is valid, the folder and the buffer are the writing thread's.
  std::future<Result<CheckpointFolder::Warnings>> writing;
};

CheckpointMetadata Checkpointer::Parts::describe(const TrainingPosition& position,
                                                 const torch::optim::Optimizer& optimizer,
                                                 std::optional<double> metric, bool is_best) const {
  CheckpointMetadata metadata{
      position, kind_of(optimizer), metric, is_best ? metric : best_metric, {}};
  metadata.position.world_size = context.world_size();
  for (const auto& [name, part] : kept) metadata.parts.emplace(name, part->save_state());
  return metadata;
}

void Checkpointer::Parts::load_parts(const std::map<std::string, std::string>& states) {
  const auto warn = [this](const auto&... words) {  // once, not once a rank
    if (context.is_main_process()) log::warning(words...);
  };
  for (const auto& [name, part] : kept) {
    const auto state = states.find(name);
    if (state == states.end()) {
      warn("the checkpoint has no state of '", name, "': it begins as it is");
      continue;
    }
    try {
      part->load_state(state->second);
    } catch (const UsageError& error) {
      throw UsageError(Error(error.error()).with("part", name));
    }
  }
  for (const auto& [name, state] : states) {
    if (kept.count(name) == 0) {
      warn("the checkpoint has a state of '", name, "', which this program does not keep");
    }
  }
}

Checkpointer::Checkpointer(Context& context, const std::string& folder,
                           const CheckpointOptions& options)
    : parts_(std::make_unique<Parts>(context, folder, options)) {
  if (options.keep_last < 1) {
    throw UsageError("keep_last is " + std::to_string(options.keep_last) +
                     ": at least 1 checkpoint has to be kept");
  }
  std::optional<Error> error;
  if (context.is_main_process()) error = error_of(parts_->folder.prepare());
  throw_together<UsageError>(context, error);
}

Checkpointer::~Checkpointer() {
  if (!parts_->writing.valid()) return;
  if (const auto written = parts_->writing.get(); !written) {
    log::error("the last checkpoint was not saved: ", written.error().to_string());
  }
}

void Checkpointer::also_keep(std::string name, Stateful& part) {
  if (!parts_->kept.emplace(name, &part).second) {
    throw UsageError("two parts of the training are to be kept as '" + name +
                     "': give each a name of its own");
  }
}

void Checkpointer::save(const BareModule& model, torch::optim::Optimizer& optimizer,
                        const TrainingPosition& position, std::optional<double> metric) {
  Parts& parts = *parts_;
  const PhaseGuard saving(parts.context.link_.get(), WorkerPhase::kSaving);
  // Whatever the program did wrong is thrown here, on every rank alike.
  if (position.step < 0 || position.step > kGreatestStep) {
    throw UsageError("a checkpoint of step " + std::to_string(position.step) +
                     ": steps are counted from 0 to " + std::to_string(kGreatestStep));
  }
  auto state = state_of(model.get(), optimizer);
  if (!state) throw UsageError(std::move(state.error()));
  if (auto ok = check_storable(*state); !ok) throw UsageError(std::move(ok.error()));
  if (parts.options.is_asynchronous) wait();
  state->merge(gather_rng(parts.context));

  const bool is_best = metric && improves(parts.options.best, *metric, parts.best_metric);
  CheckpointMetadata metadata;
  std::exception_ptr thrown;  // by a part of the program's own
  if (parts.context.is_main_process()) {
    try {
      metadata = parts.describe(position, optimizer, metric, is_best);
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  if (!parts.kept.empty()) parts.context.throw_together(thrown, "saving a checkpoint");

  if (parts.context.is_main_process()) {
    parts.best_metric_written = metadata.best_metric;
    parts.buffer.copy(*state);
    parts.writing = std::async(std::launch::async, [&parts, step = position.step, is_best,
                                                    metadata = std::move(metadata)] {
      const auto head = safetensors::pack_head({strings_of(metadata), parts.buffer.arrays()});
      if (!head) return Result<CheckpointFolder::Warnings>(fail(head.error()));
      return parts.folder.write(step, {*head, parts.buffer.bytes()}, is_best);
    });
  }
  if (!parts.options.is_asynchronous) wait();
}

void Checkpointer::wait() {
  std::optional<Error> error;
  if (parts_->writing.valid()) {
    const auto written = parts_->writing.get();
    error = error_of(written);
    if (written) {
      parts_->best_metric = parts_->best_metric_written;
      for (const std::string& warning : *written) log::warning(warning);
    } else {
      error->message += "; the checkpoints before it remain";
    }
  }
  throw_together<Failure>(parts_->context, error);
}

std::optional<TrainingPosition> Checkpointer::resume(const BareModule& model,
                                                     torch::optim::Optimizer& optimizer) {
  Parts& parts = *parts_;
  Context& context = parts.context;
  if (parts.options.is_asynchronous) wait();
  std::optional<Error> error;
  CheckpointFolder::Found found;
  if (context.is_main_process()) {
    auto search = parts.folder.newest_whole();
    error = error_of(search);
    if (search) {
      for (const std::string& warning : search->warnings) log::warning(warning);
      if (search->found) found = std::move(*search->found);
    }
  }
  throw_together<UsageError>(context, error);
  const std::string path = context.broadcast(found.path);
  if (path.empty()) return std::nullopt;
  const std::string bytes = context.broadcast(std::move(found.bytes));

  try {
    Opened opened = value_or_throw(open(bytes, optimizer));
    value_or_throw(restore_state(opened.rest, model.get(), optimizer));
    const TrainingPosition& position = opened.metadata.position;
    if (!opened.rng.empty()) {
      restore_rng(opened.rng, context,
                  seed_of_new_rank(position.seed, position.step, context.rank()));
    }
    parts.load_parts(opened.metadata.parts);
    parts.best_metric = parts.folder.has_best() ? opened.metadata.best_metric : std::nullopt;
    return position;
  } catch (const Failure& failure) {
    throw UsageError(Error(failure.error()).with("checkpoint", path));
  }
}

}  // namespace ddprun
