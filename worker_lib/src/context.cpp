#include "ddprun/context.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ddprun/log.h"
#include "worker_lib/src/agent_link.h"
#include "worker_lib/src/leave_vote.h"
#include "worker_lib/src/membership.h"
#include "worker_lib/src/nccl_module.h"
#include "worker_lib/src/process_group.h"

namespace ddprun {
namespace {

// Rank 0 has been told by everybody, or has waited long enough for somebody who died on the way
// out.
constexpr auto kLeaveTimeout = std::chrono::seconds(10);

// This process' environment; its log lines name its rank from here on.
Environment take_place() {
  auto environment = environment_of_this_process();
  if (!environment) throw UsageError(std::move(environment.error()));
  set_up_log(environment->rank, environment->world_size);
  return std::move(*environment);
}

std::string left_key(int rank) { return "ddprun/left/" + std::to_string(rank); }

torch::Device device_for(const Environment& environment, Backend backend) {
  if (backend == Backend::kGloo) return torch::kCPU;
  const int gpus = visible_gpus();
  if (environment.local_rank >= gpus) {
    throw UsageError("local rank " + std::to_string(environment.local_rank) +
                     " has no GPU of its own: this process sees " + std::to_string(gpus) +
                     "; start at most one worker per GPU, or use --backend gloo");
  }
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(environment.local_rank)};
}

}  // namespace

Backend backend_from(const std::string& name) {
  if (name == "auto") return Backend::kAuto;
  if (name == "gloo") return Backend::kGloo;
  if (name == "nccl") return Backend::kNccl;
  throw UsageError("there is no backend '" + name + "': use auto, gloo or nccl");
}

Context::Context(const ContextOptions& options) : Context(take_place(), options) {}

Context::Context(Environment environment, const ContextOptions& options)
    : Context(std::move(environment), nullptr, options) {}

Context::Context(Environment environment, c10::intrusive_ptr<c10d::Store> store,
                 const ContextOptions& options)
    : environment_(std::move(environment)),
      link_(AgentLink::open(environment_.link_fd, environment_.link_page_fd)),
      leave_vote_(std::make_unique<LeaveVote>(link_ != nullptr)),
      store_(std::move(store)) {
  if (link_) link_->enter(WorkerPhase::kJoining);
  const Backend backend = choose_backend(options.backend);
  device_ = device_for(environment_, backend);
  try {
    if (!store_) {
      store_ = make_store(environment_, options.join_timeout);
      others_need_store_ = is_distributed() && !environment_.agent_hosts_store;
    }
    auto membership = std::make_shared<detail::Membership>();
    membership->name = "ddprun";
    membership->rank = rank();
    for (int other = 0; other < world_size(); ++other) membership->job_ranks.push_back(other);
    membership->maker =
        std::make_shared<GroupMaker>(environment_, store_, backend, device_, options);
    membership->link = link_.get();
    membership->group = membership->maker->make(membership->name, rank(), world_size());
    open(std::move(membership));
  } catch (const c10::Error& error) {
    throw Failure(ErrorCode::kUnavailable,
                  "could not join the group at " + environment_.master_addr + ":" +
                      std::to_string(environment_.master_port) + " within " +
                      std::to_string(options.join_timeout.count() / 1000) +
                      " s; are all ranks started, with the same MASTER_ADDR and MASTER_PORT? (" +
                      error.what_without_backtrace() + ")");
  }
  if (link_) link_->enter(WorkerPhase::kRunning);
}

Context::~Context() = default;

void Context::progress(std::int64_t step, std::int64_t total) {
  if (link_) link_->step_done(step, total);
}

bool Context::should_leave() {
  if (link_) link_->take_leave_requests();
  return leave_vote_->should_leave(
      [this] { return link_ && link_->is_told_to_leave(); },
      [this](LeaveVote::Ballot ballot) {
        if (is_distributed()) {
          all_reduce(torch::from_blob(ballot.data(), {2}, torch::kInt64), c10d::ReduceOp::MIN);
        }
        return ballot;
      });
}

void Context::leave() {
  if (!membership_->group) return;
  if (link_) link_->enter(WorkerPhase::kLeaving);
  if (others_need_store_) {
    if (is_main_process()) {
      std::vector<std::string> keys;
      for (int other = 1; other < world_size(); ++other) keys.push_back(left_key(other));
      try {
        store_->wait(keys, kLeaveTimeout);
      } catch (const std::exception&) {
        log::warning("not every rank left in an orderly way");
      }
    } else {
      store_->set(left_key(rank()), std::vector<std::uint8_t>{1});
    }
  }
  membership_->group.reset();
  store_.reset();
}

}  // namespace ddprun
