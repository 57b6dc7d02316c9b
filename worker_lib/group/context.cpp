#include "ddprun/context.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ddprun/devices.h"
#include "ddprun/leave.h"
#include "ddprun/log.h"
#include "rendezvous/common/signals_blocked.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/common/worker_abi/untried_arch.h"
#include "worker_lib/c10d/error_text.h"
#include "worker_lib/c10d/nccl_module.h"
#include "worker_lib/c10d/process_group.h"
#include "worker_lib/group/agreement.h"
#include "worker_lib/group/context_access.h"
#include "worker_lib/group/failure_diagnosis.h"
#include "worker_lib/group/freed_memory.h"
#include "worker_lib/group/leave_vote.h"
#include "worker_lib/group/membership.h"
#include "worker_lib/group/recovery.h"
#include "worker_lib/group/standby_gpu.h"
#include "worker_lib/process/agent_link.h"
#include "worker_lib/process/log_setup.h"
#include "worker_lib/process/zygote.h"

namespace ddprun {
namespace {

// Rank 0 has been told by everybody, or has waited long enough for somebody who died on the way
// out.
constexpr auto kLeaveTimeout = std::chrono::seconds(10);
// All others know why they fail, or one of them is dead.
constexpr auto kFailTimeout = std::chrono::seconds(2);

// This process' log lines name their rank from here on.
void set_up_log_of(const Environment& environment, const ContextOptions& options) {
  LogOptions log{.folder = options.log_folder};
  const char* const folder = std::getenv("DDPRUN_LOG_DIR");
  if (log.folder.empty() && folder != nullptr) log.folder = folder;
  if (const char* const level = std::getenv("DDPRUN_LOG_LEVEL")) {
    log.level = log::level_from(level);
    if (!log.level) {
      throw UsageError("DDPRUN_LOG_LEVEL is '" + std::string(level) +
                       "', but must be debug, info, warning or error");
    }
  }
  set_up_log(environment.rank, environment.world_size, log);
}

std::chrono::milliseconds default_timeout(Backend backend) {
  return backend == Backend::kNccl ? std::chrono::minutes(10) : std::chrono::minutes(30);
}

Environment take_place(const ContextOptions& options) {
  zygote::wait_for_rank(options.can_be_standby);
  auto environment = environment_of_this_process(options.init_method);
  set_up_log_of(environment, options);
  return environment;
}

// By the launcher.
bool are_ranks_replaced(const AgentLink* link) {
  return link != nullptr && link->can_recover() && std::getenv(link::kReplacesVariable) != nullptr;
}

// Of the launcher: this process makes its set-up, and then waits for a rank's place.
bool is_prepared_standby(const AgentLink* link) {
  return are_ranks_replaced(link) && std::getenv(link::kPreparedVariable) != nullptr;
}

// Why ranks cannot be replaced in place, as far as it is known before the groups are made; a sentence.
std::string why_not_recoverable(const Environment& environment, const torch::Device& device,
                                Backend backend, bool is_given) {
  if (!zygote::is_linked()) return "it is not linked with ddprun::standby";
  std::string untried = why_untried_arch("replacement", std::getenv(kUntriedArchVariable));
  if (!untried.empty()) return untried;
  if (is_given) return "the program has brought a store of its own";
  if (!environment.agent_hosts_store) {
    return "rank 0 serves the store where the ranks meet (TORCH_DISABLE_SHARE_RDZV_TCP_STORE)";
  }
  if (backend == Backend::kNccl) {
    return why_not_replaced(device.index(), environment.local_world_size > 1);
  }
  return "";
}

bool wants_checks(const ContextOptions& options) {
  const char* const level = std::getenv("TORCH_DISTRIBUTED_DEBUG");
  return options.check_collectives || (level != nullptr && std::string_view(level) == "DETAIL");
}

torch::Device device_for(const Environment& environment, Backend backend,
                         const std::optional<torch::Device>& wanted) {
  const bool is_on_gpu = wanted ? wanted->is_cuda() : backend == Backend::kNccl;
  if (is_on_gpu && backend == Backend::kShm) {
    throw UsageError("the backend shm is for the CPU, not for " + wanted->str());
  }
  if (wanted && !wanted->is_cuda() && !wanted->is_cpu()) {
    throw UsageError("the device " + wanted->str() + " is neither the CPU nor a GPU of CUDA");
  }
  if (!is_on_gpu && backend == Backend::kNccl) {
    throw UsageError("the backend nccl needs a GPU as the device, not " + wanted->str());
  }
  if (!is_on_gpu) return torch::kCPU;
  const int gpus = count_gpus();
  if (wanted && wanted->has_index()) {
    if (wanted->index() < gpus) return *wanted;
    throw UsageError("there is no " + wanted->str() + ": this process sees " +
                     std::to_string(gpus) + " GPUs");
  }
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(gpu_of_worker(environment, gpus))};
}

// Who serves the store, for whoever finds it gone.
std::string host_of_store(const Environment& environment, bool is_given) {
  const std::string place = options_for(environment).place;
  if (is_given) return "whoever serves the store that the program was given";
  if (!environment.store_file.empty()) return "the file system of " + environment.store_file;
  if (environment.agent_hosts_store) return "the launcher's agent at " + place;
  return "rank 0, at " + place;
}

constexpr char kGroupName[] = "ddprun";

// The keys of the group of all ranks begin with it. In one and the same store, such as an agent's,
// those of a process' second Context must not be the first one's; every rank counts its own.
std::string name_of_group(c10d::Store& store, const Environment& environment) {
  const std::string name = kGroupName;
  if (environment.world_size == 1) return name;
  const auto number = store.add(name + "/contexts/" + std::to_string(environment.rank), 1);
  return number == 1 ? name : name + "-" + std::to_string(number);
}

}  // namespace

