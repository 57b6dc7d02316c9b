// What the main threads of some Python workers do, looked at several times within seconds: one request at a time. The
// workers answer themselves (agent/process/python_stacks.h), in a millisecond each; a program that cannot has no answer, and
// no debugger stops it. Owned by NodeStacks; event loop only, and a thread reads.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "agent/query/lag_query.h"
#include "rendezvous/common/loop/blocking_calls.h"
#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/loop/timer.h"

namespace ddprun::agent {

class StackSamples {
 public:
  using Done = std::function<void(std::vector<RankSamples>)>;
  struct Worker {
    int rank = 0;
    pid_t pid = 0;
  };

  static constexpr std::chrono::seconds kLimit{8};

  // What faulthandler writes of a worker's process; empty: it does not answer. Runs on the thread.
  static std::string text_of(pid_t leader);

  struct Ways {  // a test has others
    std::function<std::string(pid_t)> text_of = &StackSamples::text_of;
    // At random in between, so that looks and steps do not go in time with each other.
    std::chrono::milliseconds pause_min{30};
    std::chrono::milliseconds pause_max{100};
    std::chrono::milliseconds limit = kLimit;
  };
  explicit StackSamples(boost::asio::io_context& io) : StackSamples(io, Ways()) {}
  StackSamples(boost::asio::io_context& io, Ways ways)
      : io_(io),
        ways_(std::move(ways)),
        timer_(io),
        limit_(io),
        calls_(io.get_executor(), "ddprun-samples") {}

  // `done` is called once, after this has returned, and never after this object is destroyed. At once and with nothing, if
  // there is a request already; with what there is, if finish() is called before, or at the limit.
  void take(std::vector<Worker> workers, Done done);
  void finish();

 private:
  void look_later();
  void look();

  boost::asio::io_context& io_;
  const Ways ways_;
  std::vector<Worker> workers_;
  std::vector<RankSamples> seen_;  // by place in workers_
  int looks_ = 0;
  std::uint64_t request_ = 0;  // counts them
  Done done_;                  // null: there is no request
  Timer timer_;
  Timer limit_;  // workers that answer late, or a thread that hangs in the kernel
  BlockingCalls calls_;
  const Lifetime lifetime_;
};

}  // namespace ddprun::agent
