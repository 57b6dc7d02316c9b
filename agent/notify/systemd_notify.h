// Tells a service manager (systemd, Type=notify) over the socket that NOTIFY_SOCKET names
// (sd_notify(3): datagrams of lines) that this agent is ready, its status, that it is alive, that
// it stops. Without that variable this does nothing and never wakes up.
//
// Ready means that the agent supervises, not that a round runs: each node may be started when the
// one before is ready, but the first round needs all of them. Owned by the Observers, event loop
// only, so that systemd notices if the loop hangs. Nothing here blocks, and no error ends a job.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/environment.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

struct NotifySocket {
  sockaddr_un address{};
  socklen_t length = 0;
};

// Pure: "/run/systemd/notify", or "@name" for an abstract socket.
Result<NotifySocket> parse_notify_socket(std::string_view text);

// Half of the watchdog's limit. Nothing: no watchdog, or one for another process. Pure.
Result<std::optional<std::chrono::microseconds>> watchdog_interval(const Environment& environment,
                                                                   long own_pid);

// Descriptors that the manager has kept for this service (sd_listen_fds(3), FDSTORE=1), if they are this process's.
struct StoredFile {
  int fd = -1;
  std::string name{};
};
std::vector<StoredFile> stored_files(const Environment& environment, long own_pid);

class SystemdNotify {
 public:
  // `status` returns the job's status in one line; `warn` gets each message at most once.
  SystemdNotify(boost::asio::any_io_executor executor, const Environment& environment,
                std::function<std::string()> status, std::function<void(std::string_view)> warn);

  bool is_on() const { return socket_.has_value(); }

  // The manager keeps the file for the next start of this service, if its unit has FileDescriptorStoreMax=, until
  // forget(). `name` has no colon. False: the manager cannot be told.
  bool keep(int fd, const std::string& name);
  void forget(const std::string& name);

  void ready();
  void status_may_have_changed();
  // The service stops, which takes at most `at_most`: extends the manager's own limit to that.
  void stopping(std::chrono::milliseconds at_most);
  // The last status, which the manager keeps showing after the end.
  void over(const std::string& status);

 private:
  void tell(const std::string& state);
  bool send(const std::string& state);
  void complain(const std::string& what);
  void await_watchdog();
  void await_status();

  std::optional<NotifySocket> socket_;  // none: there is no manager to notify
  std::string name_;
  rdzv::UniqueFd fd_;
  const std::function<std::string()> status_;
  const std::function<void(std::string_view)> warn_;
  Timer watchdog_timer_;
  Timer status_timer_;
  std::optional<std::chrono::microseconds> watchdog_interval_;
  std::string owed_;         // messages that could not be sent yet and must not be lost
  std::string last_status_;  // the last one that was sent
  bool has_complained_ = false;
  bool is_over_ = false;
};

}  // namespace ddprun::agent
