// --on-event: runs the user's command with what happens, as JSON lines on its stdin, beside the job: never two at a time
// and at most one a second, so a run may get several lines. Only the first node of a round (node rank 0) tells; lines from
// before the first round are held until it is known which node that is. A command that takes longer than half a minute is
// killed; a command that fails is a warning, once. Owned by the Observers; event loop only.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "agent/process/command_run.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/exit_status.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::agent {

class EventCommand {
 public:
  // `command` and `environment` outlive this object. Without take() nothing happens. `warn` gets at most two messages: that the
  // command fails, and that lines were dropped.
  EventCommand(boost::asio::io_context& io, const std::string& command,
               const Environment& environment, std::function<void(std::string_view)> warn);

  // Before take(). `keeper_slot`: for the group of the command.
  void begin(std::atomic<pid_t>* keeper_slot);
  // Before the event of that round.
  void round_began(int node_rank);
  // Before the event of the job's end. A node that is left alone tells it, whichever it is; one that was never in a round of
  // a job that had rounds does not.
  void job_ends(rdzv::JobOutcome::Kind kind);
  void take(std::string_view line);

  // At the job's end: runs the command with the lines that are left, and calls `done` once when it has ended; from here
  // where there is nothing to tell.
  void tell_last(std::function<void()> done);
  // Kills it. tell_last() follows no more.
  void end();

  // The child is the command, which must not be reaped as an orphan.
  bool owns(pid_t child) const { return run_ && run_->pid() == child; }

 private:
  enum class Tells { kHolds, kYes, kNo };

  void run_later();
  void run();
  void on_end(const ExitStatus& end, const std::string& output);
  void on_late();
  void complain(const std::string& why);
  void is_idle();

  boost::asio::io_context& io_;
  const std::string& command_;
  const Environment& environment_;
  const std::function<void(std::string_view)> warn_;
  std::atomic<pid_t>* keeper_slot_ = nullptr;
  Tells tells_ = Tells::kHolds;
  std::string lines_;         // that no run has got yet
  bool has_dropped_ = false;  // lines, since there were too many
  bool has_complained_ = false;
  bool is_late_ = false;  // the run that was killed for it
  std::unique_ptr<CommandRun> run_;
  Timer next_;
  Timer limit_;
  std::function<void()> when_idle_;  // tell_last() was called
};

}  // namespace ddprun::agent
