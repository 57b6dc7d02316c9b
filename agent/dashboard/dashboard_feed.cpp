#include "agent/dashboard/dashboard_feed.h"

#include <boost/json.hpp>
#include <cmath>
#include <span>
#include <tuple>

#include "agent/status/gpu_words.h"
#include "agent/text/json_text.h"

namespace ddprun::agent {
namespace {

namespace json = boost::json;
using std::chrono::milliseconds;

constexpr std::size_t kTextBytesMax = 2048;
// Clocks of two hosts, and two clocks of one host, differ a little: times that differ by less than
// this count as the same.
constexpr std::int64_t kJitterMs = 750;

json::value text(std::string_view bytes) { return json_text(bytes, kTextBytesMax); }

std::int64_t in_ms(std::chrono::nanoseconds time) {
  return std::chrono::duration_cast<milliseconds>(time).count();
}

std::int64_t unix_ms(std::chrono::system_clock::time_point time) {
  return in_ms(time.time_since_epoch());
}

std::optional<double> value_named(std::string_view name, const WorkerProgress& progress) {
  const auto found = std::ranges::find(progress.values, name, &NamedValue::name);
  return found == progress.values.end() ? std::nullopt : std::optional<double>(found->value);
}

// A field as it appears in a line of --events: finds a line before it is parsed.
std::string_view raw_field(std::string_view line, std::string_view name) {
  const std::string begin = "\"" + std::string(name) + "\":\"";
  const std::size_t at = line.find(begin);
  if (at == std::string_view::npos) return {};
  line.remove_prefix(at + begin.size());
  return line.substr(0, line.find('"'));
}

// The node whose values are used for the whole job: one of the latest round; the asked node, if it
// is one of these.
const NodeStatus* speaker(const JobStatus& status, std::optional<Round> round) {
  const NodeStatus* found = nullptr;
  for (const NodeStatus& node : status.nodes) {
    if (node.round == round && (found == nullptr || node.host == status.asked_host)) found = &node;
  }
  return found;
}

std::optional<Round> latest_round(const JobStatus& status) {
  std::optional<Round> latest;
  for (const NodeStatus& node : status.nodes) {
    if (node.round && (!latest || number(*node.round) > number(*latest))) latest = node.round;
  }
  return latest;
}

json::array restarts_of(const JobStatus& status) {
  // Every node that took part has the record. In a round first its start, then replacements in place.
  std::map<std::pair<std::uint32_t, std::optional<std::uint32_t>>, const RestartRecord*> by_round;
  for (const NodeStatus& node : status.nodes) {
    for (const RestartRecord& record : node.recent_restarts) {
      const RestartRecord*& longest =
          by_round.try_emplace({number(record.round), record.generation}, &record).first->second;
      // Each node counts its own ranks.
      if (longest->downtime.total() < record.downtime.total()) longest = &record;
    }
  }
  json::array rows;
  for (const auto& [which, record] : by_round) {
    rows.push_back({unix_ms(record->when), which.first, text(name_of(record->reason)),
                    in_ms(record->downtime.total()), text(record->sentence),
                    in_ms(record->downtime.stopped + record->downtime.started),
                    record->generation.has_value()});
  }
  return rows;
}

json::array downtime_by_cause(const NodeStatus& node) {
  json::array rows;
  for (const RestartTotal& total : node.restart_totals) {
    rows.push_back({text(name_of(total.reason)), total.count, in_ms(total.downtime)});
  }
  return rows;
}

void add_times(const NodeStatus& node, json::object& job) {
  const auto& repeated = node.downtime.steps_repeated;
  job["until_run_ms"] = in_ms(node.until_run);
  job["until_first_step_ms"] = in_ms(node.until_first_step);
  job["downtime_ms"] = in_ms(node.downtime.total());
  job["steps_repeated"] = repeated ? json::value(*repeated) : nullptr;
  job["goodput_permille"] = node.goodput ? json::value(in_permille(*node.goodput)) : nullptr;
}

json::array nodes_of(const JobStatus& status) {
  json::array rows;
  for (const NodeStatus& node : status.nodes) {
    rows.push_back({node.round ? json::value(node.node_rank) : nullptr, text(node.host),
                    text(name_of(node.state)), node.leads, node.local_world_size});
  }
  return rows;
}

json::value leader_of(const JobStatus& status, std::optional<std::int64_t> decides_at_ms) {
  if (!status.leader) return nullptr;
  const LeaderStatus& leader = *status.leader;
  const auto spares =
      std::ranges::count(leader.members, MemberStatus::State::kSpare, &MemberStatus::state);
  json::array late;
  for (const LateNode& node : status.late) late.push_back({text(node.host), text(node.why)});
  return json::object{{"state", text(leader.state)},
                      {"min_nodes", leader.min_nodes},
                      {"max_nodes", leader.max_nodes},
                      {"joined", static_cast<int>(leader.members.size()) + leader.members_left_out},
                      {"missing", leader.missing},
                      {"missing_ranks", json::value_from(leader.missing_ranks)},
                      {"decides_at_ms", decides_at_ms ? json::value(*decides_at_ms) : nullptr},
                      {"spares", spares},
                      {"late", std::move(late)}};
}

}  // namespace

// ---- the curve ----------------------------------------------------------------------------------

void Curve::add(Point point) {
  if (!std::isfinite(point.value)) return;
  const auto after = std::ranges::lower_bound(points_, point.step, {}, &Point::step);
  if (after != points_.end() && *after == point) return;
  if (after != points_.end()) {
    changes_from(static_cast<std::size_t>(after - points_.begin()));
    points_.erase(after, points_.end());
    skipped_ = 0;
  }
  if (skipped_ > 0) {
    skipped_ = (skipped_ + 1) % stride_;
    return;
  }
  changes_from(points_.size());
  points_.push_back(point);
  skipped_ = 1 % stride_;
  if (points_.size() < kPointsMax) return;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < points_.size(); i += 2) points_[kept++] = points_[i];
  points_.resize(kept);
  changes_from(0);
  // The last point of an even number was removed; the next one gets the new distance to the point
  // before it.
  skipped_ = (stride_ + 1) % (2 * stride_);
  stride_ *= 2;
}

