#include "agent/process/left_processes.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <optional>
#include <utility>

#include "agent/process/process_stacks.h"
#include "rendezvous/common/file_text.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/lists.h"
#include "rendezvous/common/trimmed.h"

namespace ddprun::agent {
namespace {

constexpr std::chrono::milliseconds kNamesLimit{200};
constexpr std::size_t kNamedMax = 8;
constexpr std::size_t kCommandBytes = 160;

struct Kinship {
  pid_t parent = 0;
  pid_t group = 0;
};

// Nothing: there is no such process, or it has ended.
std::optional<Kinship> kinship_of(pid_t pid) {
  char state = 0;
  Kinship its;
  if (std::sscanf(stat_after_name(pid).c_str(), "%c %d %d", &state, &its.parent, &its.group) != 3 ||
      state == 'Z' || state == 'X') {
    return std::nullopt;
  }
  return its;
}

// Does not block.
std::string short_name_of(pid_t pid) {
  return std::string(trimmed(file_text("/proc/" + std::to_string(pid) + "/comm")));
}

std::string command_of(pid_t pid) {
  std::string words = file_text("/proc/" + std::to_string(pid) + "/cmdline");
  std::ranges::replace(words, '\0', ' ');
  return std::string(trimmed(words));
}

}  // namespace

std::vector<pid_t> rest_of_group(pid_t leader) {
  std::vector<pid_t> rest = children_of(::getpid());
  // The other workers are children, too: their files in /proc are not read for that.
  std::erase_if(rest, [leader](pid_t pid) {
    return pid == leader || ::getpgid(pid) != leader || !kinship_of(pid);
  });
  return rest;
}

ByGroup by_group(const std::vector<pid_t>& pids, const std::set<pid_t>& groups) {
  ByGroup found;
  for (const pid_t pid : pids) {
    if (const auto its = kinship_of(pid)) {
      (groups.contains(its->group) ? found.inside : found.outside).insert(pid);
    }
  }
  return found;
}

std::vector<pid_t> roots_of(const std::set<pid_t>& pids) {
  std::vector<pid_t> roots;
  for (const pid_t pid : pids) {
    const auto its = kinship_of(pid);
    if (its && !pids.contains(its->parent)) roots.push_back(pid);
  }
  return roots;
}

std::string in_words(const std::vector<pid_t>& pids, const std::vector<std::string>& commands) {
  std::vector<std::string> processes;
  for (std::size_t i = 0; i < pids.size(); ++i) {
    const std::string& command = commands.at(i);
    const bool is_cut = command.size() > kCommandBytes;
    processes.push_back(std::to_string(pids[i]) + " (" +
                        printable(command.substr(0, kCommandBytes)) + (is_cut ? "…)" : ")"));
  }
  return joined_some(processes, kNamedMax);
}

void ProcessNames::look_up(std::vector<pid_t> pids, std::function<void(const std::string&)> done) {
  std::vector<std::string> short_names;
  std::ranges::transform(pids, std::back_inserter(short_names), &short_name_of);
  if (!calls_) calls_ = std::make_unique<BlockingCalls>(executor_, "ddprun-names");
  calls_->run<std::vector<std::string>>(
      kNamesLimit,
      [pids] {
        std::vector<std::string> commands;
        std::ranges::transform(pids, std::back_inserter(commands), &command_of);
        return commands;
      },
      [this, pids, short_names = std::move(short_names),
       done = std::move(done)](std::optional<std::vector<std::string>> commands) mutable {
        if (!commands) calls_.reset();
        for (std::size_t i = 0; commands && i < commands->size(); ++i) {
          if (!(*commands)[i].empty()) short_names[i] = std::move((*commands)[i]);
        }
        done(in_words(pids, short_names));
      });
}

}  // namespace ddprun::agent
