#include "agent/supervisor/agent_signals.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "agent/process/process.h"
#include "rendezvous/common/exit_status.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/durations.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr auto kPausePatience = 100ms;  // until the console has written what is queued
// Upper limit for the end of the job after the workers' grace period: stacks, SIGKILL, orphans, the
// other nodes, the report.
constexpr std::chrono::milliseconds kEndLimit = 60s;

}  // namespace

AgentSignals::AgentSignals(const AgentParts& parts, const Others& others, Post post)
    : parts_(parts), others_(others), post_(std::move(post)), received_(parts.io) {}

// A signal that was ignored when the agent started (nohup) stays ignored. The preemption signal is
// always handled, because the user named it. Signals that were blocked are unblocked here, and stop
// signals in the workers, too: nothing could stop the job otherwise. Other signals stay blocked in the
// workers, as under torchrun.
Result<void> AgentSignals::handle() {
  std::vector<int> signals = parts_.job.stop_signals;
  signals.insert(signals.end(), {SIGTSTP, SIGCONT, SIGUSR1, SIGUSR2, SIGWINCH});
  std::erase_if(signals, [](int signal) {
    struct sigaction current {};
    return ::sigaction(signal, nullptr, &current) == 0 && current.sa_handler == SIG_IGN;
  });
  std::vector<int> of_workers = parts_.job.stop_signals;
  of_workers.push_back(SIGCHLD);
  if (parts_.job.preempt_signal) {
    signals.push_back(*parts_.job.preempt_signal);
    of_workers.push_back(*parts_.job.preempt_signal);
  }
  unblock_signals_in_workers(of_workers);
  return received_.handle(signals,
                          [this](const rdzv::ReceivedSignal& received) { on_signal(received); });
}

void AgentSignals::block_notices() const {
  sigset_t notices;
  sigemptyset(&notices);
  for (const int signal : {SIGUSR1, SIGUSR2, parts_.job.preempt_signal.value_or(SIGUSR1)}) {
    sigaddset(&notices, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &notices, nullptr);
}

void AgentSignals::on_signal(const rdzv::ReceivedSignal& received) {
  if (parts_.job.preempt_signal == received.signal) {
    if (others_.core.is_over()) return;  // no worker is left that could leave
    others_.observers.events.write(SignalReceived{received.signal});
    return preempted_by(received.signal);
  }
  const bool is_a_stop = std::ranges::count(parts_.job.stop_signals, received.signal) > 0;
  is_a_stop ? on_stop_signal(received) : on_control_signal(received.signal);
}

void AgentSignals::on_stop_signal(const rdzv::ReceivedSignal& received) {
  const auto now = std::chrono::steady_clock::now();
  const std::string name = signal_name(received.signal);
  const auto meaning = stop_repeats_.of(received.signal, received.is_from_kernel, now);
  if (meaning == StopRepeats::Meaning::kSame) {
    return parts_.log.debug("got " + name +
                            " again within a second: it is the same request to stop");
  }
  if (others_.core.is_over()) {
    parts_.log.warn("got " + name + ": the end of the job is cut short");
    return post_(StopSignal{received.signal});
  }
  others_.observers.events.write(SignalReceived{received.signal});
  if (meaning == StopRepeats::Meaning::kFurther && others_.workers.view().running() > 0) {
    escalate(received);
  } else {
    parts_.log.warn("got " + name + ", stopping the workers");
  }
  if (!stopped_at_) stopped_at_ = now;
  post_(StopSignal{received.signal});
  if (!others_.core.is_over())
    others_.observers.systemd.stopping(parts_.job.shutdown_timeout + kEndLimit);
}

// The report names it: what the workers had not saved by then is lost.
void AgentSignals::escalate(const rdzv::ReceivedSignal& received) {
  const auto after = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - stopped_at_.value());
  const std::string what =
      signal_name(received.signal) +
      (received.sender > 0 ? " from process " + std::to_string(received.sender) : "") + ", " +
      duration_text(after) + " after the first signal";
  parts_.log.warn("got " + what + ": the workers get SIGKILL");
  if (escalation_.empty()) escalation_ = "  killed      the workers, because of " + what + "\n";
}

void AgentSignals::preempted_by(int signal) {
  if (std::exchange(is_preempted_, true)) return;
  parts_.log.warn("got " + signal_name(signal) +
                  ": the job is preempted, workers are asked to leave");
  post_(PreemptSignal{signal});
}

// What was told of a signal before is not told again, but when the machine goes is news.
void AgentSignals::preempted_by(const Notice& notice) {
  if (others_.core.is_over()) return;
  const std::string text = printable(in_words(notice, std::chrono::system_clock::now()));
  others_.observers.events.write(PreemptNotice{std::string(parts_.job.preempt_notice.name()),
                                               notice.instance, notice.at, notice.sentence});
  if (std::exchange(is_preempted_, true)) return parts_.log.warn(text);
  notice_ = "a notice: " + notice.sentence;
  parts_.log.warn(text + ": the job is preempted, workers are asked to leave");
  post_(PreemptSignal{});
}

void AgentSignals::on_control_signal(int signal) {
  if (signal == SIGWINCH) return parts_.output.window_changed();
  if (!others_.core.is_over()) others_.observers.events.write(SignalReceived{signal});
  if (signal == SIGTSTP) return pause();
  others_.workers.signal_all(signal);
}

// Ctrl-Z: the workers have sessions of their own, so the terminal's stop does not reach them.
void AgentSignals::pause() {
  others_.workers.pause_all();
  if (others_.observers.status_line) others_.observers.status_line->hide();
  parts_.console.flush(std::chrono::steady_clock::now() + kPausePatience);
  ::kill(::getpid(), SIGSTOP);
  // Runs after SIGCONT, which on_control_signal() forwards to the workers.
  if (others_.observers.status_line) others_.observers.status_line->start();
}

}  // namespace ddprun::agent
