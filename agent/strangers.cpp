#include "agent/strangers.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>

#include "rendezvous/base/file_text.h"

namespace ddprun::agent {
namespace {

// An adopted child belongs to one of our threads, so the lists of all threads are read.
std::vector<pid_t> children() {
  std::vector<pid_t> pids;
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(::opendir("/proc/self/task"), ::closedir);
  if (!tasks) return pids;
  while (const dirent* task = ::readdir(tasks.get())) {
    if (task->d_name[0] == '.') continue;
    std::ifstream list("/proc/self/task/" + std::string(task->d_name) + "/children");
    pids.insert(pids.end(), std::istream_iterator<pid_t>(list), std::istream_iterator<pid_t>());
  }
  return pids;
}

enum class Found { kYes, kNo, kUnseen };

// What proc(5) calls state, startcode, env_start and env_end.
struct MemoryOfProcess {
  char state = 0;
  std::uint64_t code_start = 0;
  std::uint64_t environment_start = 0;
  std::uint64_t environment_end = 0;
};

// Nothing: there is no such process.
std::optional<MemoryOfProcess> memory_of(pid_t pid) {
  const std::string text = file_text("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream stat(text.substr(name_end + 1));
  const std::vector<std::string> fields{std::istream_iterator<std::string>(stat), {}};
  const auto field = [&](std::size_t number) -> const std::string& {
    return fields.at(number - 3);
  };
  return MemoryOfProcess{.state = field(3).front(),
                         .code_start = std::stoull(field(26)),
                         .environment_start = std::stoull(field(50)),
                         .environment_end = std::stoull(field(51))};
}

// While a process exchanges its memory for that of another program, and once it has given its
// memory back on the way to its end, its environment reads as shorter than it is, or as empty. The
// kernel sets the start of the code last: an empty environment beside it is an empty one.
Found environment_has(pid_t pid, const std::string& entry) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
  if (!file) return Found::kNo;  // gone, or another user's
  std::size_t bytes = 0;
  std::string line;
  while (std::getline(file, line, '\0')) {
    if (line == entry) return Found::kYes;
    bytes += line.size() + 1;
  }
  const auto memory = memory_of(pid);
  if (!memory || memory->state == 'Z' || memory->state == 'X') return Found::kNo;
  const bool was_seen_whole =
      memory->code_start != 0 && bytes == memory->environment_end - memory->environment_start;
  return was_seen_whole ? Found::kNo : Found::kUnseen;
}

}  // namespace

std::string make_agent_id(const std::string& host) {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return host + "-" + std::to_string(::getpid()) + "-" +
         std::to_string(now.tv_sec * 1'000'000'000L + now.tv_nsec);
}

void become_subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

Strangers strangers_of(const std::string& agent_id, const std::function<bool(pid_t)>& is_known) {
  Strangers found;
  const std::string entry = std::string(kAgentVariable) + "=" + agent_id;
  for (const pid_t pid : children()) {
    if (is_known(pid)) continue;
    const Found has = environment_has(pid, entry);
    if (has == Found::kYes) found.pids.push_back(pid);
    if (has == Found::kUnseen) found.some_unseen = true;
  }
  return found;
}

void reap_strangers(const std::function<bool(pid_t)>& is_known) {
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    if (is_known(info.si_pid)) return;
    ::waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

}  // namespace ddprun::agent