// ---- looking ------------------------------------------------------------------------------------

void DashboardFeed::set(std::string_view field, json::value value) {
  json::value& known = fields_[std::string(field)];
  if (known == value) return;
  known = std::move(value);
  changed_fields_.emplace(field);
}

void DashboardFeed::sample(const NodeStatus& own) {
  if (own.rank_offset == 0) note_loss(own);
}

// The loss of the first rank that reports one.
bool DashboardFeed::note_loss(const NodeStatus& node) {
  for (const WorkerStatus& worker : node.workers) {
    if (!worker.progress || !worker.progress->step) continue;
    if (const auto loss = value_named("loss", *worker.progress)) {
      loss_.add({*worker.progress->step, *loss});
      return true;
    }
  }
  return false;
}

void DashboardFeed::look(const JobStatus& status, std::chrono::steady_clock::time_point now) {
  changed_fields_.clear();
  loss_.settle();
  at_ms_ = unix_ms(status.when);
  const auto round = latest_round(status);
  const NodeStatus* const node = speaker(status, round);
  if (node == nullptr) return;  // cannot happen: a status has at least the asked node
  are_ranks_new_ = round != round_;
  if (are_ranks_new_) ranks_.clear();
  round_ = round;
  look_at_ranks(status, now);
  std::ignore = std::ranges::any_of(
      status.nodes, [&](const NodeStatus& each) { return each.round == round && note_loss(each); });

  const std::int64_t began_at_ms = at_ms_ - in_ms(node->wall);
  if (std::abs(began_at_ms - began_at_ms_) > kJitterMs) began_at_ms_ = began_at_ms;
  json::object job{
      {"run_id", text(status.run_id)},
      {"program", text(status.program)},
      {"version", text(status.version)},
      {"asked_host", text(status.asked_host)},
      {"state", text(name_of(node->state))},
      {"round", round ? json::value(number(*round)) : nullptr},
      {"world_size", node->world_size},
      {"node_count", node->node_count},
      {"restarts", node->restarts},
      {"max_restarts", node->max_restarts},
      {"began_at_ms", began_at_ms_},
  };
  add_times(*node, job);
  set("job", std::move(job));
  look_at_leader(status);
  set("nodes", nodes_of(status));
  set("restarts", restarts_of(status));
  set("downtime_by_cause", downtime_by_cause(*node));
  look_at_hangs(status);
  look_at_failures(status);
}

