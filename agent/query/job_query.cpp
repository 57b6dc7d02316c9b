#include "agent/query/job_query.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <set>
#include <utility>

#include "agent/query/log_query.h"
#include "rendezvous/common/limits.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/common/random_number.h"
#include "rendezvous/common/text/durations.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kEventsOfOthers = 10;
constexpr int kMissingRanksMax = 4096;  // whose ranks are listed
constexpr const char* kStatusQuestion = R"({"ask":"status"})";

LeaderStatus leader_status(const rdzv::LeaderView& view) {
  constexpr std::string_view kStates[] = {"gathering", "pausing",  "opening",
                                          "running",   "stopping", "ended"};
  LeaderStatus status;
  status.state = kStates[static_cast<std::size_t>(view.state)];
  status.round = view.round;
  status.min_nodes = view.min_nodes;
  status.max_nodes = view.max_nodes;
  const bool has_group = view.state == rdzv::LeaderView::State::kRunning ||
                         view.state == rdzv::LeaderView::State::kStopping;
  status.missing = std::max((has_group ? view.max_nodes : view.min_nodes) - view.ready, 0);
  if (view.left) status.left = std::chrono::duration_cast<std::chrono::microseconds>(*view.left);
  status.restarts = view.restarts;
  status.max_restarts = view.max_restarts;
  status.has_exact_ranks = view.has_exact_ranks;
  status.is_finishing = view.is_finishing;
  for (const auto& host : view.left_out) {
    status.left_out.push_back({host.host, host.address, host.why});
  }
  std::set<int> ranks;
  for (const auto& each : view.members) {
    status.members.push_back({number(each.id),
                              each.host,
                              each.address,
                              each.workers,
                              each.node_rank,
                              static_cast<MemberStatus::State>(each.place),
                              each.leads,
                              {}});
    for (const auto& host : view.left_out) {
      if (host.host == each.host && host.address == each.address) {
        status.members.back().left_out = host.why;
      }
    }
    if (each.node_rank) ranks.insert(*each.node_rank);
  }
  status.members_left_out = view.members_left_out;
  const int named = view.has_exact_ranks ? std::min(view.max_nodes, kMissingRanksMax) : 0;
  for (int rank = 0; rank < named; ++rank) {
    if (!ranks.contains(rank)) status.missing_ranks.push_back(rank);
  }
  return status;
}

}  // namespace

struct JobQuery::Pending {
  const std::uint64_t id;
  const std::optional<NodeId> peer;
  const std::function<void(Outcome)> done;
  Timer patience;
  Outcome outcome = {};
  std::set<NodeId> awaited = {};  // of the nodes in the leader's list
};

// Random, so that an answer to an earlier agent on this node is not taken for one to us.
JobQuery::JobQuery(boost::asio::io_context& io, JobIdentity identity, Access access)
    : io_(io),
      identity_(std::move(identity)),
      access_(std::move(access)),
      last_id_(random_number() << 32) {}

JobQuery::~JobQuery() = default;

// ---- asking

void JobQuery::ask(std::optional<NodeId> peer, std::string text, std::function<void(Outcome)> done,
                   std::chrono::milliseconds patience) {
  const std::uint64_t id = ++last_id_;
  auto& pending = pending_[id];
  pending.reset(new Pending{id, peer, std::move(done), Timer(io_)});
  pending->outcome.asked_at = std::chrono::steady_clock::now();
  rdzv::Leader* leader = access_.leader();
  if (leader == nullptr) {
    return boost::asio::post(io_, lifetime_.guard([this, id] { finish(id); }));
  }
  pending->patience.arm(patience, [this, id] { finish(id); });
  leader->ask({id, peer, std::move(text)});
}

void JobQuery::tell_first(std::string text) {
  if (rdzv::Leader* const leader = access_.leader()) {
    leader->ask({++last_id_, rdzv::kFirstNode, std::move(text)});
  }
}

void JobQuery::take(rdzv::PeerAck asked) {
  const auto found = pending_.find(asked.id);
  if (found == pending_.end()) return;
  Pending& pending = *found->second;
  for (const auto& member : asked.view.members) {
    const bool can_answer = member.place != rdzv::LeaderView::Place::kDisconnected;
    if (can_answer && member.id != asked.you && !pending.outcome.answers.contains(member.id)) {
      pending.awaited.insert(member.id);
    }
  }
  pending.outcome.asked = std::move(asked);
  finish_if_complete(pending);
}

