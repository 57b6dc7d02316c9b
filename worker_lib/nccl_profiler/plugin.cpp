// A profiler plugin for NCCL (profiler_interface.h), so that programs which know nothing of ddprun have their
// collectives over NCCL in the record. ddprun has it in itself for those in Python (agent/python); others name it:
// NCCL_PROFILER_PLUGIN=…/libddprun_nccl_profiler.so. Without LibTorch,
// and without an effect where there is no record, or a library of the program writes it itself. What goes
// wrong here does not reach NCCL.
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "worker_lib/nccl_profiler/communicator.h"
#include "worker_lib/nccl_profiler/profiler_interface.h"

namespace ddprun::nccl {
namespace {

// What NCCL keeps of a communicator, a call or a channel is a number, never an address: whenever it comes
// back, it is looked for.
//   communicator: its place + 1
//   call, channel: from the highest bits 16 that, 47 the call, 1 whether it is a channel
using Place = std::uint64_t;
constexpr Place kPlacesMax = 0xffff;
constexpr std::uint64_t kNumberMax = (std::uint64_t{1} << 47) - 1;

class Communicators {
 public:
  // 0: there are too many.
  Place add(std::shared_ptr<Communicator> communicator) {
    const std::scoped_lock lock(mutex_);
    for (Place place = 0; place < kPlacesMax; ++place) {
      if (place == all_.size()) all_.emplace_back();
      if (all_[place]) continue;
      all_[place] = std::move(communicator);
      return place + 1;
    }
    return 0;
  }
  std::shared_ptr<Communicator> find(Place place) {
    const std::scoped_lock lock(mutex_);
    return place == 0 || place > all_.size() ? nullptr : all_[place - 1];
  }
  void remove(Place place) {
    const std::scoped_lock lock(mutex_);
    if (place > 0 && place <= all_.size()) all_[place - 1].reset();
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Communicator>> all_;
};

// Never destroyed: NCCL's threads may outlive main().
Communicators& communicators() {
  static auto* const all = new Communicators;
  return *all;
}

std::uint64_t number_of(const void* opaque) { return reinterpret_cast<std::uintptr_t>(opaque); }
void* opaque(std::uint64_t number) { return reinterpret_cast<void*>(number); }  // NOLINT

void* handle_of(Place place, std::uint64_t call, bool is_channel) {
  return opaque(place << 48 | (call & kNumberMax) << 1 | (is_channel ? 1 : 0));
}

template <typename Do>
Result safely(const Do& what) {
  try {
    what();
  } catch (const std::exception&) {
    // Out of memory: that call is not in the record.
  }
  return kSuccess;
}

Result init(void** context, int* mask, const char* name, std::uint64_t id, int size, int rank) {
  *context = nullptr;
  *mask = 0;
  return safely([&] {
    auto record = CollectiveRecord::of_this_process();
    if (!record || size < 2 || rank < 0 || rank >= size) return;
    const Place place = communicators().add(
        std::make_shared<Communicator>(std::move(record), name, id, rank, size));
    if (place == 0) return;
    *context = opaque(place);
    *mask = static_cast<int>(kCollective | kMessage | kKernelChannel);
  });
}

Result start(void* context, void** handle, std::uint64_t type, const Event& event) {
  *handle = nullptr;
  return safely([&] {
    const Place place = number_of(context);
    if (type == kKernelChannel) {
      const std::uint64_t parent = number_of(event.parent);
      if (parent == 0) return;
      *handle = opaque(parent | 1);
      const auto communicator = communicators().find(parent >> 48);
      if (communicator) communicator->channel_began(parent >> 1 & kNumberMax);
      return;
    }
    const auto communicator = communicators().find(place);
    if (!communicator) return;
    if (type == kCollective) {
      *handle = handle_of(place, communicator->start_collective(event), /*is_channel=*/false);
    } else if (type == kMessage) {
      *handle = handle_of(place, communicator->start_message(event), /*is_channel=*/false);
    }
  });
}

Result stop(void* handle) {
  return safely([&] {
    const std::uint64_t number = number_of(handle);
    const auto communicator = communicators().find(number >> 48);
    if (!communicator) return;
    const std::uint64_t call = number >> 1 & kNumberMax;
    if ((number & 1) != 0) {
      communicator->channel_ended(call);
    } else {
      communicator->host_is_done(call);
    }
  });
}

Result finalize(void* context) {
  return safely([&] { communicators().remove(number_of(context)); });
}

Result init_v4(void** context, int* mask, const char* name, std::uint64_t id, int /*nodes*/,
               int size, int rank, Log /*log*/) {
  return init(context, mask, name, id, size, rank);
}
Result init_v5(void** context, std::uint64_t id, int* mask, const char* name, int /*nodes*/,
               int size, int rank, Log /*log*/) {
  return init(context, mask, name, id, size, rank);
}
Result start_v4(void* context, void** handle, Event* event) {
  return start(context, handle, event->type_word & 0xff, *event);
}
Result start_v5(void* context, void** handle, Event* event) {
  return start(context, handle, event->type_word, *event);
}
Result record_state(void* /*handle*/, int /*state*/, void* /*arguments*/) { return kSuccess; }

}  // namespace
}  // namespace ddprun::nccl

// What NCCL looks for.
extern "C" {
extern const ddprun::nccl::ProfilerV4 ncclProfiler_v4;  // NOLINT
extern const ddprun::nccl::ProfilerV5 ncclProfiler_v5;  // NOLINT
const ddprun::nccl::ProfilerV4 ncclProfiler_v4{
    "ddprun",           ddprun::nccl::init_v4,      ddprun::nccl::start_v4,
    ddprun::nccl::stop, ddprun::nccl::record_state, ddprun::nccl::finalize};
const ddprun::nccl::ProfilerV5 ncclProfiler_v5{
    "ddprun",           ddprun::nccl::init_v5,      ddprun::nccl::start_v5,
    ddprun::nccl::stop, ddprun::nccl::record_state, ddprun::nccl::finalize};
}
