// One run of a user's command by the shell, in a process group of its own. Of its output the first lines are read when
// it has ended: one that writes more than a pipe holds waits for ever, and is late. Event loop only.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "agent/process/process.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/exit_status.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

class CommandRun {
 public:
  using Done = std::function<void(const ExitStatus&, const std::string& output)>;

  struct What {
    const std::string& command;
    const Environment& environment;
    std::string_view input = {};  // all that its stdin has
    bool wants_errors =
        false;  // the output is stderr's, and stdout goes nowhere; else the other way
    std::atomic<pid_t>* keeper_slot;  // as in ProcessSpec
  };
  // `done` is called once, from the loop, when its group is gone; it may destroy this object.
  static Result<std::unique_ptr<CommandRun>> start(boost::asio::io_context& io, const What& what,
                                                   Done done);
  // Kills it, and does not wait for its end.
  ~CommandRun();

  // With its children. `done` follows, unless the kernel holds it.
  void kill();
  pid_t pid() const { return process_->pid(); }

 private:
  explicit CommandRun(Done done) : done_(std::move(done)) {}
  void on_end(const ExitStatus& end);

  Done done_;
  rdzv::UniqueFd output_;
  std::unique_ptr<WorkerProcess> process_;
};

}  // namespace ddprun::agent
