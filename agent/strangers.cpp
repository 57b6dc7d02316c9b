#include "agent/strangers.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>

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

bool environment_has(pid_t pid, const std::string& entry) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
  std::string line;
  while (std::getline(file, line, '\0')) {
    if (line == entry) return true;
  }
  return false;
}

}  // namespace

std::string make_agent_id(const std::string& host) {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return host + "-" + std::to_string(::getpid()) + "-" +
         std::to_string(now.tv_sec * 1'000'000'000L + now.tv_nsec);
}

void become_subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

std::vector<pid_t> strangers_of(const std::string& agent_id,
                                const std::function<bool(pid_t)>& is_known) {
  std::vector<pid_t> pids = children();
  const std::string entry = std::string(kAgentVariable) + "=" + agent_id;
  std::erase_if(pids, [&](pid_t pid) { return is_known(pid) || !environment_has(pid, entry); });
  return pids;
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
