#include "worker_lib/shm/shm_door.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace ddprun::shm {
namespace {

constexpr std::size_t kWordBytes = 16;
constexpr int kKind = SOCK_SEQPACKET | SOCK_CLOEXEC;

std::string hex(const void* bytes, std::size_t size) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < size; ++i) {
    const auto byte = static_cast<const unsigned char*>(bytes)[i];
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string bytes_of_hex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    unsigned value = 0;
    std::from_chars(text.data() + i, text.data() + i + 2, value, 16);
    bytes += static_cast<char>(value);
  }
  return bytes;
}

// What a visitor says at the door.
struct Knock {
  std::array<char, kWordBytes> word{};
  std::int32_t place = 0;
};

// Until `fd` can be read; false at the deadline.
bool await(int fd, Deadline until) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd polled{fd, POLLIN, 0};
    const int ready = ::poll(
        &polled, 1, static_cast<int>(std::min<std::int64_t>(left.count(), std::int64_t{1} << 30)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

Result<ucred> peer_of(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return fail(error_from_errno(errno, "asking who is at the other end of a Unix socket"));
  }
  return peer;
}

// A byte with room for one descriptor; `message` points into the rest, so it stays where it is.
struct DescriptorMessage {
  DescriptorMessage() {
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  char byte = 'm';
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
};

// An invalid one is a message without a descriptor.
bool send_descriptor(int fd, int sent) {
  DescriptorMessage whole;
  if (sent < 0) {
    whole.message.msg_controllen = 0;
  } else {
    cmsghdr* const head = CMSG_FIRSTHDR(&whole.message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &sent, sizeof sent);
  }
  return ::sendmsg(fd, &whole.message, MSG_NOSIGNAL) == 1;
}

// Invalid where none came.
rdzv::UniqueFd receive_descriptor(int fd) {
  DescriptorMessage whole;
  if (::recvmsg(fd, &whole.message, MSG_CMSG_CLOEXEC) != 1) return {};
  const cmsghdr* const head = CMSG_FIRSTHDR(&whole.message);
  if (head == nullptr || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS ||
      head->cmsg_len != CMSG_LEN(sizeof(int))) {
    return {};
  }
  int received = -1;
  std::memcpy(&received, CMSG_DATA(head), sizeof received);
  return rdzv::UniqueFd(received);
}

tl::unexpected<Error> went_away(pid_t pid) {
  return fail(ErrorCode::kClosed, "process " + std::to_string(pid) +
                                      " went away while the ranks of its node made their group");
}

tl::unexpected<Error> is_silent(pid_t pid) {
  return fail(ErrorCode::kTimeout,
              "process " + std::to_string(pid) +
                  " said nothing in time while the ranks of its node made their group");
}

}  // namespace

Door::Door(rdzv::UniqueFd listener, std::string word, std::string address)
    : listener_(std::move(listener)), word_(std::move(word)), address_(std::move(address)) {}

Result<Door> Door::open() {
  rdzv::UniqueFd listener(::socket(AF_UNIX, kKind, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  // An address without a path: the kernel chooses a free one.
  if (!listener ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(sa_family_t)) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0) {
    return fail(error_from_errno(errno, "opening a Unix socket"));
  }
  socklen_t size = sizeof name;
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&name), &size);
  std::array<char, kWordBytes> word{};
  if (::getrandom(word.data(), word.size(), 0) != static_cast<ssize_t>(word.size())) {
    return fail(error_from_errno(errno, "getrandom"));
  }
  const std::string address = hex(name.sun_path, size - sizeof(sa_family_t)) + ":" +
                              std::to_string(::getpid()) + ":" + hex(word.data(), word.size());
  return Door(std::move(listener), std::string(word.data(), word.size()), address);
}

Circle::Circle(std::vector<Member> others, bool is_host, Deadline until)
    : others_(std::move(others)), is_host_(is_host), until_(until) {}

