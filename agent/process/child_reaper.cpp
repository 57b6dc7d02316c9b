#include "agent/process/child_reaper.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "rendezvous/common/cgroup.h"
#include "rendezvous/common/signals_blocked.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr auto kOrphanLimit = 2s;  // time for orphans to end after SIGKILL
// Pause before the next look, doubled each time. SIGCHLD also tells of the end of an orphan.
constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLongestPause{100};

// Asio's handlers let a signal interrupt system calls. Where a filter or a file server holds a call up, calls that never
// fail by a signal elsewhere would fail with EINTR.
void restart_calls_after(int signal) {
  struct sigaction action {};
  if (::sigaction(signal, nullptr, &action) != 0) return;
  action.sa_flags |= SA_RESTART;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

ChildReaper::ChildReaper(boost::asio::io_context& io, const std::string& agent_id,
                         std::optional<Keeper>& keeper, Log log, Hooks hooks)
    : signal_(io),
      timer_(io),
      keeper_(keeper),
      log_(std::move(log)),
      hooks_(std::move(hooks)),
      looks_(io.get_executor(), std::string(kAgentVariable) + "=" + agent_id),
      names_(io.get_executor()) {}

Result<void> ChildReaper::start(std::size_t slots, std::optional<MemoryOffer> offer,
                                const std::string& own_groups) {
  become_subreaper();
  signal_.add(SIGCHLD);  // before the first child: the keeper may be killed at once
  restart_calls_after(SIGCHLD);
  unblock_signals({SIGCHLD});
  auto keeper = Keeper::start(slots, std::move(offer));
  if (!keeper) return fail(std::move(keeper.error()));
  keeper_.emplace(std::move(*keeper));
  await();
  make_control_group(own_groups);
  return {};
}

// The keeper gets the path before the group is made, so it removes the group whenever the agent
// dies.
void ChildReaper::make_control_group(const std::string& own_groups) {
  auto path = ControlGroup::new_path(own_groups);
  if (path) {
    keeper_->set_control_group(*path);
    auto made = ControlGroup::make(*path);
    if (made) {
      group_.emplace(std::move(*made));
      are_all_in_group_ = true;
      return log_.debug("the workers' control group is " + *path);
    }
    keeper_->set_control_group("");
    path = fail(std::move(made.error()));
  }
  log_.debug("workers have no control group of their own: " + path.error().to_string());
}

// Newer kernels kill processes that are started in a group that was killed before (see
// process.cpp).
void ChildReaper::renew_control_group() {
  group_.reset();
  was_group_killed_ = false;
  if (std::exchange(are_all_in_group_, false)) make_control_group(cgroup::own_groups());
}

rdzv::UniqueFd ChildReaper::next_control_group() {
  if (!are_all_in_group_) return {};
  if (!next_group_) {
    const auto path = ControlGroup::new_path(cgroup::own_groups());
    if (!path) return {};
    keeper_->set_next_control_group(*path);
    auto made = ControlGroup::make(*path);
    if (!made) return {};
    next_group_.emplace(std::move(*made));
  }
  return rdzv::UniqueFd(::openat(next_group_->directory(), "cgroup.procs", O_WRONLY | O_CLOEXEC));
}

bool ChildReaper::move_into_control_group(pid_t pid) {
  if (!are_all_in_group_) return false;
  const rdzv::UniqueFd members(::openat(group_->directory(), "cgroup.procs", O_WRONLY | O_CLOEXEC));
  const std::string text = std::to_string(pid);
  return members &&
         ::write(members.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// Not a moment without the next one's path in the keeper's table: processes are in that group.
void ChildReaper::follow_control_group() {
  keeper_->set_control_group(next_group_->path());
  group_.reset();
  group_.emplace(std::move(*next_group_));
  next_group_.reset();
  keeper_->set_next_control_group("");
  was_group_killed_ = false;
}

void ChildReaper::leave_control_group() {
  if (!std::exchange(are_all_in_group_, false)) return;
  log_.debug("the workers' control group takes no workers; they start outside of it");
}

void ChildReaper::let_keeper_go() {
  if (!keeper_) return;
  if (group_ && group_->remove()) keeper_->set_control_group("");
  if (next_group_ && next_group_->remove()) keeper_->set_next_control_group("");
  keeper_->let_go();
}

void ChildReaper::await() {
  signal_.async_wait(lifetime_.guard([this](const boost::system::error_code& ec, int) {
    if (ec) return;
    await();
    reap();
    if (done_) end_what_is_left();
  }));
}

bool ChildReaper::is_known(pid_t pid) const {
  return (keeper_ && keeper_->pid() == pid) || hooks_.is_owned(pid);
}

void ChildReaper::replace_keeper(const ExitStatus& died) {
  if (died.signal == 0) {
    return log_.error(error_from_errno(died.code,
                                       "the keeper cannot wait for the end of ddprun, so "
                                       "workers may live on if ddprun is killed")
                          .to_string());
  }
  if (auto replaced = keeper_->replace(); !replaced) {
    return log_.error("the keeper died and cannot be replaced: " + replaced.error().to_string());
  }
  log_.warn("the keeper was killed; there is a new one");
  hooks_.on_keeper_replaced(keeper_->pid());
}

void ChildReaper::reap() {
  if (const auto died = keeper_ ? keeper_->died() : std::nullopt) replace_keeper(*died);
  reap_orphans([this](pid_t pid) { return is_known(pid); });
}

void ChildReaper::end_orphans(Orphanage orphanage, std::function<void()> done) {
  orphanage_ = std::move(orphanage);
  done_ = std::move(done);
  until_ = std::chrono::steady_clock::now() + kOrphanLimit;
  looks_.forget();
  told_.clear();
  pause_ = kFirstPause;
  end_what_is_left();
}

void ChildReaper::end_what_is_left() {
  if (are_names_coming_) return;
  Orphans orphans;
  if (!are_all_in_group_) {  // else there is no need to look at processes outside of it
    orphans = orphans_of(looks_, [this](pid_t pid) { return is_known(pid); });
  }
  orphanage_.is_spared ? spare_orphans(orphans) : kill_orphans(orphans);
}

void ChildReaper::look_again(bool soon) {
  timer_.arm(soon ? kFirstPause : pause_, [this] { end_what_is_left(); });
  pause_ = std::min(pause_ * 2, kLongestPause);
}

// The children of a killed orphan become children of this process, so this is repeated until none
// is left. A process that does not end hangs in the kernel.
void ChildReaper::kill_orphans(const Orphans& orphans) {
  const bool is_populated = group_ && group_->is_populated();
  const bool are_all_gone = orphans.pids.empty() && !orphans.some_unseen && !is_populated;
  if (!are_all_gone && std::chrono::steady_clock::now() < until_) {
    if (log_.writes(Log::Level::kInfo) &&
        !are_told(by_group(with_members(orphans.pids), orphanage_.groups).outside,
                  Log::Level::kInfo, "what the workers left running is killed: ")) {
      return;
    }
    if (is_populated) {
      group_->kill();
      was_group_killed_ = true;
    }
    for (const pid_t pid : orphans.pids) ::kill(pid, SIGKILL);
    return look_again(orphans.some_unseen);
  }
  say_what_does_not_end(is_populated ? with_members(orphans.pids) : orphans.pids);
  for (const pid_t pid : orphans.hanging) {
    log_.warn(
        "process " + std::to_string(pid) +
        " hangs in the kernel; it is not known if it belongs to this job, so it is not killed");
  }
  finish_orphans(are_all_gone);
}

// The job has succeeded. What is in a worker's process group was killed with its worker, or is a child that such a
// process had just made.
void ChildReaper::spare_orphans(const Orphans& orphans) {
  const auto [doomed, spared] = by_group(with_members(orphans.pids), orphanage_.groups);
  if ((!doomed.empty() || orphans.some_unseen) && std::chrono::steady_clock::now() < until_) {
    for (const pid_t pid : doomed) ::kill(pid, SIGKILL);
    return look_again(orphans.some_unseen);
  }
  if (!are_told(
          spared, Log::Level::kWarning,
          "the job has succeeded, and what its workers left running in the background lives on "
          "(--kill-orphans ends it): ")) {
    return;
  }
  say_what_does_not_end({doomed.begin(), doomed.end()});
  let_out_of_group();
  finish_orphans(/*are_all_gone=*/true);
}

void ChildReaper::finish_orphans(bool are_all_gone) {
  timer_.cancel();
  if (are_all_gone && are_all_in_group_ && next_group_) {
    follow_control_group();
  } else if (group_ && are_all_gone) {
    was_group_killed_ ? renew_control_group() : group_->tidy();
  }
  std::exchange(done_, nullptr)();
}

void ChildReaper::say_what_does_not_end(const std::vector<pid_t>& pids) const {
  for (const pid_t pid : pids) {
    log_.error("process " + std::to_string(pid) + " of a worker does not end");
  }
}

// Adds the members of the control group, except processes that have an owner.
std::vector<pid_t> ChildReaper::with_members(std::vector<pid_t> pids) const {
  if (!group_) return pids;
  for (const pid_t pid : group_->members()) {
    if (!is_known(pid) && std::ranges::count(pids, pid) == 0) pids.push_back(pid);
  }
  return pids;
}

// False: the names are being looked up, while the processes live; then end_what_is_left() begins anew.
bool ChildReaper::are_told(const std::set<pid_t>& pids, Log::Level level,
                           const std::string& words) {
  std::vector<pid_t> untold = roots_of(pids);
  std::erase_if(untold, [this](pid_t pid) { return told_.contains(pid); });
  // Processes that replace themselves all the time are not followed for ever.
  if (untold.empty() || (!told_.empty() && std::chrono::steady_clock::now() >= until_)) return true;
  told_.insert(pids.begin(), pids.end());
  are_names_coming_ = true;
  names_.look_up(std::move(untold), [this, level, words](const std::string& names) {
    are_names_coming_ = false;
    log_.write(level, words + names);
    end_what_is_left();
  });
  return false;
}

// Neither the agent nor its keeper ends its members from now on. If the kernel does not let them leave, the group is
// removed by a later agent that finds it empty (remove_abandoned_groups).
void ChildReaper::let_out_of_group() {
  if (!group_) return;
  for (bool has_moved = true; has_moved && group_->is_populated();) {
    has_moved = false;
    for (const pid_t pid : group_->members()) has_moved |= group_->let_out(pid);
  }
  if (keeper_ && group_->is_populated()) keeper_->set_control_group("");
}

}  // namespace ddprun::agent
