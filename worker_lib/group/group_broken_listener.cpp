#include "worker_lib/group/group_broken_listener.h"

#include <pthread.h>
#include <sys/eventfd.h>

#include <utility>

#include "rendezvous/common/signals_blocked.h"
#include "worker_lib/group/failure_diagnosis.h"
#include "worker_lib/process/agent_link.h"

namespace ddprun {

GroupBrokenListener::GroupBrokenListener(AgentLink& link,
                                         std::shared_ptr<FailureDiagnosis> diagnosis)
    : stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (!stop_) return;  // no descriptor is left: one diagnosis less
  const AllSignalsBlocked blocked;
  thread_ = std::thread([&link, diagnosis = std::move(diagnosis), stop = stop_.get()] {
    ::pthread_setname_np(::pthread_self(), "ddprun-link");
    if (const auto broken = link.await_group_broken(stop)) diagnosis->report_death(broken->rank);
  });
}

GroupBrokenListener::~GroupBrokenListener() {
  if (!thread_.joinable()) return;
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

}  // namespace ddprun
