// A terminal for tests: a pseudo-terminal whose master side shows what the user sees. Bytes pass
// unchanged by the line discipline. Used from one thread.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <string>

namespace ddprun::test {

class Terminal {
 public:
  Terminal() {
    far_side_ = ::open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (far_side_ < 0 || ::unlockpt(far_side_) != 0) throw std::runtime_error("no terminal");
    fd_ = ::ioctl(far_side_, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    termios mode{};
    if (fd_ < 0 || ::tcgetattr(fd_, &mode) != 0) throw std::runtime_error("no terminal");
    ::cfmakeraw(&mode);
    ::tcsetattr(fd_, TCSANOW, &mode);
  }
  ~Terminal() {
    ::close(far_side_);
    ::close(fd_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // The side to which the program under test writes.
  int fd() const { return fd_; }

  void set_size(unsigned short rows, unsigned short columns) {
    const winsize size{rows, columns, 0, 0};
    if (::ioctl(far_side_, TIOCSWINSZ, &size) != 0) throw std::runtime_error("no window size");
  }

  // Everything written so far.
  const std::string& seen() {
    std::array<char, 4096> buffer;
    for (ssize_t count; (count = ::read(far_side_, buffer.data(), buffer.size())) > 0;) {
      seen_.append(buffer.data(), static_cast<std::size_t>(count));
    }
    return seen_;
  }

 private:
  int far_side_ = -1;
  int fd_ = -1;
  std::string seen_;
};

}  // namespace ddprun::test