Result<Circle> Circle::host(const Door& door, int size, Deadline until) {
  std::vector<Member> others(static_cast<std::size_t>(size) - 1);
  for (std::size_t came = 0; came < others.size();) {
    if (!await(door.listener_.get(), until)) {
      return fail(ErrorCode::kTimeout, "only " + std::to_string(came) + " of " +
                                           std::to_string(others.size()) +
                                           " ranks of this node came for its shared memory");
    }
    rdzv::UniqueFd visitor(::accept4(door.listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!visitor) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return fail(error_from_errno(errno, "letting in a rank of this node"));
    }
    const auto peer = peer_of(visitor.get());
    if (!peer || peer->uid != ::geteuid()) continue;
    Knock knock;
    if (!await(visitor.get(), until)) continue;
    if (::recv(visitor.get(), &knock, sizeof knock, 0) != sizeof knock ||
        std::string_view(knock.word.data(), kWordBytes) != door.word_) {
      continue;
    }
    if (knock.place < 1 || knock.place >= size) continue;
    Member& member = others[static_cast<std::size_t>(knock.place) - 1];
    if (member.connection) continue;
    member = {std::move(visitor), peer->pid};
    ++came;
  }
  return Circle(std::move(others), true, until);
}

Result<Circle> Circle::visit(const std::string& address, int place, Deadline until) {
  const std::size_t first = address.find(':');
  const std::size_t second = address.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) {
    return fail(ErrorCode::kProtocol, "'" + address + "' is no address of shared memory");
  }
  const std::string path = bytes_of_hex(address.substr(0, first));
  const std::string process = address.substr(first + 1, second - first - 1);
  const std::string word = bytes_of_hex(address.substr(second + 1));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  Knock knock{.place = place};
  if (path.size() > sizeof name.sun_path || word.size() != knock.word.size()) {
    return fail(ErrorCode::kProtocol, "'" + address + "' is no address of shared memory");
  }
  std::memcpy(name.sun_path, path.data(), path.size());
  std::copy(word.begin(), word.end(), knock.word.begin());
  rdzv::UniqueFd door(::socket(AF_UNIX, kKind, 0));
  if (!door || ::connect(door.get(), reinterpret_cast<const sockaddr*>(&name),
                         static_cast<socklen_t>(sizeof(sa_family_t) + path.size())) != 0) {
    return fail(error_from_errno(errno, "reaching the rank of this node that has made the memory"));
  }
  const auto peer = peer_of(door.get());
  if (!peer) return fail(peer.error());
  if (peer->uid != ::geteuid() || std::to_string(peer->pid) != process) {
    return fail(ErrorCode::kPermissionDenied, "process " + std::to_string(peer->pid) + " of user " +
                                                  std::to_string(peer->uid) +
                                                  " answers where process " + process + " should");
  }
  if (::send(door.get(), &knock, sizeof knock, MSG_NOSIGNAL) != sizeof knock) {
    return went_away(peer->pid);
  }
  std::vector<Member> others;
  others.push_back({std::move(door), peer->pid});
  return Circle(std::move(others), false, until);
}

Result<void> Circle::give(const rdzv::UniqueFd& memory) {
  for (const Member& member : others_) {
    if (!send_descriptor(member.connection.get(), memory.get())) return went_away(member.pid);
  }
  return {};
}

Result<rdzv::UniqueFd> Circle::take() {
  const Member& host = others_.front();
  if (!await(host.connection.get(), until_)) return is_silent(host.pid);
  rdzv::UniqueFd memory = receive_descriptor(host.connection.get());
  if (memory) return memory;
  return fail(ErrorCode::kClosed,
              "process " + std::to_string(host.pid) + " gave out no shared memory");
}

Result<std::string> Circle::agree(const std::string& trouble) {
  if (!is_host_) {
    if (auto said = say(others_.front(), trouble); !said) return fail(said.error());
    return hear(others_.front());
  }
  std::string first = trouble.substr(0, kMostWords);
  for (const Member& member : others_) {
    auto heard = hear(member);
    if (!heard) return heard;
    if (first.empty()) first = std::move(*heard);
  }
  for (const Member& member : others_) {
    if (auto said = say(member, first); !said) return fail(said.error());
  }
  return first;
}

// With a byte in front, since a message of no bytes reads like an end.
Result<void> Circle::say(const Member& member, const std::string& words) {
  const std::string message = "w" + words.substr(0, kMostWords);
  if (::send(member.connection.get(), message.data(), message.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(message.size())) {
    return went_away(member.pid);
  }
  return {};
}

Result<std::string> Circle::hear(const Member& member) const {
  if (!await(member.connection.get(), until_)) return is_silent(member.pid);
  std::string message(kMostWords + 1, '\0');
  const ssize_t size = ::recv(member.connection.get(), message.data(), message.size(), 0);
  if (size <= 0) return went_away(member.pid);
  return message.substr(1, static_cast<std::size_t>(size) - 1);
}

}  // namespace ddprun::shm
