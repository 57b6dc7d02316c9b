#include "worker_lib/checkpoint/memory_tier.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "ddprun/log.h"
#include "ddprun/serialize.h"
#include "worker_lib/checkpoint/rng_state.h"
#include "worker_lib/group/context_access.h"
#include "worker_lib/group/recovery.h"

namespace ddprun {

// What only one rank has.
struct MemoryTier::OwnPart {
  NamedTensors generators, buffers;

  template <typename Fields>
  void fields(Fields& field) {
    field(generators, buffers);
  }
};

namespace {

constexpr std::uint64_t kOwnPage = 4096;
constexpr std::int64_t kLongestAuto = 10'000;  // steps
constexpr int kMeasuredFrom = 3;               // snapshots: the pages of both slots are there

struct SnapshotText {
  safetensors::Metadata metadata;
  std::string places;  // bytes of the places of the data, and of the buffers

  template <typename Fields>
  void fields(Fields& field) {
    field(metadata, places);
  }
};

std::uint64_t rounded(std::uint64_t bytes) { return (bytes + kOwnPage - 1) / kOwnPage * kOwnPage; }

}  // namespace

MemoryTier::MemoryTier(Context& context, std::shared_ptr<SnapshotMemory> memory, int every)
    : context_(context), every_(every), local_rank_(context.environment().local_rank) {
  if (every == 0) return;
  // Some agents may be of an earlier version.
  if (!context.all_of(memory != nullptr)) return;
  memory_ = std::move(memory);
  // Not all nodes know what a round before had found out.
  if (is_first_of_node() && !is_prepared()) memory_->set_due({});
}

bool MemoryTier::is_prepared() const { return detail::ContextAccess::is_prepared(context_); }

void MemoryTier::turn_off(const std::string& why) {
  if (is_first_of_node()) {
    log::warning("no snapshots in memory from here on: ", why,
                 "; the checkpoints on the disk go on");
  }
  is_off_ = true;
}

bool MemoryTier::is_due(std::int64_t step) {
  if (!memory_) return false;
  if (every_ > 0) return step % every_ == 0;
  // A process that takes a rank's place finds what the others have decided, and may come to the last one again.
  const auto due = due_ ? *due_ : memory_->due();
  return step == due.last || step >= due.next;
}

void MemoryTier::keep(std::int64_t step, const NamedTensors& shared, const NamedTensors& buffers,
                      const std::function<CheckpointMetadata()>& describe) {
  const auto recovery = detail::ContextAccess::recovery(context_);
  if (recovery && !recovery->are_replicas_compared()) return;
  const auto begun = Clock::now();
  try {
    if (!is_off_) write(step, shared, buffers, describe);
  } catch (const Failure& failure) {
    turn_off(failure.error().message);
  }
  if (every_ == kMemoryAuto) decide_next(step, begun);
}

void MemoryTier::write(std::int64_t step, const NamedTensors& shared, const NamedTensors& buffers,
                       const std::function<CheckpointMetadata()>& describe) {
  const ArrayLayout layout(shared);
  const OwnPart own{generator_states(context_), buffers};
  const std::string own_bytes = to_bytes(own);
  const SnapshotMemory::Shape shape{.ranks = context_.environment().local_world_size,
                                    .data_bytes = layout.size(),
                                    .own_bytes = rounded(own_bytes.size()),
                                    .layout = layout.sum()};
  if (shape_ && *shape_ != shape) {
    throw Failure(
        ErrorCode::kInvalidArgument,
        "the state of model or optimizer has another shape than when the first one was made");
  }
  if (!shape_) {
    memory_->use(shape);
    if (is_first_of_node()) {
      places_ = to_bytes(std::pair(layout.places(), ArrayLayout(buffers).places()));
    }
    shape_ = shape;
  }
  auto part = memory_->begin(local_rank_, step, context_.rank(), context_.world_size());
  layout.each_piece(
      part.begin, part.begin + part.share.size(),
      [&](const char* bytes, std::size_t size) { part.sum.copy(part.share.data(), bytes, size); });
  const std::string text =
      is_first_of_node() ? to_bytes(SnapshotText{strings_of(describe()), places_}) : "";
  if (!memory_->finish(part, text, own_bytes)) {
    throw Failure(ErrorCode::kInvalidArgument,
                  "another rank of this node has laid their memory out for another state");
  }
}

// A snapshot may take a hundredth of a step's time. The first rank's clock counts; all agree, also on whether
// there are to be more.
void MemoryTier::decide_next(std::int64_t step, Clock::time_point begun) {
  const auto now = Clock::now();
  std::int64_t next = 0;
  if (context_.is_main_process()) {
    next = step + 1;
    if (++made_ >= kMeasuredFrom && last_ && last_->first < step && begun > last_->second) {
      const double step_takes = static_cast<double>((begun - last_->second).count()) /
                                static_cast<double>(step - last_->first);
      const double steps = 100 * static_cast<double>((now - begun).count()) / step_takes;
      next = step + std::clamp<std::int64_t>(static_cast<std::int64_t>(steps), 1, kLongestAuto);
    }
  }
  constexpr auto kNever = std::numeric_limits<std::int64_t>::max();
  next = context_.all_reduce(is_off_ ? kNever : next, ReduceOp::MAX);
  if (next == kNever) is_off_ = true;
  due_ = {step, next};
  if (is_first_of_node()) memory_->set_due(*due_);
  last_ = {step, Clock::now()};
}

// ---- resuming

std::optional<MemoryTier::Kept> MemoryTier::find() {
  if (!memory_) return std::nullopt;
  const auto& place = context_.environment();
  std::string why;
  // What is there now is of steps that the worker has made since: a prepared standby offers none.
  const auto all = is_prepared() ? std::vector<SnapshotMemory::Found>() : memory_->find(&why);
  const auto warn = [this](const auto&... words) {
    if (is_first_of_node() && !is_prepared()) log::warning(words...);
  };
  if (!why.empty()) warn("the snapshots in memory are not used: ", why);
  SnapshotOffer offer;  // of the node; other ranks offer nothing
  if (is_first_of_node()) {
    offer = {context_.rank(), place.local_world_size, {}};
    for (const auto& found : all)
      offer.snapshots.push_back({found.step, found.world_size, found.ranks});
  }
  auto offers = context_.all_gather_object(offer);
  std::erase_if(offers, [](const SnapshotOffer& each) { return each.ranks == 0; });
  while (const auto choice = choose_snapshot(offers, context_.world_size())) {
    const auto here = std::ranges::find(all, choice->step, &SnapshotMemory::Found::step);
    Kept kept{*choice, {}, {}, {}, {}};
    bool is_whole = true;
    if (here != all.end()) {
      kept.found = *here;
      // Each rank compares what one of then has written.
      for (auto writer = local_rank_; writer < std::ssize(here->ranks);
           writer += place.local_world_size) {
        is_whole = is_whole && memory_->are_texts_whole(*here, static_cast<int>(writer));
      }
    }
    if (context_.all_of(is_whole)) {
      const std::string text = context_.broadcast(context_.rank() == choice->source && kept.found
                                                      ? std::string(memory_->text(*kept.found))
                                                      : std::string(),
                                                  choice->source);
      auto read = from_bytes<SnapshotText>(text);
      kept.metadata = std::move(read.metadata);
      using Places = std::vector<safetensors::Place>;
      std::tie(kept.places, kept.buffers) = from_bytes<std::pair<Places, Places>>(read.places);
      return kept;
    }
    warn("the snapshot of step ", choice->step, " in memory is damaged");
    for (SnapshotOffer& each : offers) {
      std::erase_if(each.snapshots,
                    [&](const auto& snapshot) { return snapshot.step == choice->step; });
    }
  }
  return std::nullopt;
}

bool MemoryTier::restore(const Kept& kept, const std::vector<torch::Tensor>& tensors,
                         const NamedTensors& buffers, std::uint64_t seed_of_new) {
  bool is_whole = true;
  if (!is_prepared()) {
    const auto recovery = detail::ContextAccess::recovery(context_);
    const auto large = Recovery::unrecorded(recovery.get());
    is_whole = restore_data(kept, tensors);
    const OwnPart own = own_part(kept);
    restore_generators(own.generators, context_, seed_of_new);
    const torch::NoGradGuard no_grad;
    for (const auto& [name, buffer] : buffers) torch::Tensor(buffer).copy_(own.buffers.at(name));
  }
  if (context_.all_of(is_whole)) return true;
  if (!is_prepared()) {
    if (is_first_of_node()) {
      log::warning("the snapshot of step ", kept.choice.step, " in memory is damaged");
    }
    if (kept.found && std::cmp_less(local_rank_, kept.found->ranks.size())) {
      memory_->forget(*kept.found, local_rank_);
    }
  }
  context_.barrier();  // before another rank looks again
  return false;
}

// The sums are taken while copying, which costs next to nothing.
bool MemoryTier::restore_data(const Kept& kept, const std::vector<torch::Tensor>& tensors) {
  ArrayReceiver receiver(kept.places, tensors);
  bool is_whole = true;
  if (kept.choice.is_data_everywhere) {
    for (int writer = 0; writer < std::ssize(kept.found->ranks); ++writer) {
      const auto share = memory_->share(*kept.found, writer);
      StreamSum sum;
      receiver.take(share, [&](char* to, const char*, std::size_t size) {
        sum.read(to, share.data(), size);
      });
      is_whole = is_whole && sum.finish() == memory_->sum_of_share(*kept.found, writer);
    }
    return is_whole;
  }
  const bool is_source = context_.rank() == kept.choice.source;
  if (is_source) {
    for (int writer = 0; writer < std::ssize(kept.found->ranks); ++writer) {
      is_whole = is_whole && memory_->is_whole(*kept.found, writer);
    }
  }
  const auto data = kept.found ? memory_->data(*kept.found) : std::string_view();
  std::uint64_t size = 0;
  for (const auto& place : kept.places) size += place.size;
  broadcast_data(context_, kept.choice.source, size, receiver,
                 [&](std::uint64_t at, char* to, std::size_t count) {
                   if (is_source) data.copy(to, count, at);
                 });
  return is_whole;
}

// A rank that was not there begins with the buffers of the first one, as it does from a file.
MemoryTier::OwnPart MemoryTier::own_part(const Kept& kept) {
  std::map<std::int32_t, std::string> parts;
  if (kept.found && (kept.choice.are_parts_in_place || is_first_of_node())) {
    for (std::size_t writer = 0; writer < kept.found->ranks.size(); ++writer) {
      parts.emplace(kept.found->ranks[writer], memory_->own(*kept.found, static_cast<int>(writer)));
    }
  }
  if (!kept.choice.are_parts_in_place) {
    for (auto& others : context_.all_gather_object(parts)) parts.merge(others);
  }
  if (const auto mine = parts.find(context_.rank()); mine != parts.end()) {
    return from_bytes<OwnPart>(mine->second);
  }
  OwnPart part = from_bytes<OwnPart>(parts.begin()->second);
  part.generators.clear();
  return part;
}

void MemoryTier::continue_from(std::int64_t step) {
  if (memory_) memory_->forget_after(local_rank_, step);
}

}  // namespace ddprun
