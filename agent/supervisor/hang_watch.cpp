#include "agent/supervisor/hang_watch.h"

#include <algorithm>
#include <utility>

#include "rendezvous/common/own_pause.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr auto kEvery = 1s;
constexpr auto kLate = 200ms;  // for a look of an agent that runs

bool has_waited(const NodeStatus& node, std::chrono::nanoseconds patience) {
  return std::ranges::any_of(node.workers, [patience](const WorkerStatus& worker) {
    return worker.state == WorkerState::kRunning &&
           std::ranges::any_of(worker.calls, [patience](const GroupCalls& group) {
             return group.at && !group.at->is_over && group.at->since > patience;
           });
  });
}

// How long one of its ranks has been in a call.
std::chrono::nanoseconds longest_call(const NodeStatus& node) {
  std::chrono::nanoseconds longest{};
  for (const WorkerStatus& worker : node.workers) {
    if (worker.state != WorkerState::kRunning) continue;
    for (const GroupCalls& group : worker.calls) {
      if (group.at && !group.at->is_over) longest = std::max(longest, group.at->since);
    }
  }
  return longest;
}

}  // namespace

HangWatch::HangWatch(boost::asio::io_context& io, rdzv::HangTimeout timeout, rdzv::WaitLines lines,
                     const Others& others, OnFinding on_finding)
    : timeout_(timeout),
      others_(others),
      on_finding_(std::move(on_finding)),
      timer_(io),
      lines_(lines),
      store_lines_(lines) {}

int HangWatch::world_size() const {
  const rdzv::RoundStart* const round = others_.node.running_round();
  return round == nullptr ? 0 : round->world_size;
}

void HangWatch::round_began() {
  steps_ = {};
  gap_ = {};
  longest_.forget_current();
  asker_.round_began();
  store_lines_.forget();
  forget();
  look_later();
}

void HangWatch::forget() {
  told_.clear();
  told_hung_.clear();
  lines_.forget();
}

void HangWatch::look_later() {
  due_ = Clock::now() + kEvery;
  timer_.arm_at(due_, [this] { look(); });
}

std::chrono::nanoseconds HangWatch::patience() const { return steps_.patience() + gap_; }

// What an evaluation by all ranks of one node takes, the others know.
rdzv::HangRules HangWatch::rules(const JobStatus& status) const {
  std::chrono::nanoseconds longest = longest_.longest();
  for (const NodeStatus& node : status.nodes) {
    longest = std::max<std::chrono::nanoseconds>(longest, node.longest_wait);
  }
  return {.patience = steps_.patience(),
          .gap = gap_,
          .timeout = timeout_.limit(longest),
          .needs_step = timeout_.is_automatic};
}

void HangWatch::look() {
  const int world_size = this->world_size();
  if (world_size == 0) return forget();
  const auto now = Clock::now();
  gap_ += own_pause(due_, now, kLate);
  look_later();
  const NodeStatus node = others_.node.status(/*events_max=*/0);
  for (const WorkerStatus& worker : node.workers) {
    const auto& progress = worker.progress;
    if (!progress || !progress->step) continue;
    steps_.stepped(worker.rank, *progress->step,
                   now - std::chrono::duration_cast<Clock::duration>(progress->since_step));
  }
  longest_.looked(longest_call(node));
  switch (asker_.look(now, {.node_rank = node.node_rank,
                            .has_all_ranks = std::cmp_equal(node.workers.size(), world_size),
                            .has_waited = has_waited(node, patience())})) {
    case WaitCore::Action::kNothing:
      if (!has_waited(node, steps_.patience())) gap_ = {};
      look_at_store(node);
      return forget();
    case WaitCore::Action::kTellFirst:
      forget();
      return others_.job.tell_first(R"({"ask":"waits"})");
    case WaitCore::Action::kJudgeAlone: {
      JobStatus alone;
      alone.nodes.push_back(node);
      return judge(alone);
    }
    case WaitCore::Action::kAskAll:
      return others_.job.job_status(
          lifetime_.guard([this](const JobStatus& status) { judge(status); }));
  }
}

// The waits of ranks that keep no record: what a rank waits for in the store until it has made a group. Nothing else is
// known of such programs, nor of NCCL before it has made a communicator.
void HangWatch::look_at_store(const NodeStatus& node) {
  const bool is_known = std::ranges::any_of(node.workers, [](const WorkerStatus& worker) {
    return std::ranges::any_of(worker.calls,
                               [](const GroupCalls& each) { return each.calls > 0; }) ||
           (worker.progress && worker.progress->step);
  });
  const auto waits = is_known ? std::vector<rdzv::StoreWait>() : others_.store.waits();
  const auto now = Clock::now();
  rdzv::HangFindings found;
  for (const rdzv::StoreWait& each : waits) {
    found.waits.push_back({.group = each.key, .waited = now - each.since});
  }
  if (store_lines_.due(found)) on_finding_(hang_finding::StillWaitsInStore{waits});
}

void HangWatch::judge(const JobStatus& status) {
  const int world_size = this->world_size();
  if (world_size == 0) return;
  const rdzv::HangRules by = rules(status);
  const auto found = rdzv::find_hangs(calls_of(status), world_size, by);
  if (!found.waits.empty()) {
    const rdzv::WaitingFor& wait = found.waits.front();
    const bool is_told =
        std::ranges::any_of(told_, [&](const auto& each) { return each.is_same(wait); });
    if (!is_told) {
      told_.push_back(wait);
      on_finding_(hang_finding::Waits{wait});
    }
  }
  for (const rdzv::Hung& hung : found.hung) {
    const bool is_told =
        std::ranges::any_of(told_hung_, [&](const Told& each) { return each.hung.is_same(hung); });
    if (is_told) continue;
    told_hung_.push_back({hung, Clock::now()});
    on_finding_(hang_finding::Hung{hung, status, by});
  }
  // The verdict on what hangs has more words.
  const auto wait = lines_.due(found);
  if (wait && told_hung_.empty()) on_finding_(hang_finding::StillWaits{*wait});
}

void HangWatch::confirm(const rdzv::Hung& hung, std::function<void(std::optional<bool>)> done) {
  others_.job.job_status(lifetime_.guard([this, hung,
                                          done = std::move(done)](const JobStatus& status) {
    const int world_size = this->world_size();
    const auto ranks = calls_of(status);
    const auto found = rdzv::find_hangs(ranks, world_size, rules(status));
    const bool is_so = world_size > 0 && std::ranges::any_of(found.hung, [&](const auto& each) {
                         return each.is_same(hung);
                       });
    const bool is_held = std::ranges::count(ranks, RankState::kTraced, &rdzv::RankCalls::state) > 0;
    done(is_so || !is_held ? std::optional(is_so) : std::nullopt);
  }));
}

std::chrono::microseconds HangWatch::longest_wait() const {
  return std::chrono::duration_cast<std::chrono::microseconds>(longest_.longest());
}

std::vector<HungStatus> HangWatch::hung() const {
  const auto now = Clock::now();
  std::vector<HungStatus> told;
  for (const auto& [hung, at] : told_hung_) {
    if (!hung.is_verdict()) continue;
    told.push_back(
        {hung.why, hung.ranks, sentence(hung),
         std::chrono::duration_cast<std::chrono::microseconds>(hung.waited + (now - at))});
  }
  return told;
}

}  // namespace ddprun::agent
