#include "agent/failure/hang_report.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/durations.h"
#include "rendezvous/common/text/indented.h"
#include "rendezvous/common/text/lists.h"
#include "rendezvous/common/text/ranks.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kGroupsShown = 8;  // of the others
constexpr std::size_t kCulpritsShown = 4;
constexpr std::size_t kHostsNamed = 4;
constexpr std::size_t kLineBytesMax = 300;  // of a stack on one line

// A state that says why the thread does not run; whether it runs or sleeps changes all the time.
bool is_notable(const std::string& state) {
  return !state.empty() && std::string_view("TtDZ").find(state.front()) != std::string_view::npos;
}

std::string call_in_words(const GroupCalls& group) {
  return ddprun::call_in_words(group.at->call.operation, group.at->number, group.name);
}

RanksAlike of_rank(const WorkerStatus& worker, const std::string& host,
                   const std::map<int, RankStack>& stacks) {
  RanksAlike made;
  made.ranks = {worker.rank};
  made.hosts = {host};
  made.pid = worker.pid;
  const GroupCalls* const calls =
      worker.calls.empty() || !worker.calls.front().at ? nullptr : &worker.calls.front();
  if (calls == nullptr) {
    made.call = "no call is known";
  } else if (calls->at->is_over) {
    made.call = "in no call; the last was " + call_in_words(*calls);
  } else {
    made.call = "in " + call_in_words(*calls);
  }
  if (calls != nullptr) made.since = calls->at->since;
  if (worker.progress && worker.progress->step) {
    made.step = worker.progress->step;
    made.since_step = worker.progress->since_step;
  }
  const auto found = stacks.find(worker.rank);
  if (found == stacks.end()) {
    made.trouble = "no stack came in time";
    return made;
  }
  const RankStack& stack = found->second;
  if (is_notable(stack.state)) made.state = stack.state;
  made.stack = stack.stack;
  made.trouble = stack.trouble;
  return made;
}

void put(std::vector<RanksAlike>& groups, std::map<std::string, std::size_t>& places,
         RanksAlike each) {
  const std::string key = each.state + '\n' + each.call + '\n' + each.trouble + '\n' + each.stack;
  const auto [place, is_new] = places.try_emplace(key, groups.size());
  if (is_new) {
    groups.push_back(std::move(each));
    return;
  }
  RanksAlike& group = groups[place->second];
  group.ranks.push_back(each.ranks.front());
  if (std::ranges::count(group.hosts, each.hosts.front()) == 0) {
    group.hosts.push_back(std::move(each.hosts.front()));
  }
  group.since = std::max(group.since, each.since);
}

// "ranks 0-2 on b12, b13 (3 workers): T (stopped); in all_reduce (call 12 of ddprun) for 1.2 s"
std::string headline(const RanksAlike& group) {
  std::string text =
      rank_ranges(group.ranks) + " on " + joined_some(group.hosts, kHostsNamed, "more hosts");
  const bool is_one = group.ranks.size() == 1;
  if (!is_one) text += " (" + std::to_string(group.ranks.size()) + " workers)";
  if (is_one && group.pid > 0) text += ", pid " + std::to_string(group.pid);
  text += ": ";
  if (!group.state.empty()) text += group.state + "; ";
  text += group.call;
  if (group.since > std::chrono::nanoseconds(0)) {
    const bool is_in_it = group.call.starts_with("in ") && !group.call.starts_with("in no");
    text += is_in_it ? " for " + time_in_words(group.since)
                     : ", " + time_in_words(group.since) + " ago";
  }
  if (is_one && group.step) {
    text += "; step " + std::to_string(*group.step) + " was done " +
            time_in_words(group.since_step) + " ago";
  }
  return text;
}

// "futex_wait < shm_wait < main"
std::string on_one_line(std::string_view stack) {
  std::string text;
  while (!stack.empty()) {
    const auto end = stack.find('\n');
    if (text.size() + std::min(end, stack.size()) > kLineBytesMax) return text + " < …";
    text += (text.empty() ? "" : " < ") + std::string(stack.substr(0, end));
    stack.remove_prefix(end == std::string_view::npos ? stack.size() : end + 1);
  }
  return text;
}

// "evaluate (train.py:41), in read (codec.py:12)": where the program itself is, which is the innermost frame in the file
// of its outermost one, and what that has called.
std::string place_in(std::string_view stack) {
  std::vector<std::string_view> frames;
  while (!stack.empty()) {
    const auto end = stack.find('\n');
    const std::string_view frame = stack.substr(0, end);
    // The latter are the interpreter's, as runpy.
    const bool is_of_the_program = !frame.empty() && !frame.starts_with("kernel: ") &&
                                   frame.find("(<frozen ") == std::string_view::npos;
    if (is_of_the_program) frames.push_back(frame);
    if (frame == "main" || frame.starts_with("main (")) break;
    stack.remove_prefix(end == std::string_view::npos ? stack.size() : end + 1);
  }
  if (frames.empty()) return {};
  const auto file_of = [](std::string_view frame) {
    const auto begin = frame.rfind('(');
    return begin == std::string_view::npos ? std::string_view()
                                           : frame.substr(begin, frame.rfind(':') - begin);
  };
  const auto own = std::ranges::find(frames, file_of(frames.back()), file_of);
  std::string text(*own);
  if (own != frames.begin()) text += ", in " + std::string(frames.front());
  return text;
}

}  // namespace