void DashboardFeed::look_at_leader(const JobStatus& status) {
  std::optional<std::int64_t> decides_at_ms;
  if (status.leader && status.leader->left) {
    decides_at_ms = at_ms_ + in_ms(*status.leader->left);
    const bool is_same = decides_at_ms_ && std::abs(*decides_at_ms - *decides_at_ms_) < kJitterMs;
    if (is_same) decides_at_ms = decides_at_ms_;
  }
  decides_at_ms_ = decides_at_ms;
  set("leader", leader_of(status, decides_at_ms));
}

// The verdicts, as `ddpctl status` shows them. Several nodes may have found the same.
void DashboardFeed::look_at_hangs(const JobStatus& status) {
  std::map<std::string, std::int64_t> since;
  json::array rows;
  for (const NodeStatus& node : status.nodes) {
    for (const HungStatus& hung : node.hung) {
      const std::int64_t began_at_ms = at_ms_ - in_ms(hung.waited);
      const auto [entry, is_new] = since.try_emplace(hung.sentence, began_at_ms);
      if (!is_new) continue;
      const auto known = hung_since_.find(hung.sentence);
      const bool is_same =
          known != hung_since_.end() && std::abs(began_at_ms - known->second) < kJitterMs;
      if (is_same) entry->second = known->second;
      rows.push_back({json::value_from(hung.ranks), text(hung.sentence), entry->second});
    }
  }
  hung_since_ = std::move(since);
  set("hangs", std::move(rows));
  json::array slow;
  for (const NodeStatus& node : status.nodes) {
    for (const SlowStatus& each : node.slow) slow.push_back({each.rank, text(each.sentence)});
  }
  set("slow", std::move(slow));
  json::array gpus;
  for (const NodeStatus& node : status.nodes) {
    if (!node.gpu_trouble.empty()) gpus.push_back({text(node.host), text(node.gpu_trouble)});
    for (const GpuStatus& each : node.gpus) gpus.push_back({text(node.host), text(in_words(each))});
  }
  set("gpus", std::move(gpus));
}

void DashboardFeed::look_at_ranks(const JobStatus& status,
                                  std::chrono::steady_clock::time_point now) {
  changed_ranks_.clear();
  changed_lives_.clear();
  // Ranks of a node that has not answered this time stay unchanged.
  for (const NodeStatus& node : status.nodes) {
    if (node.round != round_ || !round_) continue;
    for (const WorkerStatus& worker : node.workers) {
      auto [entry, is_new] = ranks_.try_emplace(worker.rank);
      auto& [rank, live] = entry->second;
      const Rank next_rank{worker.rank,       node.node_rank,
                           worker.local_rank, worker.pid,
                           worker.device,     worker.progress ? worker.progress->total_steps : 0};
      if (is_new || rank != next_rank) {
        rank = next_rank;
        changed_ranks_.push_back(worker.rank);
      }
      Live next = live_of(worker, node, now);
      const bool did_no_step = !is_new && next.step == live.step &&
                               std::abs(next.stepped_at_ms - live.stepped_at_ms) < kJitterMs;
      if (did_no_step) {
        next.stepped_at_ms = live.stepped_at_ms;
        next.step_us = live.step_us;
      }
      if (is_new || next != live) {
        live = next;
        changed_lives_.push_back(worker.rank);
      }
    }
  }
}

