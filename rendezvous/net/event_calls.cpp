#include "rendezvous/net/event_calls.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>

#include "rendezvous/common/unique_fd.h"

namespace ddprun::rdzv {
namespace {

tl::unexpected<Error> refused(const char* call) {
  return fail(
      error_from_errno(errno, std::string("ddprun cannot wait for events here: ").append(call)));
}

}  // namespace

Result<void> try_event_calls() {
  struct sigaction action {};
  if (::sigaction(SIGCHLD, nullptr, &action) != 0) return refused("rt_sigaction");
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return refused("pipe2");
  const UniqueFd reading(ends[0]);
  const UniqueFd writing(ends[1]);
  int on = 1;
  if (::fcntl(reading.get(), F_SETFL, O_NONBLOCK) != 0) return refused("fcntl");
  if (::ioctl(reading.get(), FIONBIO, &on) != 0) return refused("ioctl");
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return refused("epoll_create1");
  epoll_event event{.events = EPOLLIN, .data = {}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, reading.get(), &event) != 0) {
    return refused("epoll_ctl");
  }
  char byte = 0;
  if (::write(writing.get(), &byte, 1) != 1) return refused("write");
  if (::epoll_wait(epoll.get(), &event, 1, 0) < 0) return refused("epoll_wait");
  if (::read(reading.get(), &byte, 1) != 1) return refused("read");
  // Without this descriptor Asio lets epoll_wait() end in time.
  const UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
  const itimerspec never{};
  if (timer && ::timerfd_settime(timer.get(), 0, &never, nullptr) != 0) {
    return refused("timerfd_settime");
  }
  return {};
}

}  // namespace ddprun::rdzv