// Calls are counted from 1: 0 is a wait in the store, for the key that `group` is.
static std::string observed(const rdzv::WaitingFor& wait) {
  if (wait.number > 0) return sentence(wait);
  const std::string store = " in the store of this round";
  const std::string waits =
      ranks_in_words(wait.waiting) + (wait.waiting.size() == 1 ? " waits" : " wait");
  const std::string key = " for the key " + wait.group;
  if (wait.missing.empty()) return waits + store + key;
  return ranks_in_words(wait.missing) + (wait.missing.size() == 1 ? " does" : " do") + " not wait" +
         store + ", where " + waits + key;
}

std::string wait_line(const rdzv::WaitingFor& wait, const std::map<int, RankStack>& stacks,
                      int agent_pid) {
  std::string text = observed(wait) + ", for " + time_in_words(wait.waited);
  for (const int rank : wait.missing) {
    const auto found = stacks.find(rank);
    if (found == stacks.end()) continue;
    const RankStack& stack = found->second;
    std::string place = place_in(stack.stack);
    if (is_notable(stack.state)) place = stack.state + (place.empty() ? "" : ", " + place);
    if (place.empty()) place = stack.state;
    if (place.empty()) continue;
    text += "; rank " + std::to_string(rank) + ": " + place;
    break;
  }
  return printable(text + "; ddpctl stacks " + std::to_string(agent_pid) + " shows all ranks");
}

HangReport make_hang_report(const rdzv::Hung& hung, const JobStatus& status,
                            const std::map<int, RankStack>& stacks) {
  HangReport report;
  report.hung = hung;
  std::map<int, RanksAlike> ranks;
  const auto& round = status.nodes.front().round;
  if (round) report.round = *round;
  for (const NodeStatus& node : status.nodes) {
    if (node.round != round) continue;
    for (const WorkerStatus& worker : node.workers) {
      if (worker.state != WorkerState::kRunning) continue;
      ranks.try_emplace(worker.rank, of_rank(worker, node.host, stacks));
    }
  }
  for (const LateNode& node : status.late) report.silent.push_back(node.host);
  std::map<std::string, std::size_t> of_culprits;
  std::map<std::string, std::size_t> of_others;
  for (auto& [rank, each] : ranks) {
    const bool is_culprit = std::ranges::count(hung.ranks, rank) > 0;
    is_culprit ? put(report.culprits, of_culprits, std::move(each))
               : put(report.others, of_others, std::move(each));
  }
  std::ranges::stable_sort(report.others, std::ranges::greater{},
                           [](const RanksAlike& each) { return each.ranks.size(); });
  return report;
}

std::string to_text(const HangReport& report) {
  std::string text;
  const auto note = [](const RanksAlike& group) {
    return group.trouble.empty() ? "" : "    note: " + group.trouble + "\n";
  };
  for (std::size_t i = 0; i < std::min(report.culprits.size(), kCulpritsShown); ++i) {
    const RanksAlike& group = report.culprits[i];
    text += "  " + headline(group) + "\n" + indented(group.stack, "    ") + note(group);
  }
  if (report.culprits.size() > kCulpritsShown) {
    text += "  and " + std::to_string(report.culprits.size() - kCulpritsShown) +
            " other stacks of ranks that hang: see ddpctl stacks\n";
  }
  for (std::size_t i = 0; i < std::min(report.others.size(), kGroupsShown); ++i) {
    const RanksAlike& group = report.others[i];
    const std::string stack = on_one_line(group.stack);
    text += "  " + headline(group) + (stack.empty() ? "" : "; " + stack) + "\n";
  }
  std::vector<std::string> notes;
  for (const RanksAlike& group : report.others) {
    if (!group.trouble.empty() && std::ranges::count(notes, group.trouble) == 0) {
      notes.push_back(group.trouble);
    }
  }
  if (!notes.empty()) text += "    note: " + notes.front() + "\n";
  if (report.others.size() > kGroupsShown) {
    text += "  and " + std::to_string(report.others.size() - kGroupsShown) +
            " other stacks: see ddpctl stacks\n";
  }
  if (!report.silent.empty()) {
    text += "  no answer from " + joined_some(report.silent, kHostsNamed, "more hosts") + "\n";
  }
  return printable_lines(text);
}

}  // namespace ddprun::agent