void JobQuery::take(rdzv::PeerReply answer) {
  const auto found = pending_.find(answer.id);
  if (found == pending_.end()) return;
  Pending& pending = *found->second;
  pending.awaited.erase(answer.peer);
  pending.outcome.answers[answer.peer] = std::move(answer.text);
  pending.outcome.answered_at[answer.peer] = std::chrono::steady_clock::now();
  finish_if_complete(pending);
}

void JobQuery::finish_if_complete(const Pending& pending) {
  const bool is_complete = pending.peer ? !pending.outcome.answers.empty()
                                        : pending.outcome.asked && pending.awaited.empty();
  if (is_complete) finish(pending.id);
}

// Remove it first: done() may ask again, or destroy this object.
void JobQuery::finish(std::uint64_t id) {
  const auto taken = pending_.extract(id);
  if (!taken) return;
  Pending& pending = *taken.mapped();
  pending.patience.cancel();
  pending.done(std::move(pending.outcome));
}

// ---- answering

void JobQuery::answer_with(std::string ask, std::function<void(std::string_view, Reply)> handler) {
  handlers_[std::move(ask)] = std::move(handler);
}

void JobQuery::take(const rdzv::PeerRequest& question) {
  if (!question.peer) return;  // without the asker's id there is nobody to answer
  const Reply reply =
      lifetime_.guard([this, id = question.id, peer = *question.peer](std::string text) {
        rdzv::Leader* leader = access_.leader();
        if (leader != nullptr) leader->answer({id, peer, std::move(text)});
      });
  const std::string kind = question_from(question.text).value_or(Question{}).ask;
  if (kind == "status") {
    return access_.refresh(lifetime_.guard([this, reply] {
      reply(to_json_within(access_.node_status(kEventsOfOthers), rdzv::limits::kMaxAnswerBytes));
    }));
  }
  const auto handler = handlers_.find(kind);
  if (handler == handlers_.end()) return reply(R"({"error":"this node does not know"})");
  handler->second(question.text, reply);
}

// ---- the status of the job

void JobQuery::job_status(std::function<void(JobStatus)> done) {
  awaiting_status_.push_back(std::move(done));
  if (awaiting_status_.size() > 1) return;  // the request under way answers this caller too
  // This node is asked while the others are.
  const auto both = std::make_shared<std::optional<Outcome>>();
  const auto is_fresh = std::make_shared<bool>(false);
  const auto finish = [this, both, is_fresh] {
    if (!*is_fresh || !*both) return;
    const JobStatus status = put_together(**both);
    for (const auto& each : std::exchange(awaiting_status_, {})) each(status);
  };
  access_.refresh(lifetime_.guard([is_fresh, finish] {
    *is_fresh = true;
    finish();
  }));
  ask(std::nullopt, kStatusQuestion, [both, finish](Outcome outcome) {
    *both = std::move(outcome);
    finish();
  });
}

JobStatus JobQuery::put_together(const Outcome& outcome) const {
  JobStatus status;
  status.run_id = identity_.run_id;
  status.program = identity_.program;
  status.version = identity_.version;
  status.when = std::chrono::system_clock::now();
  status.asked_host = identity_.host;
  status.nodes.push_back(node_status());
  std::map<NodeId, std::string> refused;
  for (const auto& [id, text] : outcome.answers) {
    auto node = agent::node_status_from(text);
    if (node) {
      status.nodes.push_back(std::move(*node));
    } else {
      refused[id] = node.error().message;
    }
  }
  std::ranges::stable_sort(status.nodes, [](const NodeStatus& a, const NodeStatus& b) {
    if (a.round != b.round) return a.round > b.round;
    return a.node_rank < b.node_rank;
  });
  if (!outcome.asked) return status;
  status.leader = leader_status(outcome.asked->view);
  for (const auto& member : outcome.asked->view.members) {
    if (member.id == outcome.asked->you) continue;
    std::string why;
    if (const auto found = refused.find(member.id); found != refused.end()) {
      why = found->second;
    } else if (member.place == rdzv::LeaderView::Place::kDisconnected) {
      why = "its connection is broken";
    } else if (!outcome.answers.contains(member.id)) {
      why = "no answer within " + duration_text(kPatience);
    } else {
      continue;
    }
    status.late.push_back({number(member.id), member.host, std::move(why)});
  }
  return status;
}

}  // namespace ddprun::agent
