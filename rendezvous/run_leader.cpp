#include "rendezvous/run_leader.h"

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "rendezvous/common/descriptor_limit.h"
#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/exit_status.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/notice_times.h"
#include "rendezvous/common/stop_repeats.h"
#include "rendezvous/common/text/lists.h"
#include "rendezvous/leader/leader_address.h"
#include "rendezvous/leader/round_server.h"
#include "rendezvous/net/asio_transport.h"
#include "rendezvous/net/event_calls.h"
#include "rendezvous/net/name_lookup.h"
#include "rendezvous/net/received_signals.h"
#include "rendezvous/round/job_outcomes.h"

namespace ddprun::rdzv {
namespace {

void say(const std::string& line) { std::fprintf(stderr, "ddpctl: %s\n", printable(line).c_str()); }

// The machine that runs `ddpctl leader` is expected to know the endpoint's name.
Result<Listener> open_port(const Endpoint& listen) {
  const auto addresses = addresses_of(listen.host);
  if (addresses) return open_leader_port(listen, *addresses);
  return fail(ErrorCode::kNotFound, "the host name is not known: " + addresses.error().message);
}

std::string in_words(const JobOutcome& outcome) {
  switch (outcome.kind) {
    case JobOutcome::Kind::kSucceeded:
      return "every worker has ended with 0";
    case JobOutcome::Kind::kFailed:
      return "rank " + std::to_string(outcome.cause->rank) + " on " + outcome.cause->host +
             " failed with " + outcome.cause->status.to_string();
    case JobOutcome::Kind::kStopped:
      return "it was stopped by " + what_stopped(outcome);
    case JobOutcome::Kind::kCannotRun:
      return outcome.sentence;
  }
  return "";
}

class StandaloneLeader {
 public:
  StandaloneLeader(boost::asio::io_context& io, const LeaderJob& job, Listener listener)
      : io_(io),
        transport_(asio_transport(io)),
        signals_(io),
        server_(transport_, options(job), events(), std::move(listener)),
        notice_timer_(transport_->make_timer()) {}

  int run() {
    const auto handled = signals_.handle(
        {SIGTERM, SIGINT}, [this](const ReceivedSignal& received) { on_signal(received); });
    if (!handled) {
      say(handled.error().to_string());
      return kExitCannotRun;
    }
    tell_of_waiting();
    while (!is_in_a_hurry_ && !server_.may_exit()) {
      io_.run_one();
      tell_of_waiting();
      tell_of_rounds();
    }
    const JobOutcome* outcome = server_.core().outcome();
    if (outcome == nullptr) {
      say("the leader exits before the job has ended; agents that lose it stop their workers");
      return 128 + *stopped_by_;
    }
    say("the job has ended: " + in_words(*outcome));
    return outcome->exit_code;
  }

 private:
  // The first signal stops the job in good order; the second one ends this process.
  void on_signal(const ReceivedSignal& received) {
    switch (
        repeats_.of(received.signal, received.is_from_kernel, std::chrono::steady_clock::now())) {
      case StopRepeats::Meaning::kFirst:
        stopped_by_ = received.signal;
        say("got " + signal_name(received.signal) + ", the job is being stopped on all nodes");
        server_.tell(StopAsked{received.signal});
        return;
      case StopRepeats::Meaning::kSame:
        return;
      case StopRepeats::Meaning::kFurther:
        stopped_by_ = received.signal;
        is_in_a_hurry_ = true;
    }
  }
  static RoundServerOptions options(const LeaderJob& job) {
    const bool is_everywhere = job.listen.host == "0.0.0.0" || job.listen.host == "::";
    RoundServerOptions options{job.round, job.keep_alive, job.proof,
                               is_everywhere ? "" : job.listen.host};
    options.round.own_node.reset();
    return options;
  }
  static LeaderEvents events() {
    LeaderEvents events;
    events.on_event = [](const LeaderEvent& event) {
      if (const auto* warning = std::get_if<LeaderWarning>(&event)) say(warning->line);
    };
    return events;
  }
  // What the nodes of the job say while they wait, and when they do.
  void tell_of_waiting() {
    const auto wait = server_.wait();
    if (!wait) {
      notices_.reset();
      return notice_timer_->cancel();
    }
    if (!notices_) notices_.emplace();
    if (!notices_->are_due(transport_->now())) return;
    const bool is_first = !std::exchange(has_told_where_, true);
    say(is_first ? "this process " + describe(server_.bound(), *wait, "--listen")
                 : describe(*wait));
    notice_timer_->at(notices_->next(), [] {});  // wakes the loop
  }
  void tell_of_rounds() {
    const RoundCore& core = server_.core();
    if (core.is_running() && told_ != core.round()) {
      told_ = core.round();
      say("round " + to_string(core.round()) + " has begun, " +
          counted(static_cast<std::int64_t>(core.group_size()), "node"));
    }
    if (core.are_some_done() && told_of_the_first_end_ != core.round()) {
      told_of_the_first_end_ = core.round();
      say("a worker has ended with 0: new nodes have to wait");
    }
  }

  boost::asio::io_context& io_;
  const std::shared_ptr<Transport> transport_;
  ReceivedSignals signals_;
  StopRepeats repeats_;
  RoundServer server_;
  std::optional<Notices> notices_;  // while nodes are awaited
  bool has_told_where_ = false;
  const std::unique_ptr<TransportTimer> notice_timer_;
  std::optional<int> stopped_by_;
  bool is_in_a_hurry_ = false;
  std::optional<Round> told_;
  std::optional<Round> told_of_the_first_end_;
};

}  // namespace

int run_leader(const LeaderJob& job) {
  raise_descriptor_limit();
  if (const auto tried = try_event_calls(); !tried) {
    say(tried.error().to_string());
    return kExitCannotRun;
  }
  boost::asio::io_context io(1);
  auto listener = open_port(job.listen);
  if (!listener) {
    say("cannot listen at " + job.listen.to_string() + ": " + listener.error().to_string());
    return kExitCannotRun;
  }
  std::printf("%s\n", listener->bound.to_string().c_str());
  std::fflush(stdout);
  return StandaloneLeader(io, job, std::move(*listener)).run();
}

}  // namespace ddprun::rdzv
