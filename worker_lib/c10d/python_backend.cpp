// What the Python package ddprun.torch loads (python/ddprun/torch.py): the factory of process groups as an operator
// of TorchScript, torch.ops.ddprun.make_group. Torch's operators carry process groups between Python and
// C++ (ProcessGroup.boxed and unbox), so nothing here is bound to Python: one binary serves every version
// of it. Python cannot box a store; it comes inside a group that has nothing else.
//
// Any thread; the caller does not hold Python's lock. Throws what torch translates: DistBackendError for
// a Failure, ValueError for what the caller did wrong.
#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>
#include <torch/library.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "ddprun/environment.h"
#include "ddprun/error.h"
#include "worker_lib/c10d/process_group.h"
#include "worker_lib/c10d/shm_work.h"
#include "worker_lib/process/log_setup.h"

namespace ddprun {
namespace {

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

// What the launcher said about this node; nothing where it did not start this job: ranks then share
// memory where the machine is the same, and Gloo finds its address by itself, as Python's does.
ProcessGroupOptions options_of_this_process(int size) {
  try {
    const Environment environment = environment_of_this_process();
    if (environment.world_size >= size) return options_for(environment);
  } catch (const UsageError&) {
    // Variables that make no sense to us are of no use to the program either, which has a store.
  }
  ProcessGroupOptions options;
  options.is_one_node = false;
  options.place = "the store that was given";
  return options;
}

// `carrier` has the store, this process' rank and the number of ranks. The result serves tensors on the
// CPU: over shared memory where it can be had, else over Gloo, as everywhere.
GroupPtr make_group(const GroupPtr& carrier, const std::string& name,
                    const std::vector<std::int64_t>& global_ranks, double timeout_seconds) {
  const int rank = carrier->getRank();
  const int size = carrier->getSize();
  TORCH_CHECK_VALUE(static_cast<int>(global_ranks.size()) == size, "shm: a group of ", size,
                    " ranks with ", global_ranks.size(), " global ranks");
  [[maybe_unused]] static const bool is_set_up =
      (set_up_log(static_cast<int>(global_ranks[static_cast<std::size_t>(rank)]), size), true);
  ProcessGroupOptions options = options_of_this_process(size);
  options.backend = Backend::kShm;
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout_seconds * 1e3));
  options.join_timeout = options.timeout;  // as PyTorch's own
  const auto store = carrier->getStore();
  // The store is the program's, and making a group sets its time limit.
  const auto restored = c10::make_scope_exit([store, timeout = store->getTimeout()] {
    try {
      store->setTimeout(timeout);
    } catch (const std::exception&) {
      // The connection is gone: no limit matters any more.
    }
  });
  try {
    return GroupMaker(store, std::move(options))
        .make(name, rank, {global_ranks.begin(), global_ranks.end()});
  } catch (const UsageError& error) {
    C10_THROW_ERROR(ValueError, error.what());
  } catch (const Failure& failure) {
    throw ShmError(failure);
  }
}

}  // namespace

TORCH_LIBRARY(ddprun, library) { library.def("make_group", make_group); }

}  // namespace ddprun
