#include "agent/process/worker_facts.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string_view>

#include "agent/process/process_stacks.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

std::string target_of(const fs::path& link) {
  std::error_code error;
  return fs::read_symlink(link, error).string();
}

// The first word after the name in /proc/<pid>/stat is the state, the second the parent, the third the process group.
pid_t group_of(pid_t pid, const std::string& proc) {
  std::istringstream stat(stat_after_name(pid, proc));
  std::string state;
  pid_t parent = 0;
  pid_t group = 0;
  stat >> state >> parent >> group;
  return group;
}

}  // namespace

bool handles(pid_t pid, int signal, const std::string& proc) {
  const std::string caught = signals_of(pid, pid, proc).caught;
  std::uint64_t mask = 0;
  std::from_chars(caught.data(), caught.data() + caught.size(), mask, 16);
  return (mask >> (signal - 1) & 1) != 0;
}

bool is_shell(pid_t pid, const std::string& proc) {
  constexpr std::array<std::string_view, 11> kShells{
      "ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "zsh"};
  const fs::path program = target_of(proc + "/" + std::to_string(pid) + "/exe");
  return std::ranges::count(kShells, program.filename().string()) > 0;
}

bool has_gpu(pid_t pid, const std::string& proc) {
  constexpr std::string_view kNvidia =
      "/dev/nvidia";  // /dev/nvidia0; /dev/nvidiactl is open in tools as well
  std::error_code error;
  for (fs::directory_iterator at(proc + "/" + std::to_string(pid) + "/fd", error), end;
       !error && at != end; at.increment(error)) {
    const std::string file = target_of(at->path());
    if (file == "/dev/kfd") return true;
    if (file.starts_with(kNvidia) && file.size() > kNvidia.size() &&
        std::isdigit(static_cast<unsigned char>(file[kNvidia.size()])) != 0) {
      return true;
    }
  }
  return false;
}

std::vector<pid_t> handlers_in_group(pid_t leader, int signal, const std::string& proc) {
  std::vector<pid_t> found = process_tree(leader, proc);
  std::erase_if(found, [&](pid_t pid) {
    return pid == leader || group_of(pid, proc) != leader || !handles(pid, signal, proc);
  });
  return found;
}

}  // namespace ddprun::agent
