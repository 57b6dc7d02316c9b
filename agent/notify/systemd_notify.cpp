#include "agent/notify/systemd_notify.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <utility>

#include "rendezvous/common/descriptor_message.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/parse_number.h"

namespace ddprun::agent {
namespace {

// A limit: steps change much faster than people read.
constexpr std::chrono::seconds kStatusInterval{5};
// A lower limit, so that a very short watchdog time does not keep the event loop busy.
constexpr std::chrono::milliseconds kShortestInterval{1};

}  // namespace

Result<NotifySocket> parse_notify_socket(std::string_view text) {
  NotifySocket socket;
  socket.address.sun_family = AF_UNIX;
  const bool is_abstract = text.starts_with('@');
  if (!is_abstract && !text.starts_with('/')) {
    return fail(ErrorCode::kInvalidArgument, "give the path of a socket, or @ and a name");
  }
  // The address length gives the length of an abstract name; a path ends with a NUL byte.
  if (text.size() < 2 || text.size() + (is_abstract ? 0 : 1) > sizeof socket.address.sun_path) {
    return fail(ErrorCode::kInvalidArgument, "it is not a valid name of a socket");
  }
  std::memcpy(socket.address.sun_path, text.data(), text.size());
  if (is_abstract) socket.address.sun_path[0] = '\0';
  socket.length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + text.size() + (is_abstract ? 0 : 1));
  return socket;
}

Result<std::optional<std::chrono::microseconds>> watchdog_interval(const Environment& environment,
                                                                   long own_pid) {
  const std::string limit = value_or_empty(environment, "WATCHDOG_USEC");
  if (limit.empty()) return std::nullopt;
  const std::string pid = value_or_empty(environment, "WATCHDOG_PID");
  const auto whose = parse_number<long>(pid);
  if (!pid.empty() && !whose) {
    return fail(ErrorCode::kInvalidArgument, "WATCHDOG_PID=" + pid + ": that is not a process id");
  }
  if (whose && *whose != own_pid) return std::nullopt;
  const auto usec = parse_number<std::int64_t>(limit);
  if (!usec || *usec < 1) {
    return fail(ErrorCode::kInvalidArgument,
                "WATCHDOG_USEC=" + limit + ": that is no number of microseconds");
  }
  return std::max<std::chrono::microseconds>(std::chrono::microseconds(*usec / 2),
                                             kShortestInterval);
}

std::vector<StoredFile> stored_files(const Environment& environment, long own_pid) {
  constexpr int kFirst = 3;
  constexpr int kMost = 1024;
  const auto pid = parse_number<long>(value_or_empty(environment, "LISTEN_PID"));
  const auto count = parse_number<int>(value_or_empty(environment, "LISTEN_FDS"));
  std::vector<StoredFile> files;
  if (pid != own_pid || !count || *count < 1 || *count > kMost) return files;
  std::istringstream names(value_or_empty(environment, "LISTEN_FDNAMES"));
  for (int fd = kFirst; fd < kFirst + *count; ++fd) {
    std::string name;
    std::getline(names, name, ':');
    files.push_back({fd, std::move(name)});
  }
  return files;
}

SystemdNotify::SystemdNotify(boost::asio::any_io_executor executor, const Environment& environment,
                             std::function<std::string()> status,
                             std::function<void(std::string_view)> warn)
    : name_(value_or_empty(environment, "NOTIFY_SOCKET")),
      status_(std::move(status)),
      warn_(std::move(warn)),
      watchdog_timer_(executor),
      status_timer_(executor) {
  if (name_.empty()) return;
  auto socket = parse_notify_socket(name_);
  if (!socket) {
    complain(socket.error().to_string());
    return;
  }
  auto interval = watchdog_interval(environment, ::getpid());
  if (interval) {
    watchdog_interval_ = *interval;
  } else {
    warn_(interval.error().to_string() + "; the service manager's watchdog gets no messages");
  }
  fd_ = rdzv::UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  fd_ ? void(socket_ = *socket) : complain(std::strerror(errno));
}

bool SystemdNotify::keep(int fd, const std::string& name) {
  if (!is_on()) return false;
  std::string text = "FDSTORE=1\nFDNAME=" + name + "\n";
  iovec bytes[] = {{text.data(), text.size()}};
  rdzv::DescriptorMessage<1> message(bytes);
  message.header.msg_name = &socket_->address;
  message.header.msg_namelen = socket_->length;
  message.give({&fd, 1});
  return ::sendmsg(fd_.get(), &message.header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

void SystemdNotify::forget(const std::string& name) {
  if (is_on()) tell("FDSTOREREMOVE=1\nFDNAME=" + name + "\n");
}

void SystemdNotify::ready() {
  if (!is_on()) return;
  tell("READY=1\n");
  status_may_have_changed();
  await_status();
  if (watchdog_interval_) await_watchdog();
}

void SystemdNotify::stopping(std::chrono::milliseconds at_most) {
  if (!is_on()) return;
  tell("STOPPING=1\nEXTEND_TIMEOUT_USEC=" +
       std::to_string(std::chrono::microseconds(at_most).count()) + "\n");
  status_may_have_changed();
}

void SystemdNotify::over(const std::string& status) {
  if (!is_on()) return;
  is_over_ = true;
  tell("STATUS=" + printable(status) + "\n");
}

void SystemdNotify::status_may_have_changed() {
  if (!is_on() || is_over_) return;
  std::string status = printable(status_());  // it must be one line of the datagram
  if (status == last_status_) return;
  // A lost status does no harm: another one follows soon.
  if (send("STATUS=" + status + "\n")) last_status_ = std::move(status);
}

void SystemdNotify::await_status() {
  status_timer_.arm(kStatusInterval, [this] {
    if (!owed_.empty()) tell("");
    status_may_have_changed();
    await_status();
  });
}

void SystemdNotify::await_watchdog() {
  watchdog_timer_.arm(*watchdog_interval_, [this] {
    send("WATCHDOG=1\n");
    await_watchdog();
  });
}

// Sends messages that must arrive, in order, as soon as the manager accepts them.
void SystemdNotify::tell(const std::string& state) {
  owed_ += state;
  if (send(owed_)) owed_.clear();
}

// The socket is not connected, so that it also reaches a manager that has made its socket again.
bool SystemdNotify::send(const std::string& state) {
  const auto sent = ::sendto(fd_.get(), state.data(), state.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                             reinterpret_cast<const sockaddr*>(&socket_->address), socket_->length);
  if (sent >= 0) return true;
  if (errno != EAGAIN && errno != EWOULDBLOCK) complain(std::strerror(errno));
  return false;
}

void SystemdNotify::complain(const std::string& what) {
  if (std::exchange(has_complained_, true)) return;
  warn_("NOTIFY_SOCKET=" + name_ + ": " + what +
        "; the service manager gets no status, the job continues");
}

}  // namespace ddprun::agent
