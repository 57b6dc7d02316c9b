// What the main threads of some Python workers do, looked at several times within seconds: one request at a time. The
// workers answer themselves (agent/process/python_stacks.h), in a millisecond each; a program that cannot has no answer, and
// no debugger stops it. Owned by NodeStacks; event loop only, and a thread reads.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "agent/query/lag_query.h"
#include "rendezvous/common/loop/blocking_calls.h"
#include "rendezvous/common/loop/timer.h"

namespace ddprun::agent {

class StackSamples {
 public:
  using Done = std::function<void(std::vector<RankSamples>)>;
  struct Worker {
    int rank = 0;
    pid_t pid = 0;
  };

  explicit StackSamples(boost::asio::io_context& io)
      : io_(io), timer_(io), calls_(io.get_executor(), "ddprun-samples") {}

  // `done` is called once, after this has returned. At once and with nothing, if there is a request already; with what there
  // is, if finish() is called before.
  void take(std::vector<Worker> workers, Done done);
  void finish();

 private:
  void look_later();
  void look();

  boost::asio::io_context& io_;
  std::vector<Worker> workers_;
  std::vector<RankSamples> seen_;  // by place in workers_
  int looks_ = 0;
  std::uint64_t request_ = 0;  // counts them
  Done done_;                  // null: there is no request
  Timer timer_;
  BlockingCalls calls_;
};

}  // namespace ddprun::agent
