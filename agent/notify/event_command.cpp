#include "agent/notify/event_command.h"

#include <chrono>
#include <utility>

#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/durations.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kPause = 1s;  // between the end of a run and the next
constexpr std::chrono::milliseconds kRunLimit = 30s;
constexpr std::size_t kWaitingBytesMax = std::size_t{1} << 20;

}  // namespace

EventCommand::EventCommand(boost::asio::io_context& io, const std::string& command,
                           const Environment& environment,
                           std::function<void(std::string_view)> warn)
    : io_(io),
      command_(command),
      environment_(environment),
      warn_(std::move(warn)),
      next_(io),
      limit_(io) {}

void EventCommand::begin(std::atomic<pid_t>* keeper_slot) { keeper_slot_ = keeper_slot; }

void EventCommand::round_began(int node_rank) {
  tells_ = node_rank == 0 ? Tells::kYes : Tells::kNo;
  if (tells_ == Tells::kNo) lines_.clear();
  run_later();
}

void EventCommand::job_ends(rdzv::JobOutcome::Kind kind) {
  using Kind = rdzv::JobOutcome::Kind;
  if (kind == Kind::kCannotRun && tells_ == Tells::kNo) tells_ = Tells::kYes;
  const bool had_rounds = kind == Kind::kSucceeded || kind == Kind::kFailed;
  if (had_rounds && tells_ == Tells::kHolds) tells_ = Tells::kNo;
  if (tells_ == Tells::kNo) lines_.clear();
}

void EventCommand::take(std::string_view line) {
  if (tells_ == Tells::kNo) return;
  if (lines_.size() + line.size() > kWaitingBytesMax) {
    if (!std::exchange(has_dropped_, true)) {
      warn_("--on-event: its command is too slow for what happens, and does not get all of it");
    }
    lines_.clear();  // what comes last counts most
  }
  lines_ += line;
  run_later();
}

// Lines of one moment, such as the ends of all workers, come to one run.
void EventCommand::run_later() {
  if (tells_ == Tells::kYes && !lines_.empty() && !run_ && !next_.is_armed()) {
    next_.arm(0ms, [this] { run(); });
  }
}

void EventCommand::run() {
  auto run = CommandRun::start(
      io_,
      {.command = command_,
       .environment = environment_,
       .input = lines_,
       .reads = CommandRun::Reads::kStderr,
       .keeper_slot = keeper_slot_},
      [this](const ExitStatus& end, const std::string& output) { on_end(end, output); });
  lines_.clear();
  if (!run) {
    complain(run.error().to_string());
    return is_idle();
  }
  run_ = *std::move(run);
  is_late_ = false;
  limit_.arm(kRunLimit, [this] { on_late(); });
}

void EventCommand::on_late() {
  is_late_ = true;
  run_->kill();
  complain("it did not end within " + duration_text(kRunLimit) +
           ", and was killed with its children");
}

void EventCommand::on_end(const ExitStatus& end, const std::string& output) {
  limit_.cancel();
  run_.reset();
  if (!end.is_success() && !is_late_) {
    const std::string first_line = output.substr(0, output.find('\n'));
    complain("it ended with " + end.to_string() +
             (first_line.empty() ? "" : ": " + printable(first_line)));
  }
  is_idle();
}

void EventCommand::is_idle() {
  if (!when_idle_) return next_.arm(kPause, [this] { run_later(); });
  if (!lines_.empty()) return run();
  std::exchange(when_idle_, nullptr)();
}

void EventCommand::complain(const std::string& why) {
  if (std::exchange(has_complained_, true)) return;
  warn_("--on-event=" + printable(command_) + ": " + why + "; the job goes on, and so do its runs");
}

void EventCommand::tell_last(std::function<void()> done) {
  when_idle_ = std::move(done);
  tells_ = Tells::kNo;  // what comes after is the end of this node alone
  next_.cancel();
  if (!run_) is_idle();
}

void EventCommand::end() {
  next_.cancel();
  limit_.cancel();
  when_idle_ = nullptr;
  if (run_) run_->kill();
}

}  // namespace ddprun::agent