// A thread that hears from the agent when another worker is gone, and reports it to the FailureDiagnosis, which
// aborts the calls that would wait for that one for ever. `link` outlives it; it ends with this.
class GroupBrokenListener {
 public:
  GroupBrokenListener(AgentLink& link, std::shared_ptr<FailureDiagnosis> diagnosis)
      : stop_(::eventfd(0, EFD_CLOEXEC)) {
    if (!stop_) return;  // no descriptor is left: one diagnosis less
    const AllSignalsBlocked blocked;
    thread_ = std::thread([&link, diagnosis = std::move(diagnosis), stop = stop_.get()] {
      ::pthread_setname_np(::pthread_self(), "ddprun-link");
      const auto news = link.await_group_news(stop, UINT32_MAX);
      if (news) diagnosis->report_death(news->broken->rank);
    });
  }
  ~GroupBrokenListener() {
    if (!thread_.joinable()) return;
    ::eventfd_write(stop_.get(), 1);
    thread_.join();
  }
  GroupBrokenListener(const GroupBrokenListener&) = delete;
  GroupBrokenListener& operator=(const GroupBrokenListener&) = delete;

 private:
  rdzv::UniqueFd stop_;  // readable at the end
  std::thread thread_;
};

Context::Context(const ContextOptions& options) : Context(take_place(options), options) {
  if (link_ && zygote::can_be_zygote()) link_->offer_zygote();
}

Context::Context(Environment environment, const ContextOptions& options)
    : Context(std::move(environment), nullptr, options) {}

