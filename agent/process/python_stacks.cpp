#include "agent/process/python_stacks.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <thread>

#include "agent/process/process_stacks.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;
using rdzv::UniqueFd;

bool has_signal(const std::string& mask, int signal) {
  return (std::strtoull(mask.c_str(), nullptr, 16) >> (signal - 1) & 1) != 0;
}

// The program may have closed it, and opened another file with its number.
bool is_of_stacks(const fs::path& descriptor) {
  const std::string start = std::string("/memfd:") + kStackMemory;
  std::array<char, 64> target{};
  const ssize_t size = ::readlink(descriptor.c_str(), target.data(), target.size());
  return size > 0 &&
         std::string_view(target.data(), static_cast<std::size_t>(size)).starts_with(start);
}

UniqueFd memory_with_stacks_of(pid_t pid) {
  std::error_code error;
  for (fs::directory_iterator at("/proc/" + std::to_string(pid) + "/fd", error), end;
       !error && at != end; at.increment(error)) {
    if (!is_of_stacks(at->path())) continue;
    UniqueFd memory(::open(at->path().c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
    struct stat about {};
    if (memory && ::fstat(memory.get(), &about) == 0 && S_ISREG(about.st_mode)) return memory;
  }
  return UniqueFd();
}

// A signal that is not handled would end the process; one that waits would be answered at some time.
bool can_answer(pid_t pid, int signal) {
  const ThreadSignals main = signals_of(pid, pid);
  return !main.state.empty() &&
         std::string_view("SR").find(main.state[0]) != std::string_view::npos &&
         has_signal(main.caught, signal) && !has_signal(main.blocked, signal) &&
         !has_signal(main.pending, signal);
}

constexpr std::chrono::milliseconds kPoll{1};

bool lock(const UniqueFd& memory, std::chrono::steady_clock::time_point until) {
  while (::flock(memory.get(), LOCK_EX | LOCK_NB) != 0) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

}  // namespace

std::optional<PythonStacks> PythonStacks::ask(pid_t pid, int signal) {
  if (!has_signal(signals_of(pid, pid).caught, signal)) return std::nullopt;
  UniqueFd memory = memory_with_stacks_of(pid);
  if (!memory || !lock(memory, std::chrono::steady_clock::now() + kOtherLimit)) return std::nullopt;
  PythonStacks stacks(pid, signal, std::move(memory));
  const bool is_asked = can_answer(pid, signal) && ::ftruncate(stacks.memory_.get(), 0) == 0 &&
                        ::syscall(SYS_tgkill, pid, pid, signal) == 0;
  if (!is_asked) return std::nullopt;
  return stacks;
}

// A child of the agent that has not executed its program yet has the descriptor, too.
PythonStacks::~PythonStacks() {
  if (memory_) ::flock(memory_.get(), LOCK_UN);
}

// While it is handled, the kernel blocks the signal. It does so a moment after the signal stops being
// pending, so the size is read first: with a line there, the signal was blocked before.
bool PythonStacks::is_done() const {
  struct stat about {};
  const bool has_begun = ::fstat(memory_.get(), &about) == 0 && about.st_size > 0;
  const ThreadSignals main = signals_of(pid_, pid_);
  if (main.state.empty() || main.state[0] == 'Z' || main.state[0] == 'X') return true;
  return has_begun && !has_signal(main.pending, signal_) && !has_signal(main.blocked, signal_);
}

bool PythonStacks::await(std::chrono::steady_clock::time_point until) const {
  while (!is_done() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(kPoll);
  return is_done();
}

std::string PythonStacks::text(std::size_t bytes_max) const {
  std::string text(bytes_max, '\0');
  const ssize_t size = ::pread(memory_.get(), text.data(), bytes_max, 0);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  if (text.size() == bytes_max) text.resize(text.rfind('\n') + 1);
  return text;
}

}  // namespace ddprun::agent
