#include "agent/children.h"

#include <signal.h>

#include <utility>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr auto kStrangerLimit = 2s;              // that strangers get to end, at most
constexpr auto kKilledStrangerInterval = 100ms;  // the end of one is also told by SIGCHLD
constexpr auto kUnseenStrangerInterval = 1ms;

}  // namespace

Children::Children(boost::asio::io_context& io, const std::string& agent_id, Hooks hooks)
    : signal_(io),
      timer_(io),
      hooks_(std::move(hooks)),
      looks_(io.get_executor(), std::string(kAgentVariable) + "=" + agent_id) {}

Result<void> Children::start(std::size_t workers) {
  become_subreaper();
  signal_.add(SIGCHLD);  // from the first child on: the keeper may be killed at once
  auto keeper = Keeper::start(workers);
  if (!keeper) return fail(std::move(keeper.error()));
  keeper_ = std::move(*keeper);
  await();
  return {};
}

void Children::await() {
  signal_.async_wait([this](const boost::system::error_code& ec, int) {
    if (ec) return;
    await();
    reap();
    if (done_) kill_strangers();
  });
}

bool Children::is_known(pid_t pid) const {
  return (keeper_ && keeper_->pid() == pid) || hooks_.is_owned(pid);
}

void Children::reap() {
  if (keeper_ && keeper_->has_died()) replace_keeper();
  reap_strangers([this](pid_t pid) { return is_known(pid); });
}

void Children::replace_keeper() {
  if (auto replaced = keeper_->replace(); !replaced) {
    hooks_.error("the keeper died and cannot be replaced: " + replaced.error().to_string());
  } else {
    hooks_.warn("the keeper was killed; there is a new one");
    hooks_.on_keeper_replaced(keeper_->pid());
  }
}

void Children::end_strangers(std::function<void()> done) {
  done_ = std::move(done);
  until_ = std::chrono::steady_clock::now() + kStrangerLimit;
  looks_.forget();
  kill_strangers();
}

// A killed stranger's children become ours in turn, so this goes on until there is none left. What
// does not end hangs in the kernel.
void Children::kill_strangers() {
  const auto strangers = strangers_of(looks_, [this](pid_t pid) { return is_known(pid); });
  const bool are_all_gone = strangers.pids.empty() && !strangers.some_unseen;
  if (!are_all_gone && std::chrono::steady_clock::now() < until_) {
    for (const pid_t pid : strangers.pids) ::kill(pid, SIGKILL);
    timer_.arm(strangers.some_unseen ? kUnseenStrangerInterval : kKilledStrangerInterval,
               [this] { kill_strangers(); });
    return;
  }
  for (const pid_t pid : strangers.pids) {
    hooks_.error("process " + std::to_string(pid) + " of a worker does not end");
  }
  for (const pid_t pid : strangers.hanging) {
    hooks_.warn(
        "process " + std::to_string(pid) +
        " hangs in the kernel; whether it is of this job cannot be told, and it is left alone");
  }
  timer_.cancel();
  std::exchange(done_, nullptr)();
}

}  // namespace ddprun::agent
