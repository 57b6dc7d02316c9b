#include "ddprun/checkpoint.h"

#include <charconv>
#include <utility>

#include "ddprun/log.h"
#include "worker_lib/src/agent_link.h"
#include "worker_lib/src/checkpoint_folder.h"
#include "worker_lib/src/safetensors.h"
#include "worker_lib/src/state_arrays.h"

namespace ddprun {
namespace {

constexpr const char* kFormat = "1";
constexpr std::string_view kNotePrefix = "note.";

struct DtypeName {
  torch::ScalarType type;
  const char* name;
};
constexpr DtypeName kDtypes[] = {{torch::kFloat32, "F32"}, {torch::kFloat64, "F64"},
                                 {torch::kFloat16, "F16"}, {torch::kBFloat16, "BF16"},
                                 {torch::kInt64, "I64"},   {torch::kInt32, "I32"},
                                 {torch::kInt16, "I16"},   {torch::kInt8, "I8"},
                                 {torch::kUInt8, "U8"},    {torch::kBool, "BOOL"}};

Result<std::string> dtype_name(torch::ScalarType type) {
  for (const DtypeName& known : kDtypes) {
    if (known.type == type) return known.name;
  }
  return fail(ErrorCode::kInvalidArgument,
              std::string("safetensors has no name for tensors of ") + c10::toString(type));
}

Result<torch::Tensor> tensor_of(const safetensors::Array& array) {
  for (const DtypeName& known : kDtypes) {
    if (array.dtype != known.name) continue;
    torch::Tensor tensor = torch::empty(array.shape, torch::dtype(known.type));
    if (!array.bytes.empty()) {
      std::memcpy(tensor.mutable_data_ptr(), array.bytes.data(), array.bytes.size());
    }
    return tensor;
  }
  return fail(ErrorCode::kInvalidArgument,
              "array '" + array.name + "' has the type " + array.dtype + ", which is not handled");
}

safetensors::Metadata metadata_of(const TrainingPosition& position, const std::string& optimizer) {
  safetensors::Metadata metadata{{"format", "pt"},  // what Python's tools ask for
                                 {"ddprun_format", kFormat},
                                 {"optimizer", optimizer},
                                 {"epoch", std::to_string(position.epoch)},
                                 {"consumed", std::to_string(position.consumed)},
                                 {"step", std::to_string(position.step)},
                                 {"seed", std::to_string(position.seed)},
                                 {"world_size", std::to_string(position.world_size)}};
  for (const auto& [key, value] : position.notes) {
    metadata.emplace(std::string(kNotePrefix) + key, value);
  }
  return metadata;
}

template <typename Number>
Result<void> read_number(const safetensors::Metadata& metadata, const char* key, Number& to) {
  const auto at = metadata.find(key);
  if (at == metadata.end()) {
    return fail(ErrorCode::kDataLoss, std::string("its metadata lacks '") + key + "'");
  }
  const char* end = at->second.data() + at->second.size();
  const auto parsed = std::from_chars(at->second.data(), end, to);
  if (parsed.ec != std::errc{} || parsed.ptr != end) {
    return fail(ErrorCode::kDataLoss, std::string("its metadata's '") + key + "' is no number");
  }
  return {};
}

Result<TrainingPosition> position_of(const safetensors::Metadata& metadata) {
  TrainingPosition position;
  for (const auto& read :
       {read_number(metadata, "epoch", position.epoch),
        read_number(metadata, "consumed", position.consumed),
        read_number(metadata, "step", position.step), read_number(metadata, "seed", position.seed),
        read_number(metadata, "world_size", position.world_size)}) {
    if (!read) return fail(read.error());
  }
  for (const auto& [key, value] : metadata) {
    if (key.starts_with(kNotePrefix)) position.notes.emplace(key.substr(kNotePrefix.size()), value);
  }
  return position;
}

Result<TrainingPosition> load(std::string_view bytes, torch::nn::Module& model,
                              torch::optim::Optimizer& optimizer) {
  const auto content = safetensors::unpack(bytes);
  if (!content) return fail(content.error());
  const auto format = content->metadata.find("ddprun_format");
  if (format == content->metadata.end() || format->second != kFormat) {
    return fail(ErrorCode::kInvalidArgument,
                "it has another format than this program's (" + std::string(kFormat) + ")");
  }
  const auto saved_kind = content->metadata.find("optimizer");
  const std::string kind = kind_of(optimizer);
  if (saved_kind == content->metadata.end() || saved_kind->second != kind) {
    return fail(ErrorCode::kInvalidArgument, "it was saved with another optimizer than " + kind);
  }
  const auto position = position_of(content->metadata);
  if (!position) return position;
  NamedTensors tensors;
  for (const auto& array : content->arrays) {
    auto tensor = tensor_of(array);
    if (!tensor) return fail(std::move(tensor.error()));
    tensors.emplace(array.name, std::move(*tensor));
  }
  if (auto ok = restore_state(tensors, model, optimizer); !ok) return fail(ok.error());
  return position;
}

// Rank 0's outcome, for all: an error is thrown on every rank, so that none waits for one that is
// gone.
void throw_together(Context& context, const std::string& message) {
  const std::string shared = context.broadcast(message);
  if (!shared.empty()) throw UsageError(shared);
}

}  // namespace

Checkpointer::Checkpointer(Context& context, const std::string& folder, int keep_last)
    : context_(context), folder_(std::make_unique<CheckpointFolder>(folder, keep_last)) {
  std::string message;
  if (context.is_main_process()) {
    if (const auto ready = folder_->prepare(); !ready) message = ready.error().to_string();
  }
  throw_together(context, message);
}

Checkpointer::~Checkpointer() = default;

void Checkpointer::save(const torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                        const TrainingPosition& position) {
  if (!context_.is_main_process()) return;
  const PhaseGuard saving(context_.link_.get(), WorkerPhase::kSaving);
  const std::string kind = kind_of(optimizer);
  if (kind.empty()) throw UsageError("checkpoints know the optimizers SGD, Adam and AdamW only");
  const NamedTensors tensors = state_of(model, optimizer);
  safetensors::Content content{metadata_of(position, kind), {}};
  for (const auto& [name, tensor] : tensors) {
    content.arrays.push_back(
        {name,
         value_or_throw(dtype_name(tensor.scalar_type())),
         tensor.sizes().vec(),
         {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()}});
  }
  value_or_throw(folder_->write(position.step, safetensors::pack(content)));
}

std::optional<TrainingPosition> Checkpointer::resume(torch::nn::Module& model,
                                                     torch::optim::Optimizer& optimizer) {
  std::string message;
  CheckpointFolder::Found found;
  if (context_.is_main_process()) {
    auto search = folder_->newest_whole();
    if (!search) message = search.error().to_string();
    if (search) {
      for (const std::string& warning : search->warnings) log::warning(warning);
      if (search->found) found = std::move(*search->found);
    }
  }
  throw_together(context_, message);
  const std::string path = context_.broadcast(found.path);
  if (path.empty()) return std::nullopt;
  const std::string bytes = context_.broadcast(std::move(found.bytes));
  auto position = load(bytes, model, optimizer);
  if (!position) {
    throw Failure(std::move(position.error()).with("checkpoint", path));
  }
  return *position;
}

}  // namespace ddprun
