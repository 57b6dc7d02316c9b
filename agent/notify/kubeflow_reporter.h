// Tells Kubeflow Trainer how far the job is, where its pod was told where to (kubeflow_status.h):
// from the agent of rank 0, over HTTPS, at most every five seconds, and only what rank 0 has said
// over its link. Without the variables this does nothing and never wakes up.
//
// Owned by the supervisor, event loop only. Nothing waits for the endpoint, and nothing that
// goes wrong with it (it is slow, away or another; a token that is missing, malformed or has run
// out) is worth more than one sentence: reports go on at growing distances, with the token and the
// CA's file read anew, since both are exchanged while a job runs.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "agent/loop/timer.h"
#include "agent/notify/kubeflow_status.h"
#include "rendezvous/http/http_client.h"

namespace ddprun::agent {

class KubeflowReporter {
 public:
  using Clock = std::chrono::steady_clock;

  // `progress`: how far the job is now; nothing where that is not for this agent to say. `warn`
  // gets one sentence at most.
  KubeflowReporter(boost::asio::io_context& io, const Environment& environment,
                   std::function<std::optional<JobProgress>()> progress,
                   std::function<void(std::string_view)> warn);
  KubeflowReporter(const KubeflowReporter&) = delete;
  KubeflowReporter& operator=(const KubeflowReporter&) = delete;

  void round_began();
  void look();  // now: what can be seen soon no longer can

  // At the job's end: sends what was not sent yet, if that has worked so far, and calls `done` once,
  // when it has arrived or failed; from here where there is nothing to send.
  void send_last(std::function<void()> done);

 private:
  void await_tick();
  bool has_news() const { return latest_ && latest_ != sent_ && !is_busy_; }
  void push();
  void send_last();
  Result<std::string> token() const;
  Result<void> make_client();
  void on_reply(const Result<rdzv::HttpReply>& reply);
  void on_failure(const std::string& why);

  boost::asio::io_context& io_;
  std::optional<TrainerEndpoint> endpoint_;  // none: nobody wants to know, or it can never be told
  const std::function<std::optional<JobProgress>()> progress_;
  const std::function<void(std::string_view)> warn_;
  Timer tick_;
  std::optional<rdzv::HttpUrl> url_;
  std::unique_ptr<rdzv::HttpClient> client_;  // while it works
  RemainingTime remaining_;
  std::optional<JobProgress> latest_;
  std::optional<std::chrono::seconds> latest_remaining_;
  std::optional<JobProgress> sent_;
  Clock::time_point next_{};  // not before
  int failures_ = 0;          // since it worked
  bool has_begun_ = false;
  bool has_complained_ = false;
  bool is_busy_ = false;
  std::function<void()> when_sent_;  // the last; none: the job goes on
};

}  // namespace ddprun::agent
