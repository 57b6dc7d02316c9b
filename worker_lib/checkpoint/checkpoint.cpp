#include "ddprun/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <future>
#include <optional>
#include <utility>
#include <vector>

#include "ddprun/log.h"
#include "worker_lib/checkpoint/checkpoint_folder.h"
#include "worker_lib/checkpoint/checkpoint_metadata.h"
#include "worker_lib/checkpoint/memory_tier.h"
#include "worker_lib/checkpoint/rng_state.h"
#include "worker_lib/checkpoint/state_arrays.h"
#include "worker_lib/checkpoint/tensor_arrays.h"
#include "worker_lib/group/agreement.h"
#include "worker_lib/group/context_access.h"
#include "worker_lib/group/recovery.h"
#include "worker_lib/process/agent_link.h"
#include "worker_lib/process/snapshot_memory.h"

namespace ddprun {
namespace {

constexpr std::string_view kRngPrefix = "rng.";
constexpr std::int64_t kGreatestStep = 999'999'999'999;  // files are found by their names' order

// On rank 0; what it throws there is thrown on every rank, so that none waits for one that is gone.
template <typename Function>
void on_main_process(Context& context, const std::string& doing, const Function& f) {
  detail::Outcome<void> outcome;
  // A standby of this rank leaves the folder, in which the rank itself is writing, alone.
  if (context.is_main_process() && !detail::ContextAccess::is_prepared(context)) outcome.of(f);
  detail::throw_together(context, outcome.thrown, doing);
}

// What a checkpoint holds, and where each of its arrays goes on this rank.
struct Opened {
  CheckpointMetadata metadata;
  std::vector<torch::Tensor> tensors;  // of model, optimizer and generators
};

Opened open(const safetensors::Metadata& strings, const std::vector<Described>& arrays,
            const torch::nn::Module& model, const torch::optim::Optimizer& optimizer) {
  Opened opened{metadata_of(strings), {}};
  if (const std::string kind = kind_of(optimizer); opened.metadata.optimizer != kind) {
    throw UsageError("it was saved with the optimizer " + opened.metadata.optimizer +
                     ", and this one is " + (kind.empty() ? "not known" : kind));
  }
  opened.tensors = places_of(arrays, model, kRngPrefix);
  return opened;
}

// The data, and after them the buffers.
std::vector<Described> arrays_of(const MemoryTier::Kept& kept) {
  auto arrays = described_by(kept.places);
  const auto buffers = described_by(kept.buffers);
  arrays.insert(arrays.end(), buffers.begin(), buffers.end());
  return arrays;
}

// Rank 0 reads the file's data and sends it, a piece after the other. Collective.
void receive(Context& context, const FileReader* file, const safetensors::Head& head,
             const Opened& opened, std::uint64_t file_size) {
  ArrayReceiver receiver(head.places, opened.tensors);
  broadcast_data(context, 0, file_size - head.size, receiver,
                 [&](std::uint64_t at, char* to, std::size_t size) {
                   on_main_process(context, "reading the checkpoint", [&] {
                     if (file->read(head.size + at, to, size) < size) {
                       throw Failure(ErrorCode::kDataLoss, "it became shorter while it was read");
                     }
                   });
                 });
}

}  // namespace

struct Checkpointer::Parts {
  Parts(Context& used_context, const std::string& path, const CheckpointOptions& used_options)
      : context(used_context),
        options(used_options),
        folder(path, std::max(used_options.keep_last, 1)),
        memory(used_context,
               // Without a link this process may only have inherited a worker's variables.
               detail::ContextAccess::link(used_context) != nullptr
                   ? SnapshotMemory::of_this_process()
                   : nullptr,
               used_options.memory_every) {
    is_best_unknown = is_prepared();
  }

  struct Snapshot {
    MemoryTier::Kept kept;
    Opened opened;
  };

