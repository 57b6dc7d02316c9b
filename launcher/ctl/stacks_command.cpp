// ddpctl stacks: what the workers of a job are doing, those that do the same together.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/query/stack_query.h"
#include "launcher/ctl/control_client.h"
#include "launcher/ctl/ddpctl.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/indented.h"
#include "rendezvous/common/text/lists.h"
#include "rendezvous/common/text/ranks.h"

namespace ddprun::cli {
namespace {

using agent::ThreadStack;
using agent::WorkerStacks;

// A worker that cannot run, whatever its stack is. Whether one runs or sleeps changes all the time.
std::string notable_state(const WorkerStacks& worker) {
  const bool is_notable = worker.state.starts_with('T') || worker.state.starts_with('t') ||
                          worker.state.starts_with('D') || worker.state.starts_with('Z');
  return is_notable ? worker.state : "";
}

// What those of a group have in common.
struct Doing {
  std::string state;
  std::string trouble;
  std::vector<ThreadStack> threads;
  int left_out = 0;  // threads that are not shown
  bool operator==(const Doing&) const = default;
};

Doing doing_of(const WorkerStacks& worker, bool shows_all) {
  Doing doing{notable_state(worker), worker.trouble, {}, 0};
  for (const ThreadStack& each : worker.threads) {
    const bool is_shown = shows_all || each.is_main || doing.threads.empty();
    if (is_shown) {
      doing.threads.push_back(each);
    } else {
      doing.left_out += each.threads;
    }
  }
  return doing;
}

struct Workers {
  Doing doing;
  std::vector<int> ranks;
  std::vector<std::string> hosts;  // different ones
  std::int64_t pid = 0;            // if it is one worker
};

std::vector<Workers> grouped(const std::vector<WorkerStacks>& all, bool shows_all) {
  std::vector<Workers> groups;
  for (const WorkerStacks& worker : all) {
    Doing doing = doing_of(worker, shows_all);
    auto group = std::ranges::find(groups, doing, &Workers::doing);
    if (group == groups.end()) {
      group = groups.insert(groups.end(), {std::move(doing), {}, {}, worker.pid});
    }
    group->ranks.push_back(worker.rank);
    if (std::ranges::count(group->hosts, worker.host) == 0) group->hosts.push_back(worker.host);
  }
  return groups;
}

std::string text_of(const Workers& group, bool shows_all) {
  constexpr std::size_t kHostsNamed = 4;
  const auto& [doing, ranks, hosts, pid] = group;
  std::string text = rank_ranges(ranks) + " on " + joined_some(hosts, kHostsNamed, "more hosts");
  if (ranks.size() == 1 && pid != 0) text += ", pid " + std::to_string(pid);
  if (ranks.size() > 1) text += " (" + std::to_string(ranks.size()) + " workers)";
  if (!doing.state.empty()) text += ": " + doing.state;
  text += "\n";
  for (const ThreadStack& thread : doing.threads) {
    if (shows_all) {
      text += std::string("  ") + (thread.threads == 1 ? "thread" : "") +
              (thread.threads > 1 ? std::to_string(thread.threads) + " threads" : "") +
              (thread.names.empty() ? "" : " " + thread.names) +
              (thread.is_main ? " (the main one)" : "") + "\n";
    }
    text += indented(thread.stack, shows_all ? "    " : "  ");
  }
  if (doing.left_out > 0) {
    text += "  and " + counted(doing.left_out, "other thread") + ": see --all\n";
  }
  if (!doing.trouble.empty()) text += "  note: " + doing.trouble + "\n";
  return text;
}

}  // namespace

int print_stacks(const StacksArguments& arguments) {
  std::vector<WorkerStacks> all;
  const auto take = [&all](const std::string& line) -> int {
    auto some = agent::worker_stacks_from(line);
    if (!some) return report(some.error(), kJobFailed);
    std::ranges::move(*some, std::back_inserter(all));
    return kJobDone;
  };
  const auto patience = agent::kStackLimit + std::chrono::seconds(2);
  const int code = print_answer(
      arguments.job,
      to_json(agent::StackQuery{.ranks = arguments.ranks, .has_all_threads = arguments.shows_all}),
      patience, patience, take);
  if (code != kJobDone) return code;
  const auto of_nodes =
      std::ranges::stable_partition(all, [](const WorkerStacks& each) { return each.rank >= 0; });
  std::vector<WorkerStacks> silent(of_nodes.begin(), of_nodes.end());
  all.erase(of_nodes.begin(), of_nodes.end());
  std::ranges::stable_sort(all, {}, &WorkerStacks::rank);
  if (arguments.as_json) {
    std::ranges::copy(silent, std::back_inserter(all));
    std::printf("%s\n", printable(to_json(all)).c_str());
  } else {
    std::string text;
    for (const Workers& group : grouped(all, arguments.shows_all)) {
      text += text_of(group, arguments.shows_all);
    }
    std::fputs(printable_lines(text).c_str(), stdout);
    for (const WorkerStacks& node : silent) report(node.host + ": " + node.trouble, kJobFailed);
  }
  return std::fflush(stdout) == 0 && silent.empty() ? kJobDone : kJobFailed;
}

}  // namespace ddprun::cli
