#include "launcher/ctl/status_screen.h"

#include <algorithm>
#include <map>
#include <vector>

#include "agent/status/gpu_words.h"
#include "launcher/cli/text.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/durations.h"
#include "rendezvous/common/text/lists.h"
#include "rendezvous/common/text/time_text.h"

namespace ddprun::cli {
namespace {

using agent::JobStatus;
using agent::MemberStatus;
using agent::NodeState;
using agent::NodeStatus;
using agent::WorkerState;
using agent::WorkerStatus;
using std::chrono::microseconds;
using namespace std::chrono_literals;

using Row = std::vector<std::string>;

constexpr std::chrono::nanoseconds kWaitShown = 1s;

// Aligns columns, those of numbers to the right.
std::string table(const std::vector<Row>& rows, std::string_view right) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line = " ";
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      const bool is_right = i < right.size() && right[i] == 'r';
      line += " " + (is_right ? padding + row[i] : row[i] + padding) + " ";
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

// For people: "worker failed"; in JSON it is "worker_failed".
std::string words_of(agent::RestartReason reason) { return replaced(name_of(reason), '_', " "); }

// ---- the job

const NodeStatus* latest(const JobStatus& status) {
  return status.nodes.empty() ? nullptr : &status.nodes.front();
}

// Of all nodes; empty: nobody has asked for any.
std::string standbys(const JobStatus& status) {
  int waiting = 0;
  int wanted = 0;
  std::string why_none;
  for (const NodeStatus& node : status.nodes) {
    if (!node.standbys) continue;
    waiting += node.standbys->waiting;
    wanted += node.standbys->wanted;
    if (why_none.empty()) why_none = node.standbys->why_none;
  }
  if (wanted == 0 && why_none.empty()) return "";
  return "standbys " + std::to_string(waiting) + " of " + std::to_string(wanted) + " wait" +
         (why_none.empty() ? "" : "; none on a node: " + printable(why_none)) + "\n";
}

// What each restart imports again, on the node that says so first; empty: nothing that is worth a line.
std::string repeated_imports(const JobStatus& status) {
  const auto says_so = [](const NodeStatus& node) {
    return node.standbys && !node.standbys->imports.empty();
  };
  const auto node = std::ranges::find_if(status.nodes, says_so);
  if (node == status.nodes.end()) return "";
  std::string imports;
  std::string modules;
  std::chrono::microseconds saved{};
  for (const agent::ImportTime& each : node->standbys->imports) {
    imports +=
        (imports.empty() ? "" : ", ") + printable(each.module) + " " + time_in_words(each.time);
    if (!each.can_be_preloaded) continue;
    modules += (modules.empty() ? "" : ",") + printable(each.module);
    saved += each.time;
  }
  return "each restart imports " + imports +
         (modules.empty() ? "" : "; --preload=" + modules + " saves " + time_in_words(saved)) +
         "\n";
}

// Of all nodes; empty: nobody has asked for it, or the workers have said nothing of it.
std::string replacement(const JobStatus& status) {
  agent::ReplacementStatus all;
  bool can_all = true;
  for (const NodeStatus& node : status.nodes) {
    if (!node.replacement) return "";
    can_all &= node.replacement->can_recover;
    all.waiting += node.replacement->waiting;
    all.wanted += node.replacement->wanted;
    all.generation = std::max(all.generation, node.replacement->generation);
    if (all.why_none.empty()) all.why_none = node.replacement->why_none;
    if (all.why_unprepared.empty()) all.why_unprepared = node.replacement->why_unprepared;
  }
  if (!all.why_none.empty()) {
    return "workers cannot be replaced in place: " + printable(all.why_none) + "\n";
  }
  if (!can_all || all.wanted == 0) return "";
  std::string text = "workers are replaced in place: " + std::to_string(all.waiting) + " of " +
                     std::to_string(all.wanted) + " standbys " +
                     (all.why_unprepared.empty() ? "prepared" : "wait");
  if (!all.why_unprepared.empty()) {
    text += ", and make the program's set-up then (" + printable(all.why_unprepared) + ")";
  }
  if (all.generation > 0) {
    text += "; " + std::to_string(all.generation) + " replaced in this round";
  }
  return text + "\n";
}

std::string head(const JobStatus& status) {
  std::string text = printable(status.program) + ", job " + printable(status.run_id);
  const NodeStatus* node = latest(status);
  if (node == nullptr) return text + "\n";
  text += ": ";
  if (!node->round) {
    text +=
        node->state == NodeState::kLooking ? "looking for its leader" : "no round has begun yet";
  } else {
    const std::string round = "round " + to_string(*node->round);
    text += node->state == NodeState::kRunning
                ? round + " runs for " + time_in_words(node->round_age)
            : node->state == NodeState::kStopping ? round + " is being stopped"
            : node->state == NodeState::kEnded    ? "it has ended with " + round
                                                  : "between rounds, after " + round;
    text += ", " + counted(node->world_size, "worker") + " on " + counted(node->node_count, "node");
  }
  text += "\n";
  text += "restarts " + std::to_string(node->restarts) + " of " +
          std::to_string(node->max_restarts) + "; start " + time_in_words(node->until_first_step) +
          ", then " + time_in_words(node->downtime.total()) + " down after restarts";
  for (std::size_t i = 0; i < node->restart_totals.size(); ++i) {
    const agent::RestartTotal& total = node->restart_totals[i];
    text += (i == 0 ? ": " : ", ") + std::to_string(total.count) + " " + words_of(total.reason) +
            " " + time_in_words(total.downtime);
  }
  text += "; goodput " + (node->goodput ? agent::percent_text(*node->goodput) + " of " +
                                              time_in_words(node->wall - node->until_first_step)
                                        : "not known: no step was reported yet");
  return text + "\n" + standbys(status) + repeated_imports(status) + replacement(status);
}

// ---- nodes

std::string waiting(const agent::LeaderStatus& leader) {
  std::string text;
  if (leader.missing > 0) text += ", " + std::to_string(leader.missing) + " missing";
  if (!leader.missing_ranks.empty()) text += " (rank " + joined(leader.missing_ranks, " ") + ")";
  return text;
}

std::string nodes(const JobStatus& status, std::size_t rows_max) {
  if (!status.leader) return "\nNODES  the leader is not known or does not answer\n";
  const agent::LeaderStatus& leader = *status.leader;
  const auto needs =
      leader.min_nodes == leader.max_nodes
          ? std::to_string(leader.max_nodes)
          : std::to_string(leader.min_nodes) + " to " + std::to_string(leader.max_nodes);
  std::string text =
      "\nNODES  " +
      std::to_string(leader.members.size() + static_cast<std::size_t>(leader.members_left_out)) +
      " joined of " + needs + waiting(leader);
  if (!status.late.empty()) text += ", " + std::to_string(status.late.size()) + " late";
  text += "; the leader is " + printable(leader.state);
  if (leader.left) text += ", " + time_in_words(*leader.left) + " left";
  text += "\n";
  std::vector<Row> rows;
  auto members = leader.members;
  std::ranges::stable_sort(members, [](const MemberStatus& a, const MemberStatus& b) {
    return a.node_rank.value_or(INT32_MAX) < b.node_rank.value_or(INT32_MAX);
  });
  for (const MemberStatus& member : members) {
    const auto late = std::ranges::find(status.late, member.id, &agent::LateNode::id);
    Row row{member.node_rank ? std::to_string(*member.node_rank) : "-", printable(member.host),
            printable(member.address), counted(member.workers, "worker"),
            std::string(name_of(member.state))};
    if (late != status.late.end()) row.push_back("late: " + printable(late->why));
    if (!member.left_out.empty()) row.push_back("to be left out: " + printable(member.left_out));
    if (late != status.late.end() || member.state != MemberStatus::State::kInRound) {
      rows.insert(rows.begin(), std::move(row));
    } else {
      rows.push_back(std::move(row));
    }
  }
  const std::size_t left_out = rows.size() - std::min(rows.size(), rows_max);
  rows.resize(rows.size() - left_out);
  text += table(rows, "r");
  for (const auto& host : leader.left_out) {
    const bool is_here = std::ranges::any_of(members, [&](const MemberStatus& each) {
      return each.host == host.host && each.address == host.address;
    });
    if (is_here) continue;
    text += "  " + printable(host.host) + " (" + printable(host.address) +
            ") is to be left out when it comes: " + printable(host.why) + "\n";
  }
  if (leader.members_left_out > 0) {
    text += "  … and " + counted(leader.members_left_out, "node") + " that the answer leaves out\n";
  }
  if (left_out > 0)
    text += "  … and " + counted(static_cast<std::int64_t>(left_out), "node") + " in the round\n";
  return text;
}

// ---- workers

struct Shown {
  const WorkerStatus* worker;
  const NodeStatus* node;
};

std::string step_of(const WorkerStatus& worker) {
  if (!worker.progress || !worker.progress->step) return "-";
  const auto total = worker.progress->total_steps;
  return std::to_string(*worker.progress->step) + (total > 0 ? " of " + std::to_string(total) : "");
}

std::string waited(const std::string& sentence, std::chrono::nanoseconds time) {
  return printable(sentence) + ", for " + time_in_words(time) + "\n";
}

// The call in which it is, if it has been there for some time.
std::string call_of(const WorkerStatus& worker) {
  if (worker.calls.empty() || !worker.calls.front().at) return "";
  const GroupCall& at = *worker.calls.front().at;
  if (at.is_over || at.since < kWaitShown) return "";
  return std::string(name_of(at.call.operation)) + " " + std::to_string(at.number) + " for " +
         time_in_words(at.since);
}

std::string state_of(const WorkerStatus& worker) {
  std::string text(name_of(worker.state));
  if (worker.exit && !worker.exit->is_success()) return text + ", " + worker.exit->to_string();
  if (worker.state != WorkerState::kRunning) return text;
  if (worker.held == RankState::kStopped) text = "stopped by a signal";
  if (worker.held == RankState::kTraced) text = "in a debugger";
  if (worker.held == RankState::kFrozen) text = "frozen";
  if (worker.held == RankState::kUninterruptible && worker.held_for > kWaitShown) {
    text = "in the kernel";
  }
  if (const std::string call = call_of(worker); !call.empty()) return text + ", " + call;
  if (!worker.progress) return text;
  const WorkerPhase phase = worker.progress->phase;
  if (phase != WorkerPhase::kUnknown && phase != WorkerPhase::kRunning) {
    text += ", " + std::string(name_of(phase));
  }
  return text;
}

std::string last_of(const WorkerStatus& worker) {
  if (!worker.progress || !worker.progress->step) return "-";
  return time_in_words(worker.progress->since_step) + " ago";
}

std::map<int, const agent::RankTimesStatus*> times_of(const JobStatus& status) {
  std::map<int, const agent::RankTimesStatus*> times;
  for (const NodeStatus& node : status.nodes) {
    for (const agent::RankTimesStatus& each : node.rank_times) times[each.rank] = &each;
  }
  return times;
}

// How late the rank comes to collectives, and in which share of the steps of the last minute.
std::string late_of(const WorkerStatus& worker,
                    const std::map<int, const agent::RankTimesStatus*>& times) {
  const auto found = times.find(worker.rank);
  if (found == times.end()) return "-";
  const std::string share = percent(found->second->late);
  return share == "0 %" ? share : time_in_words(found->second->lag) + " in " + share;
}

// The first few of the program's own values.
std::string values_of(const WorkerStatus& worker) {
  constexpr std::size_t kShown = 3;
  std::string text;
  if (!worker.progress) return text;
  const auto& values = worker.progress->values;
  for (std::size_t i = 0; i < std::min(values.size(), kShown); ++i) {
    text += (i == 0 ? "" : "  ") + printable(values[i].name) + " " + number_text(values[i].value);
  }
  return text;
}

// Workers with a lower value are shown first: failed ones, then those with fewer steps.
std::pair<int, std::int64_t> order_of(const WorkerStatus& worker) {
  const bool is_well =
      worker.state == WorkerState::kRunning || worker.state == WorkerState::kSucceeded;
  const std::int64_t step =
      worker.progress && worker.progress->step ? *worker.progress->step : INT64_MAX;
  return {is_well ? 1 : 0, step};
}

std::string workers(const JobStatus& status, std::size_t rows_max) {
  std::vector<Shown> all;
  int left_out = 0;
  const NodeStatus* first = latest(status);
  for (const NodeStatus& node : status.nodes) {
    if (node.round != first->round) continue;  // it is not in the current round
    for (const WorkerStatus& worker : node.workers) all.push_back({&worker, &node});
    left_out += node.workers_left_out;
  }
  if (all.empty()) return "";
  std::map<std::string_view, int> states;
  for (const Shown& each : all) states[name_of(each.worker->state)] += 1;
  std::string text = "\nWORKERS ";
  for (const auto& [state, count] : states) {
    text += " " + std::to_string(count) + " " + std::string(state);
  }
  text += "\n";
  if (all.size() > rows_max) {
    std::ranges::stable_sort(all, {}, [](const Shown& each) { return order_of(*each.worker); });
    left_out += static_cast<int>(all.size() - rows_max);
    all.resize(rows_max);
  }
  std::ranges::stable_sort(all, {}, [](const Shown& each) { return each.worker->rank; });
  const std::map<int, const agent::RankTimesStatus*> times = times_of(status);
  // The column LATE is there when one rank's times are known.
  Row names{"RANK", "NODE", "PID", "DEVICE", "STATE", "STEP", "LAST"};
  if (!times.empty()) names.emplace_back("LATE");
  std::vector<Row> rows{names};
  for (const Shown& each : all) {
    const WorkerStatus& worker = *each.worker;
    rows.push_back({std::to_string(worker.rank), printable(each.node->host),
                    worker.pid == 0 ? "-" : std::to_string(worker.pid),
                    worker.device.empty() ? "-" : printable(worker.device), state_of(worker),
                    step_of(worker), last_of(worker)});
    if (!times.empty()) rows.back().push_back(late_of(worker, times));
    rows.back().push_back(values_of(worker));
  }
  text += table(rows, times.empty() ? "rlrllrrl" : "rlrllrrrl");
  if (left_out > 0) text += "  … and " + counted(left_out, "more worker") + " (--all)\n";
  return text;
}

// ---- who waits for whom

// The verdicts are those of the agents, which know the rules (--hang-timeout).
std::string waits(const JobStatus& status) {
  if (status.nodes.empty()) return "";
  std::string text;
  for (const NodeStatus& node : status.nodes) {
    for (const agent::HungStatus& hung : node.hung) {
      text += "  HUNG: " + waited(hung.sentence, hung.waited);
    }
    for (const agent::SlowStatus& slow : node.slow) {
      text += "  SLOW: " + printable(slow.sentence) + "\n";
    }
  }
  const auto found = rdzv::find_hangs(agent::calls_of(status), latest(status)->world_size,
                                      {.patience = kWaitShown});
  for (const auto& wait : found.waits) text += "  " + waited(sentence(wait), wait.waited);
  return text.empty() ? "" : "\nWAITING\n" + text;
}

// ---- GPUs

// Where a job uses none, there is nothing to say.
std::string gpus(const JobStatus& status, std::size_t rows_max) {
  std::vector<std::string> lines;
  for (const NodeStatus& node : status.nodes) {
    const std::string host = "  " + printable(node.host) + " ";
    if (!node.gpu_trouble.empty()) lines.push_back(host + printable(node.gpu_trouble) + "\n");
    for (const agent::GpuStatus& gpu : node.gpus) {
      lines.push_back(host + printable(in_words(gpu)) + "\n");
    }
  }
  std::string text = lines.empty() ? "" : "\nGPUS\n";
  for (std::size_t i = 0; i < std::min(lines.size(), rows_max); ++i) text += lines[i];
  if (lines.size() > rows_max) {
    text += "  … and " + std::to_string(lines.size() - rows_max) + " more (--all)\n";
  }
  return text;
}

// ---- restarts

std::string repeated_of(const agent::Downtime& downtime) {
  if (downtime.steps_repeated) return counted(*downtime.steps_repeated, "step") + " repeated";
  return downtime.until ? "repeated steps unknown" : "not over";
}

std::string restarts(const JobStatus& status) {
  constexpr std::size_t kShown = 5;
  const NodeStatus* node = latest(status);
  if (node == nullptr || node->recent_restarts.empty()) return "";
  std::string text = "\nRESTARTS  the latest\n";
  std::vector<Row> rows;
  const auto& all = node->recent_restarts;
  for (std::size_t i = all.size() - std::min(all.size(), kShown); i < all.size(); ++i) {
    rows.push_back({time_text("%H:%M:%S", all[i].when), "round " + to_string(all[i].round),
                    time_in_words(all[i].downtime.total()) + " down", repeated_of(all[i].downtime),
                    printable(all[i].sentence) + (all[i].generation ? ", replaced in place" : "")});
  }
  return text + table(rows, "lrrrl");
}

}  // namespace

std::string status_screen(const JobStatus& status, std::size_t rows) {
  return head(status) + nodes(status, rows) + workers(status, rows) + gpus(status, rows) +
         waits(status) + restarts(status);
}

}  // namespace ddprun::cli
