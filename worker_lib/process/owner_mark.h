// Tells a process from the children that it forks: they have copies of its objects, which must not write
// into memory that is shared with others. And from those that have only inherited its descriptors.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "rendezvous/common/unique_fd.h"
#include "worker_lib/process/shared_memory.h"

namespace ddprun {

class OwnerMark {
 public:
  // One byte that is 1 here and 0 in every child that is forked from here on; empty: not possible.
  static OwnerMark make() {
    OwnerMark mark;
    mark.page_ = Mapping::of_this_process(4096);
    Mapping& page = mark.page_;
    if (!page || ::madvise(page.data(), page.size(), MADV_WIPEONFORK) != 0) return {};
    *page.data() = 1;
    return mark;
  }

  bool is_set() const { return page_ && *page_.data() != 0; }

 private:
  Mapping page_;
};

// Whether it is the file in memory that the agent has made for this very process, and begins with such a header.
// The number may long be another file's: nothing is read of what cannot be that one.
template <typename Header>
bool is_own_file(int fd, Header& header) {
  const Header expected;
  struct stat about {};
  return ::fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size == expected.bytes &&
         ::pread(fd, &header, sizeof header, 0) == sizeof header &&
         header.magic == expected.magic && header.bytes == expected.bytes &&
         header.worker_pid == ::getpid();
}

// The agent hands its descriptors over without this flag, so one that has it is somebody's already:
// of another Context, or of a library for another language in this process.
inline bool take_descriptor(int fd) {
  const int flags = ::fcntl(fd, F_GETFD);
  return flags >= 0 && (flags & FD_CLOEXEC) == 0 && ::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
}

// Whether the number is that of memory from memfd_create(name).
inline bool is_memory_named(int fd, std::string_view name) {
  std::array<char, 64> target{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = ::readlink(link.c_str(), target.data(), target.size());
  constexpr std::string_view kKind = "/memfd:";
  const std::string_view text(target.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  return text.starts_with(kKind) && text.substr(kKind.size()).starts_with(name);
}

// A descriptor that stays open while the program runs. The program may close all that it finds, and open files
// that get their numbers: then there is none here, and nothing of the program's is used or closed.
class OwnDescriptor {
 public:
  OwnDescriptor() = default;
  explicit OwnDescriptor(rdzv::UniqueFd fd) : fd_(std::move(fd)) { ::fstat(fd_.get(), &file_); }
  OwnDescriptor(OwnDescriptor&&) = default;
  OwnDescriptor& operator=(OwnDescriptor&& other) noexcept {
    forget_if_closed();
    fd_ = std::move(other.fd_);
    file_ = other.file_;
    return *this;
  }
  ~OwnDescriptor() { forget_if_closed(); }

  // -1: there is none any more.
  int get() const {
    struct stat now {};
    const bool is_it = fd_ && ::fstat(fd_.get(), &now) == 0 && now.st_dev == file_.st_dev &&
                       now.st_ino == file_.st_ino;
    return is_it ? fd_.get() : -1;
  }

 private:
  void forget_if_closed() {
    if (get() < 0) fd_.release();
  }

  rdzv::UniqueFd fd_;
  struct stat file_ {};
};

}  // namespace ddprun
