// One run of a user's command by the shell, or of a program, in a process group of its own. Of its output the start is read
// when it has ended: one that writes more than a pipe holds waits for ever, and is late. Or the end is kept: then it may write
// as much as it likes. Event loop only.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agent/process/process.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/exit_status.h"
#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

class CommandRun {
 public:
  using Done = std::function<void(const ExitStatus&, const std::string& output)>;

  enum class Reads {
    kStdout,  // its start; what is written to the other stream goes nowhere
    kStderr,  // likewise
    kEnd,     // the end of both together
  };

  struct What {
    const std::string& command;
    const Environment& environment;
    std::string_view input = {};  // all that its stdin has
    Reads reads = Reads::kStdout;
    std::atomic<pid_t>* keeper_slot;  // as in ProcessSpec
    // Is executed instead of the command, as execve() takes it; empty: the command.
    std::vector<std::string> program = {};
  };
  // `done` is called once, from the loop, when its group is gone; it may destroy this object.
  static Result<std::unique_ptr<CommandRun>> start(boost::asio::io_context& io, const What& what,
                                                   Done done);
  // Kills it, and does not wait for its end.
  ~CommandRun();

  // With its children. `done` follows, unless the kernel holds it.
  void kill();
  pid_t pid() const { return process_->pid(); }
  // With Reads::kEnd: so far.
  const std::string& end_of_output() const { return end_; }

 private:
  CommandRun(boost::asio::io_context& io, Reads reads, Done done)
      : reads_(reads), done_(std::move(done)), output_(io) {}
  void read_on();
  bool take_part();
  void on_end(const ExitStatus& end);

  const Reads reads_;
  Done done_;
  boost::asio::posix::stream_descriptor output_;
  std::string end_;
  std::unique_ptr<WorkerProcess> process_;
  Lifetime lifetime_;
};

}  // namespace ddprun::agent