  bool is_prepared() const { return detail::ContextAccess::is_prepared(context); }
  void take(const std::vector<Described>& arrays, const Opened& opened,
            const torch::nn::Module& model, torch::optim::Optimizer& optimizer);
  std::optional<double> best_before(std::int64_t step, double metric);
  void load_parts(const std::map<std::string, std::string>& states);
  CheckpointMetadata describe(const TrainingPosition& position,
                              const torch::optim::Optimizer& optimizer) const;
  std::optional<Snapshot> newest_snapshot(const torch::nn::Module& model,
                                          const torch::optim::Optimizer& optimizer);
  std::optional<TrainingPosition> continue_from(const Snapshot& snapshot,
                                                const torch::nn::Module& model,
                                                torch::optim::Optimizer& optimizer);
  std::optional<CheckpointFolder::Found> newest_on_disk(std::int64_t in_memory);
  std::optional<TrainingPosition> continue_from_disk(std::optional<CheckpointFolder::Found> found,
                                                     const torch::nn::Module& model,
                                                     torch::optim::Optimizer& optimizer);

  Context& context;
  const CheckpointOptions options;
  std::map<std::string, Stateful*> kept;
  std::optional<std::int64_t> step_on_disk;

  // Rank 0's alone.
  CheckpointFolder folder;
  ArrayBuffer buffer;
  std::optional<double> best_metric;          // of what is on the disk, and
  std::optional<double> best_metric_written;  // when what is being written is there
  bool is_best_unknown = false;  // only the process knew it whose place this one has taken
  // While it is valid, the folder and the buffer are the writing thread's.
  std::future<CheckpointFolder::Warnings> writing;

