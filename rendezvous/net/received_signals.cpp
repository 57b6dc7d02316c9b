#include "rendezvous/net/received_signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/buffer.hpp>
#include <cerrno>
#include <tuple>
#include <utility>

#include "rendezvous/common/signals_blocked.h"

namespace ddprun::rdzv {
namespace {

std::atomic<int> writing_end_of_process{-1};
static_assert(std::atomic<int>::is_always_lock_free);

// Runs in any thread, between any two instructions. A write of less than PIPE_BUF bytes is whole; where the pipe is
// full, the event loop has thousands of signals to read already.
void on_signal(int signal, siginfo_t* info, void*) {
  const int errno_before = errno;
  const bool is_from_kernel = info->si_code > 0;
  const ReceivedSignal received{signal, is_from_kernel ? 0 : info->si_pid, is_from_kernel};
  std::ignore = ::write(writing_end_of_process.load(), &received, sizeof received);
  errno = errno_before;
}

}  // namespace

ReceivedSignals::~ReceivedSignals() {
  for (const int signal : handled_) ::signal(signal, SIG_DFL);
  if (writing_end_) writing_end_of_process.store(-1);
}

Result<void> ReceivedSignals::handle(const std::vector<int>& signals,
                                     std::function<void(const ReceivedSignal&)> received) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    return fail(error_from_errno(errno, "cannot make a pipe for signals"));
  }
  writing_end_.reset(ends[1]);
  boost::system::error_code ec;
  pipe_.assign(ends[0], ec);
  if (ec) {
    ::close(ends[0]);
    return fail(error_from_errno(ec.value(), "cannot wait for signals"));
  }
  writing_end_of_process.store(writing_end_.get());
  received_ = std::move(received);
  for (const int signal : signals) {
    struct sigaction action {};
    action.sa_sigaction = &on_signal;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    ::sigfillset(&action.sa_mask);
    if (::sigaction(signal, &action, nullptr) == 0) handled_.push_back(signal);
  }
  unblock_signals(handled_);
  await();
  return {};
}

void ReceivedSignals::await() {
  pipe_.async_read_some(
      boost::asio::buffer(arrived_.data(), sizeof arrived_),
      lifetime_.guard([this](const boost::system::error_code& ec, std::size_t bytes) {
        if (ec) return;
        const auto signals = arrived_;
        await();
        for (std::size_t i = 0; i < bytes / sizeof(ReceivedSignal); ++i) received_(signals[i]);
      }));
}

}  // namespace ddprun::rdzv
