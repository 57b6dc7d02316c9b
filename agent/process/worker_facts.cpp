#include "agent/process/worker_facts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
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

bool names_a_shell(std::string_view path) {
  constexpr std::array<std::string_view, 11> kShells{
      "ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "zsh"};
  return std::ranges::count(kShells, path.substr(path.rfind('/') + 1)) > 0;
}

// `mask`: as /proc has it, in hexadecimal digits.
bool is_in(const std::string& mask, int signal) {
  std::uint64_t bits = 0;
  std::from_chars(mask.data(), mask.data() + mask.size(), bits, 16);
  return (bits >> (signal - 1) & 1) != 0;
}

}  // namespace

bool handles(pid_t pid, int signal, const std::string& proc) {
  return is_in(signals_of(pid, pid, proc).caught, signal);
}

bool blocks(pid_t pid, int signal, const std::string& proc) {
  return is_in(signals_of(pid, pid, proc).blocked, signal);
}

bool dies_of(pid_t pid, int signal, const std::string& proc) {
  const ThreadSignals signals = signals_of(pid, pid, proc);
  return !signals.caught.empty() && !is_in(signals.caught, signal) &&
         !is_in(signals.blocked, signal) && !is_in(signals.ignored, signal);
}

bool is_shell(pid_t pid, const std::string& proc) {
  return names_a_shell(target_of(proc + "/" + std::to_string(pid) + "/exe"));
}

bool runs_a_shell(const char* path) {
  if (names_a_shell(path)) return true;
  struct stat about {
  };  // a pipe would be waited for, and a device may do something when it is opened
  if (::stat(path, &about) != 0 || !S_ISREG(about.st_mode)) return false;
  std::array<char, 256> begin{};
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t size = file < 0 ? 0 : TEMP_FAILURE_RETRY(::read(file, begin.data(), begin.size()));
  if (file >= 0) ::close(file);
  std::string_view line(begin.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  if (!line.starts_with("#!")) return false;
  line = line.substr(2, line.find('\n') - 2);
  while (!line.empty()) {  // "/usr/bin/env -S bash -e"
    const std::string_view word = line.substr(0, line.find(' '));
    if (names_a_shell(word)) return true;
    line.remove_prefix(std::min(line.size(), word.size() + 1));
  }
  return false;
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