  MemoryTier memory;
  StateView kept_state;
};

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
      part->load_state_dict(state->second);
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

void Checkpointer::Parts::take(const std::vector<Described>& arrays, const Opened& opened,
                               const torch::nn::Module& model, torch::optim::Optimizer& optimizer) {
  kept_state.forget_optimizer();  // or its state of before would stay beside the new one
  take_state(arrays, opened.tensors, model, optimizer);
}

// On rank 0: the best metric of the checkpoints before this one, as the newest of them says. If this very one was
// written, but perhaps not linked as the best, it is the best again.
std::optional<double> Checkpointer::Parts::best_before(std::int64_t step, double metric) {
  folder.finish_best();
  const auto found = folder.has_best() ? folder.newest_whole().found : std::nullopt;
  if (!found) return std::nullopt;
  const auto best =
      metadata_of(safetensors::read_head(found->head, found->file.size()).metadata).best_metric;
  return found->step == step && best == metric ? std::nullopt : best;
}

// With the states of all parts; without a metric of its own.
CheckpointMetadata Checkpointer::Parts::describe(const TrainingPosition& position,
                                                 const torch::optim::Optimizer& optimizer) const {
  CheckpointMetadata metadata{position, kind_of(optimizer), std::nullopt, best_metric, {}};
  metadata.position.world_size = context.world_size();
  for (const auto& [name, part] : kept) metadata.parts.emplace(name, part->state_dict());
  return metadata;
}

Checkpointer::Checkpointer(Context& context, const std::string& folder,
                           const CheckpointOptions& options)
    : parts_(std::make_unique<Parts>(context, folder, options)) {
  if (options.memory_every < 0 && options.memory_every != kMemoryAuto) {
    throw UsageError("memory_every is " + std::to_string(options.memory_every) +
                     ": give a number of steps, 0 or kMemoryAuto");
  }
  if (options.keep_last < 1) {
    throw UsageError("keep_last is " + std::to_string(options.keep_last) +
                     ": at least 1 checkpoint has to be kept");
  }
  on_main_process(context, "opening the checkpoint folder", [this] { parts_->folder.prepare(); });
}

Checkpointer::~Checkpointer() {
  if (!parts_->writing.valid()) return;
  try {
    parts_->writing.get();
  } catch (const std::exception& error) {
    log::error("the last checkpoint was not saved: ", error.what());
  }
}

void Checkpointer::register_for_checkpointing(std::string name, Stateful& part) {
  if (!parts_->kept.emplace(name, &part).second) {
    throw UsageError("two parts of the training are to be kept as '" + name +
                     "': give each a name of its own");
  }
}

void Checkpointer::save(const BareModule& model, torch::optim::Optimizer& optimizer,
                        const TrainingPosition& position, std::optional<double> metric) {
  Parts& parts = *parts_;
  const PhaseGuard saving(detail::ContextAccess::link(parts.context), WorkerPhase::kSaving);
  // Whatever the program did wrong is thrown here, on every rank alike.
  if (position.step < 0 || position.step > kGreatestStep) {
    throw UsageError("a checkpoint of step " + std::to_string(position.step) +
                     ": steps are counted from 0 to " + std::to_string(kGreatestStep));
  }
  NamedTensors state = state_of(model.get(), optimizer);
  check_storable(state);
  if (parts.options.async_save) wait();
  state.merge(gather_rng(parts.context));

  if (metric && parts.context.is_main_process() && std::exchange(parts.is_best_unknown, false)) {
    parts.best_metric = parts.best_before(position.step, *metric);
  }
  const bool is_best =
      metric && parts.options.best && is_better(*metric, parts.best_metric, *parts.options.best);
  CheckpointMetadata metadata;
  on_main_process(parts.context, "saving a checkpoint",
                  [&] { metadata = parts.describe(position, optimizer); });
  metadata.metric = metric;
  parts.step_on_disk = position.step;
  if (is_best) metadata.best_metric = metric;

  if (parts.context.is_main_process()) {
    parts.best_metric_written = metadata.best_metric;
    parts.buffer.copy(state);
    parts.writing = std::async(std::launch::async, [&parts, step = position.step, is_best,
                                                    metadata = std::move(metadata)] {
      const auto data = parts.buffer.bytes();
      const auto head = safetensors::pack_head(strings_of(metadata), parts.buffer.places(), data);
      return parts.folder.write(step, {head, data}, is_best);
    });
  }
  if (!parts.options.async_save) wait();
}

void Checkpointer::wait() {
  Parts& parts = *parts_;
  on_main_process(parts.context, "saving a checkpoint", [&parts] {
    if (!parts.writing.valid()) return;
    try {
      for (const std::string& warning : parts.writing.get()) log::warning(warning);
      parts.best_metric = parts.best_metric_written;
    } catch (const Failure& failure) {
      throw Failure(failure.error().code,
                    failure.what() + std::string("; the checkpoints before it remain"));
    }
  });
}

void Checkpointer::release_memory() {
  wait();
  parts_->buffer = {};
  parts_->kept_state = {};
}

std::optional<std::int64_t> Checkpointer::step_on_disk() const { return parts_->step_on_disk; }

bool Checkpointer::keeps_after(std::int64_t step) const { return parts_->memory.is_due(step); }

void Checkpointer::keep(const BareModule& model, torch::optim::Optimizer& optimizer,
                        const TrainingPosition& position) {
  Parts& parts = *parts_;
  if (!parts.memory.is_due(position.step)) return;
  const PhaseGuard saving(detail::ContextAccess::link(parts.context), WorkerPhase::kSaving);
  StateView& state = parts.kept_state;
  state.update(model.get(), optimizer);
  check_storable(state.shared());
  check_storable(state.buffers());
  parts.memory.keep(position.step, state.shared(), state.buffers(),
                    [&] { return parts.describe(position, optimizer); });
}

// One that is another model's is passed over with a warning.
std::optional<Checkpointer::Parts::Snapshot> Checkpointer::Parts::newest_snapshot(
    const torch::nn::Module& model, const torch::optim::Optimizer& optimizer) {
  auto found = memory.find();
  if (!found) return std::nullopt;
  detail::Outcome<Opened> outcome;
  const auto open_here = [&] { return open(found->metadata, arrays_of(*found), model, optimizer); };
  outcome.of(open_here);
  try {
    detail::throw_together(context, outcome.thrown, "resuming");
  } catch (const Failure& failure) {
    if (context.is_main_process()) {
      log::warning("the snapshot of step ", found->choice.step,
                   " in memory is not used: ", failure.error().message);
    }
    return std::nullopt;
  }
  return Snapshot{std::move(*found), std::move(*outcome.value)};
}

// Nothing: its data are not whole, and model and optimizer have to be given another state.
std::optional<TrainingPosition> Checkpointer::Parts::continue_from(
    const Snapshot& snapshot, const torch::nn::Module& model, torch::optim::Optimizer& optimizer) {
  const auto& [found, opened] = snapshot;
  const TrainingPosition& position = opened.metadata.position;
  NamedTensors buffers;
  for (std::size_t i = 0; i < found.buffers.size(); ++i) {
    buffers.emplace(found.buffers[i].name, opened.tensors.at(found.places.size() + i));
  }
  if (!memory.restore(found, opened.tensors, buffers,
                      seed_of_new_rank(position.seed, position.step, context.rank()))) {
    return std::nullopt;
  }
  if (!is_prepared()) take(arrays_of(found), opened, model, optimizer);
  load_parts(opened.metadata.parts);
  best_metric = folder.has_best() ? opened.metadata.best_metric : std::nullopt;
  return position;
}

std::optional<TrainingPosition> Checkpointer::Parts::continue_from_disk(
    std::optional<CheckpointFolder::Found> found, const torch::nn::Module& model,
    torch::optim::Optimizer& optimizer) {
  const std::string path = context.broadcast(found ? found->path : std::string());
  if (path.empty()) return std::nullopt;
  const auto file_size = context.broadcast(found ? found->file.size() : std::uint64_t{0});
  const std::string bytes = context.broadcast(found ? std::move(found->head) : std::string());

  try {
    // All ranks take what follows, or none.
    safetensors::Head head;
    detail::Outcome<Opened> outcome;
    const auto open_here = [&] {
      head = safetensors::read_head(bytes, file_size);
      return open(head.metadata, described_by(head.places), model, optimizer);
    };
    outcome.of(open_here);
    detail::throw_together(context, outcome.thrown, "resuming");
    const Opened& opened = *outcome.value;
    const TrainingPosition& position = opened.metadata.position;
    // A standby that waits for a rank's place will be given the state that the others have then.
    if (!is_prepared()) {
      const auto recovery = detail::ContextAccess::recovery(context);
      const auto large = Recovery::unrecorded(recovery.get());
      receive(context, found ? &found->file : nullptr, head, opened, file_size);
      take(described_by(head.places), opened, model, optimizer);
      NamedTensors rng;
      for (std::size_t i = 0; i < head.places.size(); ++i) {
        const std::string& name = head.places[i].name;
        if (name.starts_with(kRngPrefix)) rng.emplace(name, opened.tensors[i]);
      }
      if (!rng.empty()) {
        restore_rng(rng, context, seed_of_new_rank(position.seed, position.step, context.rank()));
      }
    }
    load_parts(opened.metadata.parts);
    best_metric = folder.has_best() ? opened.metadata.best_metric : std::nullopt;
    return position;
  } catch (const Failure& failure) {
    throw UsageError(Error(failure.error()).with("checkpoint", path));
  }
}

std::optional<TrainingPosition> Checkpointer::resume(const BareModule& model,
                                                     torch::optim::Optimizer& optimizer) {
  Parts& parts = *parts_;
  if (parts.options.async_save) wait();
  std::optional<TrainingPosition> position;
  bool is_spoiled = false;  // model and optimizer, by a snapshot that is not whole
  for (bool is_decided = false; !is_decided;) {
    const auto snapshot = parts.newest_snapshot(model.get(), optimizer);
    auto found = parts.newest_on_disk(snapshot ? snapshot->kept.choice.step : -1);
    // Rank 0 knows.
    if (snapshot && !parts.context.broadcast(found.has_value())) {
      position = parts.continue_from(*snapshot, model.get(), optimizer);
      is_decided = position.has_value();
      is_spoiled = !is_decided;
    } else {
      position = parts.continue_from_disk(std::move(found), model.get(), optimizer);
      if (position) parts.step_on_disk = position->step;
      is_decided = true;
    }
  }
  if (!parts.is_prepared()) parts.memory.continue_from(position ? position->step : -1);
  if (!position && is_spoiled) {
    throw Failure(
        ErrorCode::kDataLoss,
        "the snapshots in memory are damaged, and there is no checkpoint on the disk: a restart "
        "begins anew");
  }
  return position;
}

// On rank 0: the newest whole checkpoint, if it is newer than this step.
std::optional<CheckpointFolder::Found> Checkpointer::Parts::newest_on_disk(std::int64_t in_memory) {
  std::optional<CheckpointFolder::Found> found;
  on_main_process(context, "looking for a checkpoint", [&] {
    // A file is read as a whole to see whether it is whole.
    const bool has_snapshot = in_memory >= 0;
    try {
      if (has_snapshot && folder.newest_step().value_or(-1) <= in_memory) return;
      auto search = folder.newest_whole();
      for (const std::string& warning : search.warnings) log::warning(warning);
      if (search.found && search.found->step > in_memory) found = std::move(search.found);
    } catch (const Failure& failure) {
      if (!has_snapshot) throw UsageError(failure.error());
      log::warning(failure.what());
    }
  });
  return found;
}

}  // namespace ddprun
