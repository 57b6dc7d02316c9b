#include "worker_lib/src/shm_door.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace ddprun::shm {
namespace {

constexpr std::size_t kWordBytes = 16;

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

bool send_descriptor(int fd, int sent) {
  DescriptorMessage whole;
  cmsghdr* const head = CMSG_FIRSTHDR(&whole.message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &sent, sizeof sent);
  return ::sendmsg(fd, &whole.message, MSG_NOSIGNAL) == 1;
}

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

constexpr int kKind = SOCK_SEQPACKET | SOCK_CLOEXEC;

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

Result<void> Door::hand_out(const rdzv::UniqueFd& memory, int visitors, Deadline until) {
  for (int came = 0; came < visitors;) {
    if (!await(listener_.get(), until)) {
      return fail(ErrorCode::kTimeout, "only " + std::to_string(came) + " of " +
                                           std::to_string(visitors) +
                                           " ranks of this node came for its shared memory");
    }
    const rdzv::UniqueFd visitor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!visitor) continue;
    const auto peer = peer_of(visitor.get());
    if (!peer || peer->uid != ::geteuid()) continue;
    std::array<char, kWordBytes> said{};
    if (!await(visitor.get(), until)) continue;
    if (::recv(visitor.get(), said.data(), said.size(), 0) != kWordBytes ||
        std::string(said.data(), said.size()) != word_) {
      continue;
    }
    if (send_descriptor(visitor.get(), memory.get())) ++came;
  }
  return {};
}

Result<rdzv::UniqueFd> knock(const std::string& address, Deadline until) {
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
  if (path.size() > sizeof name.sun_path) {
    return fail(ErrorCode::kProtocol, "'" + address + "' is no address of shared memory");
  }
  std::memcpy(name.sun_path, path.data(), path.size());
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
  if (::send(door.get(), word.data(), word.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(word.size())) {
    return fail(error_from_errno(errno, "asking for this node's shared memory"));
  }
  if (!await(door.get(), until)) {
    return fail(ErrorCode::kTimeout, "process " + process + " gave out no shared memory in time");
  }
  rdzv::UniqueFd memory = receive_descriptor(door.get());
  if (!memory) return fail(ErrorCode::kClosed, "process " + process + " gave out no shared memory");
  return memory;
}

}  // namespace ddprun::shm
