// A call or command in a process of its own, so that it can be killed if it takes too long (for
// example a name look-up that hangs). Started by the constructor, ended at the latest by the
// destructor, together with all processes of its process group. One thread. Start all trials that
// are calls before the first other thread is made, because they fork.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "rendezvous/common/environment.h"
#include "rendezvous/common/exit_status.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::cli {

class TimedProcess {
 public:
  using Clock = std::chrono::steady_clock;
  struct End {
    bool was_in_time = false;  // false: it was killed; ignore the status
    ExitStatus status = ExitStatus::exited(0);
    std::string output;  // what the call returned, or what the command wrote
    std::chrono::milliseconds took{};
  };

  // The text that `function` returns.
  static Result<TimedProcess> call(const std::function<std::string()>& function);
  // Its stdout and stderr, at most the last `kOutputMax` bytes. `argv[0]` is a path.
  static Result<TimedProcess> command(const std::vector<std::string>& argv,
                                      const Environment& environment);
  static constexpr std::size_t kOutputMax = std::size_t{16} * 1024;

  TimedProcess(TimedProcess&& other) noexcept;
  TimedProcess& operator=(TimedProcess&&) = delete;
  ~TimedProcess();

  // At the deadline a command gets SIGTERM and, if it has not ended `kGrace` later, SIGKILL.
  End finish(Clock::time_point deadline);
  static constexpr std::chrono::seconds kGrace{3};

 private:
  TimedProcess(pid_t pid, rdzv::UniqueFd output);
  static Result<TimedProcess> start(const std::function<void(int fd)>& body);
  void read_until(Clock::time_point deadline, End& end);

  pid_t pid_ = -1;  // of the leader of its group; -1: it has ended
  rdzv::UniqueFd output_;
  rdzv::UniqueFd watched_;  // a pidfd; none: there are none here
  Clock::time_point began_ = Clock::now();
};

}  // namespace ddprun::cli
