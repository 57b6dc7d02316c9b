#include "agent/process/stack_dump.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <utility>

#include "agent/process/process_stacks.h"
#include "agent/process/search_path.h"
#include "rendezvous/common/thread.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kTextBytesMax = 4096;  // for each worker without a file

bool is_python(pid_t pid) {
  std::array<char, 4096> target{};
  const std::string link = "/proc/" + std::to_string(pid) + "/exe";
  const ssize_t size = ::readlink(link.c_str(), target.data(), target.size());
  const std::string path(target.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  return path.substr(path.rfind('/') + 1).starts_with("python");
}

// Empty if neither is installed. gdb must not ask a server for symbols, which may take long.
std::vector<std::string> debugger_for(pid_t pid, const std::string& path) {
  if (is_python(pid)) {
    const std::string py_spy = find_in_path(path, "py-spy");
    if (!py_spy.empty()) return {py_spy, "dump", "--pid", std::to_string(pid)};
  }
  const std::string gdb = find_in_path(path, "gdb");
  if (gdb.empty()) return {};
  return {gdb,    "-nx",
          "-q",   "-batch",
          "-iex", "set debuginfod enabled off",
          "-iex", "set auto-load off",
          "-p",   std::to_string(pid),
          "-ex",  "thread apply all backtrace"};
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written <= 0) return;  // for example a full disk: do not delay the kill
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::string first_lines(int fd) {
  std::string text(kTextBytesMax, '\0');
  const ssize_t size = ::pread(fd, text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  if (text.size() == kTextBytesMax) text.resize(text.rfind('\n') + 1);
  return text;
}

}  // namespace

struct StackDump::Taken {
  int rank = 0;
  std::string file;
  rdzv::UniqueFd fd;  // the file, or a memfd
  std::vector<std::string> debugger;
};

namespace {

// The thread's work for one worker.
StackDump::Taken take(const StackDump::Worker& worker, const std::string& path) {
  StackDump::Taken taken;
  taken.rank = worker.rank;
  if (!worker.folder.empty()) {
    taken.file = worker.folder + "/stacks.txt";
    taken.fd.reset(
        ::open(taken.file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666));
  }
  if (!taken.fd) {
    taken.file.clear();
    taken.fd.reset(::memfd_create("ddprun-stacks", MFD_CLOEXEC));
  }
  const std::vector<pid_t> tree = process_tree(worker.pid);
  for (const pid_t pid : tree) write_all(taken.fd.get(), stacks_of(pid));
  // If the worker is a wrapper script, the program is the descendant with the most threads.
  const auto threads = [](pid_t pid) { return thread_count(pid); };
  taken.debugger = debugger_for(*std::ranges::max_element(tree, {}, threads), path);
  return taken;
}

}  // namespace

StackDump::StackDump(boost::asio::io_context& io, std::vector<Worker> workers,
                     const Environment& environment, Done done)
    : io_(io),
      environment_(environment),
      done_(std::move(done)),
      calls_(io.get_executor(), "ddprun-stacks") {
  calls_.run<std::vector<Taken>>(
      [workers = std::move(workers), path = value_or_empty(environment, "PATH")] {
        std::vector<Taken> taken;
        for (const Worker& worker : workers) taken.push_back(take(worker, path));
        return taken;
      },
      [this](std::vector<Taken> taken) { on_taken(std::move(taken)); });
}

StackDump::~StackDump() {
  for (const auto& debugger : debuggers_) {
    if (debugger) debugger->signal_group(SIGKILL);
  }
  if (taken_.empty()) return;
  // Closing a file may hang if its file system does not answer.
  const auto files = std::make_shared<std::vector<Taken>>(std::move(taken_));
  auto closer = rdzv::Thread::start("ddprun-closer", [files] { files->clear(); });
  if (closer) closer->detach();
}

bool StackDump::owns(pid_t pid) const {
  return std::ranges::any_of(
      debuggers_, [pid](const auto& debugger) { return debugger && debugger->pid() == pid; });
}

void StackDump::on_taken(std::vector<Taken> taken) {
  taken_ = std::move(taken);
  debuggers_.resize(taken_.size());
  for (std::size_t i = 0; i < taken_.size(); ++i) {
    if (taken_[i].debugger.empty()) continue;
    ProcessSpec spec;
    spec.path = taken_[i].debugger.front();
    spec.argv = taken_[i].debugger;
    spec.environment = to_lines(environment_);
    spec.stdout_fd = spec.stderr_fd = taken_[i].fd.get();
    auto debugger =
        WorkerProcess::start(io_, spec, [this, i](ExitStatus) { on_debugger_ended(i); });
    if (debugger) debuggers_[i] = std::move(*debugger);
  }
  on_debugger_ended(taken_.size());
}

// Calls done_ if no debugger is left. `index`: the one that ended; debuggers_.size(): none did.
void StackDump::on_debugger_ended(std::size_t index) {
  if (index < debuggers_.size()) debuggers_[index].reset();
  if (std::ranges::any_of(debuggers_, [](const auto& each) { return each != nullptr; })) return;
  const Done done = done_;  // it may destroy this object
  done();
}

std::vector<StackDump::Account> StackDump::so_far() const {
  std::vector<Account> accounts;
  for (const Taken& taken : taken_) {
    accounts.push_back(
        {taken.rank, taken.file, taken.file.empty() ? first_lines(taken.fd.get()) : ""});
  }
  return accounts;
}

}  // namespace ddprun::agent
