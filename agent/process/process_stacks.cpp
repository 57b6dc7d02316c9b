#include "agent/process/process_stacks.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "rendezvous/common/file_text.h"
#include "rendezvous/common/text/indented.h"
#include "rendezvous/common/text/lists.h"
#include "rendezvous/common/trimmed.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kProcessesMax = 64;
constexpr std::size_t kThreadsMax = 1024;

std::string text_of(const std::string& path) {
  std::string out = file_text(path);
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

std::string task_folder(pid_t pid, const std::string& proc) {
  return proc + "/" + std::to_string(pid) + "/task";
}

std::vector<pid_t> threads_of(pid_t pid, const std::string& proc) {
  std::vector<pid_t> threads;
  std::error_code error;
  for (fs::directory_iterator at(task_folder(pid, proc), error), end; !error && at != end;
       at.increment(error)) {
    threads.push_back(std::atoi(at->path().filename().c_str()));
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

// The value of "Name:\tvalue" in /proc/<pid>/status.
std::string field(const std::string& status, const std::string& name) {
  std::istringstream lines(status);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + ":")) {
      return std::string(trimmed(std::string_view(line).substr(name.size() + 1)));
    }
  }
  return {};
}

// State, wait channel and kernel stack of a thread, without its name.
std::string doing(const std::string& folder) {
  const std::string waits_in = text_of(folder + "/wchan");
  std::string out = field(text_of(folder + "/status"), "State");
  if (!waits_in.empty() && waits_in != "0") out += ", waits in " + waits_in;
  return out + "\n" + indented(text_of(folder + "/stack"), "      ");
}

}  // namespace

std::string stat_after_name(pid_t pid, const std::string& proc) {
  const std::string stat = file_text(proc + "/" + std::to_string(pid) + "/stat");
  const std::size_t name_end = stat.rfind(") ");
  return name_end == std::string::npos ? "" : stat.substr(name_end + 2);
}

// A child belongs to one of the threads, so the lists of all of them are read.
std::vector<pid_t> children_of(pid_t parent, const std::string& proc) {
  std::vector<pid_t> pids;
  for (const pid_t thread : threads_of(parent, proc)) {
    std::ifstream list(task_folder(parent, proc) + "/" + std::to_string(thread) + "/children");
    pids.insert(pids.end(), std::istream_iterator<pid_t>(list), std::istream_iterator<pid_t>());
  }
  return pids;
}

std::vector<pid_t> process_tree(pid_t leader, const std::string& proc) {
  std::vector<pid_t> tree{leader};
  for (std::size_t next = 0; next < tree.size(); ++next) {
    const std::vector<pid_t> children = children_of(tree[next], proc);
    tree.insert(tree.end(), children.begin(), children.end());
    if (tree.size() > kProcessesMax) tree.resize(kProcessesMax);
  }
  return tree;
}

ThreadSignals signals_of(pid_t pid, pid_t thread, const std::string& proc) {
  const std::string status =
      text_of(task_folder(pid, proc) + "/" + std::to_string(thread) + "/status");
  return {.state = field(status, "State"),
          .caught = field(status, "SigCgt"),
          .blocked = field(status, "SigBlk"),
          .ignored = field(status, "SigIgn"),
          .pending = field(status, "SigPnd")};
}

std::size_t thread_count(pid_t pid, const std::string& proc) {
  return threads_of(pid, proc).size();
}

pid_t program_in(const std::vector<pid_t>& tree) {
  return *std::ranges::max_element(tree, {}, [](pid_t pid) { return thread_count(pid); });
}

std::string stacks_of(pid_t pid, const std::string& proc) {
  const std::string folder = proc + "/" + std::to_string(pid);
  const std::string status = text_of(folder + "/status");
  std::vector<pid_t> threads = threads_of(pid, proc);
  std::string out = "process " + std::to_string(pid) + " (" + field(status, "Name") + "), " +
                    counted(static_cast<std::int64_t>(threads.size()), "thread") + "\n";
  for (const char* const name : {"SigQ", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"}) {
    const std::string value = field(status, name);
    if (!value.empty()) out += "  " + std::string(name) + " " + value + "\n";
  }
  threads.resize(std::min(threads.size(), kThreadsMax));
  std::vector<std::pair<std::string, std::string>> groups;  // what they do, and their names
  for (const pid_t thread : threads) {
    const std::string of_thread = task_folder(pid, proc) + "/" + std::to_string(thread);
    std::string does = doing(of_thread);
    const std::string who = std::to_string(thread) + " " + text_of(of_thread + "/comm");
    const auto same = std::find_if(groups.begin(), groups.end(),
                                   [&](const auto& group) { return group.first == does; });
    if (same == groups.end()) {
      groups.emplace_back(std::move(does), who);
    } else {
      same->second += ", " + who;
    }
  }
  for (const auto& [does, who] : groups) out += "  " + who + ": " + does;
  return out;
}

}  // namespace ddprun::agent
