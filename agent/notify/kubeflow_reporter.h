// Reports the job's progress to Kubeflow Trainer, if the pod's variables say where
// (kubeflow_status.h): from the agent of rank 0, over HTTPS, at most every five seconds. Without
// the variables this does nothing and never wakes up.
//
// Owned by the Observers, event loop only. If anything goes wrong there is one message, and reports
// continue at growing intervals; token and CA file are read again, because both are replaced while
// a job runs: on a thread, since a volume may not answer.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "agent/notify/kubeflow_status.h"
#include "rendezvous/common/loop/blocking_calls.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/http/http_client.h"

namespace ddprun::agent {

class KubeflowReporter {
 public:
  using Clock = std::chrono::steady_clock;

  // `progress`: now; nothing if another agent reports it. `warn` gets at most one message.
  KubeflowReporter(boost::asio::io_context& io, const Environment& environment,
                   std::function<std::optional<JobProgress>()> progress,
                   std::function<void(std::string_view)> warn);

  void round_began();
  void look();  // now, because the workers' progress will soon not be readable any more

  // At the job's end: sends what was not sent yet, if that has worked so far, and calls `done` once,
  // when it has arrived or failed; from here where there is nothing to send.
  void send_last(std::function<void()> done);

 private:
  void await_tick();
  bool has_news() const { return latest_ && latest_ != sent_ && !is_busy_; }
  struct Access;  // what the files say

  void push();
  void send(Access access);
  void send_last();
  void on_reply(const Result<rdzv::HttpReply>& reply);
  void on_failure(const std::string& why);

  boost::asio::io_context& io_;
  std::optional<TrainerEndpoint> endpoint_;  // none: not configured, or cannot work
  const std::function<std::optional<JobProgress>()> progress_;
  const std::function<void(std::string_view)> warn_;
  Timer tick_;
  BlockingCalls files_;
  std::unique_ptr<rdzv::HttpClient> client_;  // while reports work
  RemainingTime remaining_;
  std::optional<JobProgress> latest_;
  std::optional<std::chrono::seconds> latest_remaining_;
  std::optional<JobProgress> sent_;
  Clock::time_point next_{};  // not before
  int failures_ = 0;          // since the last success
  bool has_begun_ = false;
  bool has_complained_ = false;
  bool is_busy_ = false;
  std::function<void()> when_sent_;  // the last; none: the job goes on
};

}  // namespace ddprun::agent
