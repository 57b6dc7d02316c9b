// What a service manager (systemd, Type=notify) is told about this agent, over the socket that
// NOTIFY_SOCKET names: that it is ready, what it does, that it is alive, that it stops. Without
// that variable this does nothing and never wakes up. The protocol is sd_notify(3)'s, a datagram of
// lines; no library of systemd's is needed.
//
// Ready means that the agent stands and supervises, not that a round runs: nodes of a job are often
// started one after the other, each waiting for the one before to be ready, and the first round
// needs them all. What it waits for is in the status.
//
// Owned by the supervisor, event loop only: WATCHDOG=1 is sent from there, so that an event
// loop that hangs is noticed. Nothing here waits, and nothing that goes wrong here is worth a job.
// The mistake to avoid: handing these variables on to workers
// (worker_environment drops them).
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "agent/loop/timer.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

struct NotifySocket {
  sockaddr_un address{};
  socklen_t length = 0;
};

// Pure: "/run/systemd/notify", or "@name" for an abstract socket.
Result<NotifySocket> parse_notify_socket(std::string_view text);

// How often the watchdog is to be told: half of what it allows. Nothing: no watchdog, or one for
// another process. Pure.
Result<std::optional<std::chrono::microseconds>> watchdog_interval(const Environment& environment,
                                                                   long own_pid);

class SystemdNotify {
 public:
  // `status`: one line on how the job is, asked for when it may have changed. `warn` gets a
  // sentence about what cannot work, each at most once.
  SystemdNotify(boost::asio::any_io_executor executor, const Environment& environment,
                std::function<std::string()> status, std::function<void(std::string_view)> warn);
  SystemdNotify(const SystemdNotify&) = delete;
  SystemdNotify& operator=(const SystemdNotify&) = delete;

  void ready();
  void status_may_have_changed();
  // The service was told to stop, which takes `at_most`: the manager's own limit must not be
  // shorter.
  void stopping(std::chrono::milliseconds at_most);
  // The last status, which the manager shows for as long as it remembers the service.
  void over(const std::string& status);

 private:
  bool is_on() const { return socket_.has_value(); }
  void tell(const std::string& state);
  bool send(const std::string& state);
  void complain(const std::string& what);
  void await_watchdog();
  void await_status();

  std::optional<NotifySocket> socket_;  // none: nobody wants to know
  std::string name_;
  rdzv::UniqueFd fd_;
  const std::function<std::string()> status_;
  const std::function<void(std::string_view)> warn_;
  Timer watchdog_timer_;
  Timer status_timer_;
  std::optional<std::chrono::microseconds> watchdog_interval_;
  std::string owed_;         // what could not be sent yet and must not be lost
  std::string last_status_;  // that was sent
  bool has_complained_ = false;
  bool is_over_ = false;
};

}  // namespace ddprun::agent
