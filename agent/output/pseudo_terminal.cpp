#include "agent/output/pseudo_terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace ddprun::agent {

Result<PseudoTerminal> open_pseudo_terminal(int like) {
  PseudoTerminal result;
  result.agent_fd = ::open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
  if (result.agent_fd < 0) return fail(error_from_errno(errno, "cannot open /dev/ptmx"));
  if (::unlockpt(result.agent_fd) == 0) {
    // Without the device's name, which may be wrong in another mount namespace.
    result.worker_fd = ::ioctl(result.agent_fd, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
  }
  termios mode{};
  if (result.worker_fd < 0 || ::tcgetattr(result.worker_fd, &mode) != 0) {
    Error error = error_from_errno(errno, "cannot open a pseudo-terminal for a worker's stderr");
    ::close(result.agent_fd);
    if (result.worker_fd >= 0) ::close(result.worker_fd);
    return fail(std::move(error));
  }
  ::cfmakeraw(&mode);
  ::tcsetattr(result.worker_fd, TCSANOW, &mode);
  copy_window_size(like, result.agent_fd);
  return result;
}

void copy_window_size(int from, int to) {
  winsize size{};
  if (::ioctl(from, TIOCGWINSZ, &size) == 0) ::ioctl(to, TIOCSWINSZ, &size);
}

}  // namespace ddprun::agent
