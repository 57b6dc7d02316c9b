#include "ddprun/context.h"

#include <gloo/common/error.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ddprun/devices.h"
#include "ddprun/log.h"
#include "worker_lib/c10d/nccl_module.h"
#include "worker_lib/c10d/process_group.h"
#include "worker_lib/c10d/words.h"
#include "worker_lib/group/freed_memory.h"
#include "worker_lib/group/leave_vote.h"
#include "worker_lib/group/membership.h"
#include "worker_lib/group/roll_call.h"
#include "worker_lib/process/agent_link.h"

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
  const auto done = set_up_log(environment.rank, environment.world_size, log);
  if (!done) throw UsageError(done.error());
}

Environment take_place(const ContextOptions& options) {
  auto environment = environment_of_this_process(options.meeting);
  if (!environment) throw UsageError(std::move(environment.error()));
  set_up_log_of(*environment, options);
  return std::move(*environment);
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
  auto gpu = gpu_of_worker(environment, gpus);
  if (!gpu) throw UsageError(std::move(gpu.error()));
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(*gpu)};
}

std::string place_of(const Environment& environment) {
  if (!environment.store_file.empty()) return environment.store_file;
  if (environment.master_addr.empty()) return "the store that was given";
  return environment.master_addr + ":" + std::to_string(environment.master_port);
}

// Who serves the store, for whoever finds it gone.
std::string host_of_store(const Environment& environment, bool is_given) {
  if (is_given) return "whoever serves the store that the program was given";
  if (!environment.store_file.empty()) return "the file system of " + environment.store_file;
  if (environment.agent_hosts_store) return "the launcher's agent at " + place_of(environment);
  return "rank 0, at " + place_of(environment);
}

// Gloo and LibTorch's store write to sockets without asking for no SIGPIPE: when a peer ends at the
// wrong moment, the default action would end this process without a word. Python ignores it too.
void survive_broken_connections() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return;
  now.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &now, nullptr);
}

// The keys of the group of all ranks begin with it. In one and the same store, such as an agent's,
// those of a process' second Context must not be the first one's; every rank counts its own.
std::string name_of_group(c10d::Store& store, const Environment& environment) {
  const std::string name = "ddprun";
  if (environment.world_size == 1) return name;
  const auto number = store.add(name + "/contexts/" + std::to_string(environment.rank), 1);
  return number == 1 ? name : name + "-" + std::to_string(number);
}