Context::Context(Environment environment, c10::intrusive_ptr<c10d::Store> store,
                 const ContextOptions& options)
    : environment_(std::move(environment)),
      link_(AgentLink::open(environment_.link_fd, environment_.link_page_fd)),
      leave_vote_(std::make_unique<LeaveVote>(link_ != nullptr)),
      store_(std::move(store)) {
  if (options.ignore_sigpipe.value_or(false)) detail::ignore_sigpipe();
  if (link_) link_->enter(WorkerPhase::kJoining);
  const auto begun = std::chrono::steady_clock::now();
  const Backend backend = choose_backend(options.backend, options.device);
  const torch::Device device = device_for(environment_, backend, options.device);
  if (device.is_cpu() && options.keep_freed_memory) keep_freed_memory();
  const bool is_prepared = is_prepared_standby(link_.get());
  if (is_prepared && device.is_cuda()) await_room_on_gpu(*link_, device.index());
  if (device.is_cuda()) use_gpu(device.index());
  if (link_ && device.is_cuda()) {
    link_->before_parking(
        [device] { c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index()); });
  }
  auto membership = std::make_shared<detail::Membership>();
  membership->rank = environment_.rank;
  membership->global_ranks.resize(static_cast<std::size_t>(world_size()));
  std::iota(membership->global_ranks.begin(), membership->global_ranks.end(), 0);
  membership->is_whole_job = true;
  membership->device = device;
  membership->link = link_.get();
  membership->compares_calls = wants_checks(options);
  const bool is_given = store_ != nullptr;
  membership->name = kGroupName;
  try {
    if (!is_given && !is_prepared) store_ = make_store(environment_, options.join_timeout);
    if (!is_prepared) membership->name = name_of_group(*store_, environment_);
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    throw Failure(ErrorCode::kUnavailable,
                  "rank " + std::to_string(environment_.rank) + " cannot reach " +
                      host_of_store(environment_, is_given) +
                      ", where the ranks meet: is it started, and do all have the same "
                      "MASTER_ADDR and MASTER_PORT? (" +
                      error_line(error) + ")");
  }
  others_need_store_ = !is_given && is_distributed() && !environment_.agent_hosts_store &&
                       environment_.store_file.empty();
  ProcessGroupOptions group_options = options_for(environment_);
  group_options.backend = backend;
  group_options.device = device;
  group_options.join_timeout = options.join_timeout;
  group_options.timeout = options.timeout.value_or(default_timeout(backend));
  group_options.shared_bytes_per_rank = options.shared_bytes_per_rank;
  const auto add_diagnosis = [host = host_of_store(environment_, is_given)](
                                 detail::Membership& whole, c10::intrusive_ptr<c10d::Store> place) {
    whole.diagnosis = std::make_shared<FailureDiagnosis>(std::move(place), whole.name, whole.rank,
                                                         whole.global_ranks, host);
  };
  if (is_distributed() && are_ranks_replaced(link_.get())) {
    std::string why = why_not_recoverable(environment_, device, backend, is_given);
    if (membership->name != kGroupName) why = "the program makes more than one Context";
    if (!why.empty()) {
      link_->refuse_recovery(why);
      if (is_prepared) throw Failure(ErrorCode::kUnavailable, why);
    } else {
      make_recoverable(*membership, group_options, is_prepared, options.join_timeout,
                       add_diagnosis);
    }
  }
  membership->maker = std::make_shared<GroupMaker>(store_, std::move(group_options));
  if (membership->recovery) {
    membership->recovery->make(membership);
  } else {
    membership->group =
        membership->maker->make(membership->name, membership->rank, membership->global_ranks);
  }
  if (is_distributed() && !is_prepared) add_diagnosis(*membership, store_);
  membership_ = std::move(membership);
  if (backend == Backend::kNccl) detail::ContextAccess::abort_when_broken(*this);
  const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - begun;
  log::debug("joined a group of ", world_size(), " in ", passed.count(), " ms");
  if (link_) link_->enter(WorkerPhase::kRunning);
}

Context::~Context() {
  if (membership_ && membership_->recovery) membership_->recovery->end();
}

void Context::make_recoverable(detail::Membership& whole, ProcessGroupOptions& group_options,
                               bool is_prepared, std::chrono::milliseconds join_timeout,
                               const AddDiagnosis& add_diagnosis) {
  Recovery::Hooks hooks;
  hooks.connect = [this, join_timeout] { return make_store(environment_, join_timeout); };
  hooks.placed = [this, add_diagnosis](c10::intrusive_ptr<c10d::Store> store) {
    store_ = store;
    add_diagnosis(*membership_, std::move(store));
  };
  hooks.hears_agent = [this] {
    if (!listener_) return;
    listener_.reset();
    membership_->diagnosis->forget_groups();
  };
  const auto calls = std::make_shared<std::weak_ptr<Recovery>>();
  group_options.before_call = [calls](CallKind kind) {
    if (const auto recovery = calls->lock()) recovery->before_call(kind);
  };
  if (group_options.backend == Backend::kNccl) keep_pytorch_from_ending_survivors();
  whole.recovery = std::make_shared<Recovery>(*link_, group_options, is_prepared, std::move(hooks));
  *calls = whole.recovery;
}