DashboardFeed::Live DashboardFeed::live_of(const WorkerStatus& worker, const NodeStatus& node,
                                           std::chrono::steady_clock::time_point now) {
  Live live;
  live.state = worker.state;
  if (!worker.progress) return live;
  const WorkerProgress& progress = *worker.progress;
  live.phase = progress.phase;
  live.step = progress.step;
  if (!progress.step) return live;
  live.stepped_at_ms = at_ms_ - in_ms(progress.since_step);
  const auto time =
      step_times_.look(*node.round, worker.rank, *progress.step, now - progress.since_step);
  if (time) live.step_us = std::chrono::duration_cast<std::chrono::microseconds>(*time).count();
  return live;
}

// The last worker that failed by itself, with everything that is known about it. A lost node is in
// the list of restarts.
void DashboardFeed::look_at_failures(const JobStatus& status) {
  json::value latest;
  for (const NodeStatus& node : status.nodes) {
    for (const std::string& line : node.events) {
      if (raw_field(line, "event") != "worker_exited") continue;
      if (raw_field(line, "time") <= failure_time_) continue;
      boost::system::error_code ec;
      json::value event = json::parse(line, ec);
      const auto* const object = ec ? nullptr : event.if_object();
      if (object == nullptr) continue;
      const auto* const was_told = object->if_contains("was_told_to_stop");
      const auto* const code = object->if_contains("exit_code");
      if (was_told == nullptr || code == nullptr || *was_told == true || *code == 0) continue;
      failure_time_ = raw_field(line, "time");
      latest = std::move(event);
    }
  }
  if (!latest.is_null()) set("failure", std::move(latest));
}

void DashboardFeed::end(std::string_view sentence, const JobStatus& own,
                        std::chrono::steady_clock::time_point now) {
  changed_fields_.clear();
  changed_ranks_.clear();
  changed_lives_.clear();
  are_ranks_new_ = false;
  loss_.settle();
  if (round_) {
    at_ms_ = unix_ms(own.when);
    look_at_ranks(own, now);
    look_at_failures(own);
    if (json::object* const known = fields_["job"].if_object()) {
      json::object job = *known;
      add_times(own.nodes.front(), job);
      set("job", std::move(job));
    }
  }
  set("end", text(sentence));
}

// ---- telling ------------------------------------------------------------------------------------

std::string DashboardFeed::whole() const { return object(/*is_whole=*/true); }
std::string DashboardFeed::change() const { return object(are_ranks_new_); }

std::string DashboardFeed::object(bool is_whole) const {
  json::object out{{"at", at_ms_}};
  if (is_whole) out["whole"] = true;
  for (const auto& [name, value] : fields_) {
    if (is_whole || changed_fields_.contains(name)) out[name] = value;
  }

  const auto rows = [&](std::string_view name, const std::vector<int>& changed, auto row_of) {
    if (!is_whole && changed.empty()) return;
    json::array& array = out[name].emplace_array();
    if (is_whole) {
      for (const auto& [number, rank] : ranks_) array.push_back(row_of(rank));
    } else {
      for (const int number : changed) array.push_back(row_of(ranks_.at(number)));
    }
  };
  rows("ranks", changed_ranks_, [](const std::pair<Rank, Live>& row) {
    const Rank& rank = row.first;
    return json::array{rank.rank, rank.node_rank,   rank.local_rank,
                       rank.pid,  rank.total_steps, text(rank.device)};
  });
  rows("live", changed_lives_, [](const std::pair<Rank, Live>& row) {
    const Live& live = row.second;
    return json::array{
        row.first.rank,         static_cast<int>(live.state), static_cast<int>(live.phase),
        live.step.value_or(-1), live.stepped_at_ms,           live.step_us};
  });

  if (is_whole || loss_.changed_from()) {
    const std::size_t from = is_whole ? 0 : *loss_.changed_from();
    json::array points;
    for (const auto& [step, value] : std::span(loss_.points()).subspan(from)) {
      points.push_back({step, value});
    }
    out["loss_from"] = from;
    out["loss"] = std::move(points);
  }
  return json::serialize(out);
}

}  // namespace ddprun::agent
