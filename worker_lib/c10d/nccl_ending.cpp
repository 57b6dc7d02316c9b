#include "worker_lib/c10d/nccl_ending.h"

#include <pthread.h>

#include <exception>
#include <utility>

#include "ddprun/log.h"
#include "rendezvous/common/signals_blocked.h"
#include "worker_lib/c10d/error_text.h"
#include "worker_lib/c10d/nccl_module.h"

namespace ddprun {
namespace {

using Clock = std::chrono::steady_clock;

// Whether a newer generation is named, whose ranks are awaited instead.
constexpr auto kLooksAgain = std::chrono::milliseconds(50);
// A device that is not idle so long after its calls were ended has a kernel that had not begun.
constexpr auto kIdleLimit = std::chrono::seconds(5);

}  // namespace

NcclEnding::NcclEnding(const Groups& groups, Question do_all_know) {
  for (const auto& group : groups) {
    for (const c10::Device device : group->getDeviceTypes()) {
      if (device.is_cuda()) backends_.push_back(group->getBackend(device.type()));
    }
  }
  const AllSignalsBlocked blocked;
  thread_ = std::thread([this, question = std::move(do_all_know)] { run(question); });
}

NcclEnding::~NcclEnding() {
  {
    const std::scoped_lock lock(mutex_);
    is_given_up_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void NcclEnding::note_idle() {
  const std::scoped_lock lock(mutex_);
  is_idle_ = true;
  changed_.notify_all();
}

void NcclEnding::free() {
  free_later();
  thread_.join();
}

void NcclEnding::free_later() {
  const std::scoped_lock lock(mutex_);
  may_free_ = true;
  changed_.notify_all();
}

void NcclEnding::run(const Question& do_all_know) {
  ::pthread_setname_np(::pthread_self(), "ddprun-nccl");
  for (;;) {
    const auto begun = Clock::now();
    if (do_all_know(kLooksAgain)) break;
    std::unique_lock lock(mutex_);
    if (changed_.wait_until(lock, begun + kLooksAgain, [this] { return is_given_up_; })) return;
  }
  {
    std::vector<std::jthread> ends;  // at the same time, since each takes a second
    for (const auto& backend : backends_) {
      if (auto* const nccl = dynamic_cast<NcclCommunicator*>(backend.get())) {
        ends.emplace_back([nccl] { nccl->end_kernels(); });
      }
    }
  }
  {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, kIdleLimit, [this] { return is_idle_ || is_given_up_; })) {
      changed_.wait(lock, [this] { return may_free_ || is_given_up_; });
    }
    if (is_given_up_ && !may_free_) return;
  }
  abort_all();
  is_freed_ = true;
}

void NcclEnding::abort_all() {
  for (const auto& backend : backends_) {
    try {
      backend->abort();
    } catch (const std::exception& error) {
      log::warning("a communicator of NCCL could not be freed: ", error_line(error));
    }
  }
}

}  // namespace ddprun
