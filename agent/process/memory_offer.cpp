#include "agent/process/memory_offer.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdint>
#include <cstring>
#include <tuple>

#include "rendezvous/common/descriptor_message.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kClientLimit = 500ms;

// A short text in memory of its own.
class ShortText {
 public:
  ShortText& operator<<(std::string_view text) {
    const std::size_t size = std::min(text.size(), text_.size() - size_);
    std::memcpy(text_.data() + size_, text.data(), size);
    size_ += size;
    return *this;
  }
  ShortText& operator<<(std::int64_t number) {
    std::array<char, 24> digits{};
    const auto end = std::to_chars(digits.begin(), digits.end(), number).ptr;
    return *this << std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data()));
  }
  std::string_view view() const { return {text_.data(), size_}; }

 private:
  std::array<char, 160> text_{};
  std::size_t size_ = 0;
};

iovec part_of(std::string_view text) { return {const_cast<char*>(text.data()), text.size()}; }

// A client may have gone, or may not read.
bool send_line(int client, const MemoryOffer& offer, std::string_view rest) {
  std::array parts{part_of("{"), part_of(offer.about), part_of(rest)};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const auto size = static_cast<ssize_t>(1 + offer.about.size() + rest.size());
  return ::sendmsg(client, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == size;
}

bool send_memory(int client, int memory) {
  iovec parts[] = {part_of(memory_words::kMemory)};
  rdzv::DescriptorMessage<1> message(parts);
  message.give({&memory, 1});
  return ::sendmsg(client, &message.header, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(memory_words::kMemory.size());
}

// -1: there is none, or it is another user's.
int accept_ours(int listener) {
  const int client = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (client < 0) return -1;
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
      (peer.uid == ::geteuid() || peer.uid == 0)) {
    return client;
  }
  ::close(client);
  return -1;
}

std::int64_t bytes_in(int memory) {
  struct stat about {};
  return ::fstat(memory, &about) == 0 ? std::int64_t{about.st_blocks} * 512 : 0;
}

// It comes whole, because it is short. Empty: none is there.
std::string_view read_word(int client, std::array<char, 16>& into) {
  const ssize_t size = ::recv(client, into.data(), into.size(), MSG_DONTWAIT);
  return {into.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

void remove(const MemoryOffer& offer) {
  ::unlinkat(offer.folder.get(), offer.name.c_str(), 0);
  ::close(offer.memory.get());
}

}  // namespace

std::optional<bool> await_end_of_agent(int pipe, const MemoryOffer* offer) {
  bool is_dropped = false;
  for (;;) {
    pollfd ready[] = {{pipe, POLLIN, 0},
                      {offer != nullptr ? offer->listener.get() : -1, POLLIN, 0}};
    const int count = ::poll(ready, std::size(ready), -1);
    if (count < 0 && errno == EINTR) continue;
    // First the pipe: an agent that has ended is not one that uses the memory. Where poll() is refused,
    // read() waits, and no client is answered.
    if (count < 0 || ready[0].revents != 0) {
      char word = 0;
      const ssize_t size = ::read(pipe, &word, 1);
      if (size < 0 && errno != EINTR) return std::nullopt;
      if (size > 0 && word == keeper_words::kDrop) is_dropped = true;
      if (size == 0 || (size > 0 && word == keeper_words::kEnd)) return is_dropped;
      continue;
    }
    const int client = offer != nullptr ? accept_ours(ready[1].fd) : -1;
    if (client < 0) continue;
    send_line(client, *offer, ",\"in_use\":true}\n");
    ::close(client);
  }
}

MemoryHolder::MemoryHolder(const MemoryOffer* offer, bool is_dropped, std::time_t ended)
    : offer_(offer), ended_(ended) {
  if (offer_ == nullptr) return;
  if (is_dropped || bytes_in(offer_->memory.get()) == 0) {
    remove(*offer_);
    offer_ = nullptr;
    return;
  }
  until_ = Clock::now() + offer_->time;
  sigset_t ends{};
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  signals_ = ::signalfd(-1, &ends, SFD_CLOEXEC);
}

void MemoryHolder::pause(std::chrono::milliseconds time) {
  if (offer_ == nullptr || Clock::now() >= until_) {
    ::poll(nullptr, 0, static_cast<int>(time.count()));
  } else if (wait_for(offer_->listener.get(), Clock::now() + time)) {
    serve_next();
  }
}

void MemoryHolder::hold() {
  if (offer_ == nullptr) return;
  ::prctl(PR_SET_NAME, "ddprun-memory");
  std::ignore = ::chdir("/");  // the agent's folder may be on a file system that is to be unmounted
  while (offer_ != nullptr && wait_for(offer_->listener.get(), until_)) serve_next();
  if (offer_ != nullptr) remove(*offer_);
}

void MemoryHolder::serve_next() {
  const int client = accept_ours(offer_->listener.get());
  if (client < 0) return;
  if (serve(client)) {
    remove(*offer_);
    offer_ = nullptr;
  }
  ::close(client);
}

// False: the time is over, or a signal ends all.
bool MemoryHolder::wait_for(int fd, Clock::time_point until) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (left <= 0ms) return false;
    pollfd ready[] = {{signals_, POLLIN, 0}, {fd, POLLIN, 0}};
    const auto at_most = static_cast<int>(std::min<std::int64_t>(left.count(), INT_MAX));
    const int count = ::poll(ready, std::size(ready), at_most);
    if (count == 0 || (count < 0 && errno == EINTR)) continue;
    if (count < 0 || ready[0].revents != 0) {  // a keeper that cannot wait cannot hold anything
      until_ = Clock::now();
      return false;
    }
    if (ready[1].revents != 0) return true;
  }
}

// True: nothing is to be held any more.
bool MemoryHolder::serve(int client) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until_ - Clock::now());
  ShortText rest;
  rest << R"(,"in_use":false,"bytes":)" << bytes_in(offer_->memory.get()) << R"(,"ended_unix_s":)"
       << std::int64_t{ended_} << R"(,"left_ms":)" << std::int64_t{left.count()} << "}\n";
  if (!send_line(client, *offer_, rest.view())) return false;
  std::array<char, 16> text{};
  if (!wait_for(client, std::min(until_, Clock::now() + kClientLimit))) return false;
  const auto word = read_word(client, text);
  if (word == memory_words::kForget) return true;
  if (word != memory_words::kTake || !send_memory(client, offer_->memory.get())) return false;
  // Without a limit of its own: who has the memory must not find that another one takes it, too.
  return wait_for(client, until_) && read_word(client, text) == memory_words::kTaken;
}

}  // namespace ddprun::agent
