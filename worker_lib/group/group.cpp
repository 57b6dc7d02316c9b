#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <exception>

#include "ddprun/collectives.h"
#include "ddprun/log.h"
#include "worker_lib/c10d/error_text.h"
#include "worker_lib/group/call_tensors.h"
#include "worker_lib/group/membership.h"
#include "worker_lib/group/recovery.h"
#include "worker_lib/process/agent_link.h"

namespace ddprun {

using namespace detail;

namespace detail {

Operation::Operation(std::shared_ptr<Membership> membership, const char* name,
                     std::vector<torch::Tensor> kept, const Begin& begin,
                     std::function<void()> finish, std::chrono::milliseconds limit,
                     bool is_blocking)
    : membership_(std::move(membership)),
      name_(name),
      number_(membership_->calls),
      kept_(std::move(kept)),
      limit_(limit),
      is_blocking_(is_blocking),
      finish_(std::move(finish)) {
  if (!membership_->group) refuse(name_, "this rank has left the group");
  fail_if_broken();
  try {
    if (is_blocking_) enter();
    const PhaseGuard phase(is_blocking_ ? membership_->link : nullptr, WorkerPhase::kCollective);
    work_ = begin();
  } catch (...) {
    enter();
    fail();
  }
  if (!work_) end();  // there was nothing to do, or NCCL has queued all of a blocking call
}

void Operation::enter() {
  if (!membership_->diagnosis) return;
  membership_->diagnosis->enter(name_, membership_->name, number_,
                                kept_.empty() ? nullptr : &kept_[0]);
}

void Operation::wait() {
  if (!work_) return;
  if (!is_blocking_) enter();
  try {
    const PhaseGuard phase(membership_->link, WorkerPhase::kCollective);
    work_->wait(limit_);
  } catch (...) {
    fail();
  }
  end();
  work_.reset();
}

void Operation::end() {
  if (membership_->recovery) {
    try {
      const PhaseGuard phase(membership_->link, WorkerPhase::kCollective);
      membership_->recovery->await_queued_calls();
    } catch (...) {
      fail();
    }
  }
  fail_if_broken();
  if (membership_->diagnosis) membership_->diagnosis->exit();
  if (finish_) finish_();
  finish_ = nullptr;
  kept_.clear();
}

// A call over NCCL that was aborted looks like one that is done.
void Operation::fail_if_broken() {
  if (!membership_->diagnosis || !membership_->diagnosis->is_broken()) return;
  enter();
  Failure failure = membership_->diagnosis->failure_of_broken();
  membership_->diagnosis->exit();
  throw failure;
}

// In a handler. What c10d refuses is this rank's own mistake; all else is the connections'.
void Operation::fail() {
  const auto exited = c10::make_scope_exit([this] {
    if (membership_->diagnosis) membership_->diagnosis->exit();
  });
  const auto explain = [&](const std::exception& error) {
    if (membership_->recovery && membership_->recovery->may_recover()) {
      throw GroupLost(ErrorCode::kUnavailable, std::string(name_) + ": " + error_line(error));
    }
    if (!membership_->diagnosis) throw Failure(ErrorCode::kUnavailable, error_line(error));
    throw membership_->diagnosis->explain(membership_->global_ranks, error);
  };
  try {
    throw;
  } catch (const c10::DistError& error) {
    explain(error);
  } catch (const c10::Error& error) {
    refuse(name_, error_line(error));
  } catch (const std::exception& error) {
    explain(error);
  }
  throw;
}

}  // namespace detail

// While an exception is on its way nobody waits for the others any more.
Group::~Group() {
  if (!is_ours_to_end_ || !membership_->group || std::uncaught_exceptions() > 0) return;
  try {
    shut_down(*membership_->group);
  } catch (const std::exception& error) {
    log::warning("the group ", membership_->name, " did not end well: ", error_line(error));
  }
}

int Group::rank() const { return membership_->rank; }
int Group::size() const { return membership_->size(); }
torch::Device Group::device() const { return membership_->device; }
const c10::intrusive_ptr<c10d::ProcessGroup>& Group::process_group() const {
  return membership_->group;
}

int Group::global_rank(int rank) const {
  check_rank("global_rank", rank);
  return membership_->global_ranks[static_cast<std::size_t>(rank)];
}

std::unique_ptr<Group> Group::new_group(const std::vector<int>& ranks) {
  std::vector<int> sorted = ranks;
  std::ranges::sort(sorted);
  std::string wrong;
  if (sorted.empty()) wrong = "the list of ranks is empty";
  if (std::ranges::adjacent_find(sorted) != sorted.end()) wrong = "a rank is twice in the list";
  if (!sorted.empty() && (sorted.front() < 0 || sorted.back() >= size())) {
    wrong = "ranks count from 0 to " + std::to_string(size() - 1);
  }
  // One rank with another list would wait for a group that the others do not make.
  const auto lists = all_gather_object(ranks);
  if (!wrong.empty()) refuse("new_group", wrong);
  for (std::size_t other = 0; other < lists.size(); ++other) {
    if (lists[other] != ranks) {
      refuse("new_group", "rank ", membership_->global_ranks[other],
             " was given another list of ranks than rank ",
             membership_->global_ranks[static_cast<std::size_t>(rank())]);
    }
  }

  auto membership = std::make_shared<Membership>();
  membership->name = membership_->name + "/" + std::to_string(membership_->groups_made++);
  membership->maker = membership_->maker;
  membership->link = membership_->link;
  membership->diagnosis = membership_->diagnosis;
  membership->compares_calls = membership_->compares_calls;
  membership->hangs = membership_->hangs;
  for (const int member : ranks) membership->global_ranks.push_back(global_rank(member));
  const auto self = std::find(ranks.begin(), ranks.end(), rank());
  if (self == ranks.end()) return nullptr;
  membership->rank = static_cast<int>(self - ranks.begin());
  membership->is_whole_job = membership_->is_whole_job && ranks.size() == lists.size();
  membership->device = membership_->device;
  membership->recovery = membership_->recovery;
  if (membership->recovery) {
    membership->recovery->make(membership);
  } else {
    membership->group =
        membership->maker->make(membership->name, membership->rank, membership->global_ranks);
  }
  if (membership->hangs) membership->diagnosis->abort_when_broken(membership->group);
  return std::unique_ptr<Group>(new Group(std::move(membership)));
}

void Group::check_rank(const char* name, int rank) const {
  if (rank >= 0 && rank < size()) return;
  refuse(name, "there is no rank ", rank, " in a group of ", size());
}

Operation Group::start(const Call& call, Tensors kept, const Operation::Begin& begin,
                       std::function<void()> finish) {
  Membership& membership = *membership_;
  if (membership.compares_calls) compare_calls(call.to_string(membership, kept));
  if (membership.link != nullptr && membership.is_whole_job) {
    membership.link->collective_begins();
  }
  ++membership.calls;
  if (membership.recovery && membership.recovery->records(call.mode == Mode::kAsync)) {
    membership.recovery->run(membership_, call.name, kept, begin,
                             {call.results, call.is_equal_everywhere});
    if (finish) finish();
    return {};
  }
  return Operation(membership_, call.name, std::move(kept), begin, std::move(finish), kNoTimeout,
                   /*is_blocking=*/call.mode == Mode::kBlocking);
}

// All learn of a difference, and all throw.
void Group::compare_calls(const std::string& call) {
  Membership& membership = *membership_;
  if (membership.is_comparing || size() == 1) return;
  membership.is_comparing = true;
  const std::vector<std::string> calls = all_gather(call);  // which is not compared itself
  membership.is_comparing = false;
  for (std::size_t other = 1; other < calls.size(); ++other) {
    if (calls[other] == calls[0]) continue;
    refuse("the ranks make different calls", "rank ", membership.global_ranks[0], " makes ",
           calls[0], ", rank ", membership.global_ranks[other], " makes ", calls[other]);
  }
}

}  // namespace ddprun