std::vector<int> ranks_below(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

Context::Context(const ContextOptions& options) : Context(take_place(options), options) {}

Context::Context(Environment environment, const ContextOptions& options)
    : Context(std::move(environment), nullptr, options) {}

Context::Context(Environment environment, c10::intrusive_ptr<c10d::Store> store,
                 const ContextOptions& options)
    : environment_(std::move(environment)),
      link_(AgentLink::open(environment_.link_fd, environment_.link_page_fd)),
      leave_vote_(std::make_unique<LeaveVote>(link_ != nullptr)),
      store_(std::move(store)) {
  if (is_distributed()) survive_broken_connections();
  if (link_) link_->enter(WorkerPhase::kJoining);
  const auto begun = std::chrono::steady_clock::now();
  const Backend backend = choose_backend(options.backend, options.device);
  device_ = device_for(environment_, backend, options.device);
  if (device_.is_cpu() && options.keep_freed_memory) keep_freed_memory();
  if (device_.is_cuda()) use_gpu(device_.index());
  auto membership = std::make_shared<detail::Membership>();
  membership->rank = rank();
  membership->global_ranks = ranks_below(world_size());
  membership->is_whole_job = true;
  membership->device = device_;
  membership->link = link_.get();
  membership->compares_calls = wants_checks(options);
  const bool is_given = store_ != nullptr;
  try {
    if (!is_given) store_ = make_store(environment_, options.join_timeout);
    membership->name = name_of_group(*store_, environment_);
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    throw Failure(ErrorCode::kUnavailable,
                  "rank " + std::to_string(rank()) + " cannot reach " +
                      host_of_store(environment_, is_given) +
                      ", where the ranks meet: is it started, and do all have the same "
                      "MASTER_ADDR and MASTER_PORT? (" +
                      words_of(error) + ")");
  }
  others_need_store_ = !is_given && is_distributed() && !environment_.agent_hosts_store &&
                       environment_.store_file.empty();
  membership->maker = std::make_shared<GroupMaker>(
      environment_, store_,
      ProcessGroupOptions{.backend = backend,
                          .device = device_,
                          .join_timeout = options.join_timeout,
                          .timeout = options.timeout,
                          .shared_bytes_per_rank = options.shared_bytes_per_rank});
  membership->group = membership->maker->make(membership->name, rank(), membership->global_ranks);
  if (is_distributed()) {
    membership->roll_call = std::make_shared<RollCall>(store_, membership->name, rank(),
                                                       host_of_store(environment_, is_given));
  }
  open(std::move(membership));
  const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - begun;
  log::debug("joined a group of ", world_size(), " in ", passed.count(), " ms");
  if (link_) link_->enter(WorkerPhase::kRunning);
}

Context::~Context() = default;

void Context::progress(std::int64_t step, std::int64_t total,
                       std::span<const ProgressValue> values) {
  if (link_) {
    std::array<link::Value, link::kValuesMax> shown;
    const std::size_t count = std::min(values.size(), shown.size());
    for (std::size_t i = 0; i < count; ++i) {
      shown[i] = link::Value::of(values[i].name, values[i].value);
    }
    link_->step_done(step, total, std::span(shown.data(), count));
  }
  for (const auto& listener : progress_listeners_) listener({step, total, values});
}

void Context::on_progress(std::function<void(const ProgressReport&)> listener) {
  progress_listeners_.push_back(std::move(listener));
}

bool Context::is_told_to_leave() {
  if (!link_) return false;
  link_->take_leave_requests();
  return link_->is_told_to_leave();
}

bool Context::should_leave() {
  return leave_vote_->should_leave(
      [this] { return is_told_to_leave(); },
      [this](LeaveVote::Ballot ballot) {
        if (is_distributed()) {
          all_reduce(torch::from_blob(ballot.data(), {2}, torch::kInt64), c10d::ReduceOp::MIN);
        }
        return ballot;
      });
}

void Context::leave() {
  detail::Membership& membership = *membership_;
  if (!membership.group) return;
  if (link_) link_->enter(WorkerPhase::kLeaving);
  shut_down(*membership.group);  // before the store goes, which NCCL's threads look at
  if (membership.roll_call) membership.roll_call->leave();
  membership.group.reset();
  if (others_need_store_ && is_main_process() &&
      !membership.roll_call->await_end(membership.global_ranks, kLeaveTimeout)) {
    log::warning("not every rank left in an orderly way");
  }
  membership.roll_call.reset();
  membership.maker.reset();
  store_.reset();
}

std::string Context::last_words(const std::exception& error) noexcept {
  std::string words = message_of(error);
  const auto roll_call = membership_->roll_call;
  if (!roll_call) return words;
  if (dynamic_cast<const c10::DistError*>(&error) != nullptr) {
    words = roll_call->explain(membership_->global_ranks, error).what();
  }
  roll_call->fail(words.substr(0, words.find('\n')));
  return words;
}

void Context::fail() {
  detail::Membership& membership = *membership_;
  const auto tell = [&](const std::string& why) {
    if (!membership.roll_call) return;
    membership.roll_call->fail(why);
    // Those who wait on this rank are to hear of it now, while the store is there to tell them.
    if (membership.group) close_connections(*membership.group);
    if (others_need_store_ && is_main_process()) {
      membership.roll_call->await_end(membership.global_ranks, kFailTimeout);
    }
  };
  const auto explain = [&](const std::exception& error) {
    if (!membership.roll_call) throw;
    Failure failure = membership.roll_call->explain(membership.global_ranks, error);
    tell(failure.what());
    throw failure;
  };
  try {
    throw;
  } catch (const Failure& failure) {
    tell(failure.what());
    throw;
  } catch (const c10::DistError& error) {
    explain(error);
  } catch (const gloo::Exception& error) {
    explain(error);
  } catch (const std::exception& error) {
    tell(words_of(error));
    throw;
  } catch (...) {
    tell("something that is no std::exception was thrown");
    throw;
  }
  std::abort();  // every branch above throws
}

}  // namespace ddprun
