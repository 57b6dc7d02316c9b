#include "agent/supervisor/stack_request.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "rendezvous/common/limits.h"
#include "rendezvous/common/text/durations.h"
#include "rendezvous/common/trimmed.h"

namespace ddprun::agent {
namespace {

// An answer is JSON, in which a text may be longer than it is.
constexpr std::size_t kAnswerBytes = rdzv::limits::kMaxAnswerBytes / 2;

std::string what_is_missing(const StackDump::Account& account) {
  if (account.debugger.empty()) {
    return account.is_python ? "install py-spy to see its functions"
                             : "install elfutils (for eu-stack) or gdb to see its functions";
  }
  if (!account.has_ended) {
    return account.debugger + " did not end within " + duration_text(kStackLimit);
  }
  // Its last words, but for gdb's about its own settings.
  std::string_view said = trimmed(account.debugger_text);
  const auto last = [&said] { return said.substr(said.rfind('\n') + 1); };
  while (last().find("'set logging ") != std::string_view::npos) {
    said = trimmed(said.substr(0, said.size() - last().size()));
  }
  return account.debugger + " found no stacks" + (said.empty() ? "" : ": " + std::string(last()));
}

WorkerStacks stacks_from(const StackDump::Account& account, const std::string& host) {
  WorkerStacks stacks;
  stacks.rank = account.rank;
  stacks.host = host;
  stacks.pid = account.pid;
  const auto of_kernel = threads_in(account.text, account.pid);
  if (!of_kernel.empty() && of_kernel.front().is_main) {
    stacks.state = of_kernel.front().stack.substr(0, of_kernel.front().stack.find('\n'));
  }
  stacks.source = account.debugger;
  stacks.threads = threads_in(account.debugger_text, account.pid, account.text);
  if (stacks.threads.empty()) {
    stacks.trouble = what_is_missing(account);
    stacks.source = "/proc";
    stacks.threads = of_kernel;
  } else if (account.is_python && account.debugger != "py-spy" &&
             account.debugger != "faulthandler") {
    stacks.trouble = "these are the interpreter's functions: install py-spy to see the program's";
  }
  return stacks;
}

}  // namespace

StackRequest::StackRequest(boost::asio::io_context& io, const Environment& environment,
                           std::string host)
    : io_(io), environment_(environment), host_(std::move(host)), limit_(io) {}

void StackRequest::take(std::vector<StackDump::Worker> workers, StackDump::Threads threads,
                        Done done) {
  std::vector<WorkerStacks> without;
  const auto answer_without = [&](const StackDump::Worker& worker, const char* why) {
    without.push_back({worker.rank, host_, 0, "", "", {}, why});
  };
  if (dump_) {
    for (const auto& worker : workers) {
      answer_without(worker, "somebody else asks for stacks right now: ask again in some seconds");
    }
    return boost::asio::post(io_, [done = std::move(done), without = std::move(without)]() mutable {
      done(std::move(without));
    });
  }
  asked_ = workers.size();
  std::erase_if(workers, [&](const StackDump::Worker& worker) {
    if (worker.pid == 0) answer_without(worker, "it does not run");
    return worker.pid == 0;
  });
  found_ = std::move(without);
  done_ = std::move(done);
  if (workers.empty()) return boost::asio::post(io_, lifetime_.guard([this] { finish(); }));
  limit_.arm(kStackLimit, [this] { finish(); });
  dump_ = std::make_unique<StackDump>(io_, std::move(workers), threads, environment_,
                                      [this] { finish(); });
}

void StackRequest::finish() {
  if (!done_) return;
  limit_.cancel();
  std::vector<WorkerStacks> answer = std::exchange(found_, {});
  if (dump_) {
    for (const StackDump::Account& account : dump_->so_far(kAnswerBytes)) {
      answer.push_back(stacks_from(account, host_));
      shorten(answer.back(), kAnswerBytes / asked_);
    }
  }
  dump_.reset();
  std::ranges::sort(answer, {}, &WorkerStacks::rank);
  std::exchange(done_, nullptr)(std::move(answer));
}

}  // namespace ddprun::agent
