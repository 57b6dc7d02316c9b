// Asks every 5 s whether the provider takes this machine back (--preempt-notice), until a notice has come or end() is
// called. Each question has a second; without an answer there is no notice. Nothing here waits: requests go over the
// event loop, and a command is a process. Owned by the Supervisor; event loop only.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "agent/job.h"
#include "agent/notice/provider_answers.h"
#include "agent/process/command_run.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/http/http_client.h"

namespace ddprun::agent {

class NoticeWatch {
 public:
  using Clock = std::chrono::steady_clock;
  struct Hooks {
    std::function<void(const Notice&)> notice;    // at most once
    std::function<void(std::string_view)> warn;   // likewise: there is no answer that can be used
    std::function<void(std::string_view)> debug;  // likewise, each time
  };

  // Both outlive this object.
  NoticeWatch(boost::asio::io_context& io, const NoticeSpec& spec, const Environment& environment,
              Hooks hooks);

  // Does nothing without the option. `keeper_slot`: for the group of the command.
  void begin(std::atomic<pid_t>* keeper_slot);
  void end();
  // The child is the command, which must not be reaped as an orphan.
  bool owns(pid_t child) const { return run_ && run_->pid() == child; }

 private:
  void ask();
  void send(rdzv::HttpRequest request);
  void on_reply(const Result<rdzv::HttpReply>& reply);
  void run();
  void on_late();
  void answered(const Answer& answer);
  void is_unclear(const std::string& why);

  boost::asio::io_context& io_;
  const NoticeSpec& spec_;
  const Environment& environment_;
  const Hooks hooks_;
  std::atomic<pid_t>* keeper_slot_ = nullptr;
  MetadataTalk talk_;
  Timer next_;
  Timer limit_;  // armed while a question is open
  std::unique_ptr<rdzv::HttpClient> client_;
  std::unique_ptr<CommandRun> run_;  // until it has ended, also if it is late
  int unclear_in_a_row_ = 0;
  bool has_complained_ = false;
};

}  // namespace ddprun::agent