void Context::progress(std::int64_t step, std::int64_t total,
                       std::span<const ProgressValue> values) {
  if (!link_) return;
  std::array<link::Value, link::kValuesMax> shown;
  const std::size_t count = std::min(values.size(), shown.size());
  for (std::size_t i = 0; i < count; ++i) {
    shown[i] = link::Value::of(values[i].name, values[i].value);
  }
  link_->step_done(step, total, std::span(shown.data(), count));
}

bool Context::should_leave() {
  const bool leaves = leave_vote_->should_leave(
      [this] { return detail::ContextAccess::is_told_to_leave(*this); },
      [this](LeaveVote::Ballot ballot) { return detail::least(*this, ballot); });
  if (leaves) detail::ContextAccess::note_leaving(*this);
  return leaves;
}

namespace detail {

void ignore_sigpipe() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return;
  now.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &now, nullptr);
}

bool ContextAccess::is_told_to_leave(Context& context) {
  if (!context.link_) return false;
  context.link_->take_leave_requests();
  return context.link_->is_told_to_leave();
}

void ContextAccess::note_leaving(Context& context) {
  if (context.link_) context.link_->note_leaving();
}

std::shared_ptr<FailureDiagnosis> ContextAccess::diagnosis(const Context& context) {
  return context.membership_->diagnosis;
}

std::shared_ptr<Recovery> ContextAccess::recovery(const Group& group) {
  return group.membership_->recovery;
}

bool ContextAccess::is_prepared(const Group& group) {
  const auto& recovery = group.membership_->recovery;
  return recovery && recovery->is_prepared();
}

void ContextAccess::abort_when_broken(Context& context) {
  Membership& membership = *context.membership_;
  if (!membership.diagnosis) return;
  membership.hangs = true;
  membership.diagnosis->abort_when_broken(membership.group);
  if (context.link_) {
    context.listener_ = std::make_unique<GroupBrokenListener>(*context.link_, membership.diagnosis);
  }
}

void ContextAccess::leave(Context& context) {
  Membership& membership = *context.membership_;
  if (!membership.group) return;
  if (context.link_) context.link_->enter(WorkerPhase::kLeaving);
  shut_down(*membership.group);  // before the store goes, which NCCL's threads look at
  if (membership.diagnosis && membership.diagnosis->is_broken()) {
    throw membership.diagnosis->failure_of_broken();
  }
  if (membership.diagnosis) membership.diagnosis->leave();
  context.listener_.reset();
  if (membership.recovery) membership.recovery->end();
  membership.group.reset();
  if (context.others_need_store_ && context.is_main_process() &&
      !membership.diagnosis->await_end(kLeaveTimeout)) {
    log::warning("not every rank left in an orderly way");
  }
  membership.diagnosis.reset();
  membership.maker.reset();
  context.store_.reset();
}

void ContextAccess::fail(Context& context, const std::function<void()>& known) {
  Membership& membership = *context.membership_;
  if (!membership.diagnosis) throw;
  std::exception_ptr thrown = std::current_exception();
  try {
    throw;
  } catch (const Failure&) {
  } catch (const std::exception& error) {
    // What an aborted call has left in its tensors may be the reason ("the loss is NaN").
    if (is_of_connection(error) || membership.diagnosis->is_broken()) {
      thrown =
          std::make_exception_ptr(membership.diagnosis->explain(membership.global_ranks, error));
    }
  } catch (...) {
  }
  const std::string why = error_text(thrown);
  membership.diagnosis->fail(why.substr(0, why.find('\n')));
  // Those who wait on this rank are to hear of it now, while the store is there to tell them.
  if (membership.group) close_connections(*membership.group);
  if (known) {
    try {
      std::rethrow_exception(thrown);
    } catch (...) {
      known();
    }
  }
  if (context.others_need_store_ && context.is_main_process()) {
    membership.diagnosis->await_end(kFailTimeout);
  }
  std::rethrow_exception(thrown);
}

}  // namespace detail

void leave(Context& context) { detail::ContextAccess::leave(context); }
void leave_failed(Context& context) { detail::ContextAccess::fail(context); }

}  // namespace ddprun
