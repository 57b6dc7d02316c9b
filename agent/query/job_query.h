// The JobView of a running agent: asks the other nodes through the leader
// (rendezvous/round/peer_requests.h), combines their answers, and answers their questions. Waits at
// most kPatience, unless told otherwise, and only for nodes in the leader's list of asked nodes. A question is a JSON
// object with "ask", which chooses the handler. Owned by QueryPort; event loop only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/status/job_view.h"
#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/leader/leader.h"

namespace ddprun::agent {

class JobQuery final : public JobView {
 public:
  static constexpr std::chrono::milliseconds kPatience{90};  // of the 100 that a status may take

  // Functions, because this room lies below what they call, and tests give values.
  struct Access {
    std::function<NodeStatus(std::size_t events_max)> node_status;
    std::function<std::shared_ptr<void>(std::function<void(const std::string&)>)> on_event;
    std::function<rdzv::Leader*()> leader;  // null: not found yet
    // Before node_status(), where there is time: looks at what that does not look at itself.
    std::function<void(std::function<void()> done)> refresh = [](const auto& done) { done(); };
  };
  JobQuery(boost::asio::io_context& io, JobIdentity identity, Access access);
  ~JobQuery() override;

  const JobIdentity& identity() const { return identity_; }
  NodeStatus node_status() const override { return access_.node_status(kEventsKept); }
  void refresh(std::function<void()> done) override { access_.refresh(std::move(done)); }
  void job_status(std::function<void(JobStatus)> done) override;
  std::shared_ptr<void> on_event(std::function<void(const std::string&)> told) override {
    return access_.on_event(std::move(told));
  }

  // The result of a question.
  struct Outcome {
    std::optional<rdzv::PeerAck>
        asked;  // none: the leader has not answered, or only one node was asked
    std::map<NodeId, std::string> answers;
    std::chrono::steady_clock::time_point asked_at;
    std::map<NodeId, std::chrono::steady_clock::time_point> answered_at = {};
  };
  // To one node, or to all others. `done` is called once, after this has returned, with what has come
  // within `patience`.
  void ask(std::optional<NodeId> peer, std::string text, std::function<void(Outcome)> done,
           std::chrono::milliseconds patience = kPatience);

  // To the first node of the round (rdzv::kFirstNode). No answer comes, and it may be lost.
  void tell_first(std::string text);

  // Sets how this node answers questions of this kind, except "status"; the reply may come later.
  using Reply = std::function<void(std::string)>;
  void answer_with(std::string ask, std::function<void(std::string_view question, Reply)> handler);

  // From the leader.
  void take(const rdzv::PeerRequest& question);
  void take(rdzv::PeerReply answer);
  void take(rdzv::PeerAck asked);

 private:
  struct Pending;

  void finish_if_complete(const Pending& pending);
  void finish(std::uint64_t id);
  JobStatus put_together(const Outcome& outcome) const;

  boost::asio::io_context& io_;
  const JobIdentity identity_;
  const Access access_;
  std::map<std::string, std::function<void(std::string_view, Reply)>, std::less<>> handlers_;
  std::uint64_t last_id_;
  std::map<std::uint64_t, std::unique_ptr<Pending>> pending_;
  std::vector<std::function<void(JobStatus)>> awaiting_status_;

  const Lifetime lifetime_;
};

}  // namespace ddprun::agent
