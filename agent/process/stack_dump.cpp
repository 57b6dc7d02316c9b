#include "agent/process/stack_dump.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <optional>
#include <utility>

#include "agent/process/process_stacks.h"
#include "agent/process/python_stacks.h"
#include "agent/process/search_path.h"
#include "rendezvous/common/thread.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

// What faulthandler needs for a hundred threads, many times over.
constexpr auto kAnswerLimit = 500ms;
constexpr std::size_t kAnswerBytes = 1U << 20;

bool is_python(pid_t pid) {
  std::array<char, 4096> target{};
  const std::string link = "/proc/" + std::to_string(pid) + "/exe";
  const ssize_t size = ::readlink(link.c_str(), target.data(), target.size());
  const std::string path(target.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  return path.substr(path.rfind('/') + 1).starts_with("python");
}

// Empty if none is installed. eu-stack needs a tenth of the time that gdb takes for a process with LibTorch.
std::string debugger_for(bool is_python, const std::string& path) {
  if (is_python) {
    if (auto py_spy = find_in_path(path, "py-spy"); !py_spy.empty()) return py_spy;
  }
  auto eu_stack = find_in_path(path, "eu-stack");
  return !eu_stack.empty() ? eu_stack : find_in_path(path, "gdb");
}

std::string program_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written <= 0) return;  // for example a full disk: do not delay the kill
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

// From a place on; whole lines.
std::string lines_at(int fd, off_t begin, std::size_t bytes_max) {
  std::string text(bytes_max, '\0');
  std::size_t size = 0;
  while (size < bytes_max) {
    const ssize_t read =
        ::pread(fd, text.data() + size, bytes_max - size, begin + static_cast<off_t>(size));
    if (read <= 0) break;
    size += static_cast<std::size_t>(read);
  }
  text.resize(size);
  if (size == bytes_max) text.resize(text.rfind('\n') + 1);
  return text;
}

}  // namespace

namespace {

Environment without_symbol_servers(Environment environment) {
  environment.erase("DEBUGINFOD_URLS");
  return environment;
}

}  // namespace

struct StackDump::Taken {
  int rank = 0;
  std::string file;
  rdzv::UniqueFd fd;          // the file, or a memfd
  off_t of_kernel_bytes = 0;  // after which a debugger writes
  pid_t pid = 0;
  bool is_python = false;
  std::optional<PythonStacks> asked;
  bool has_answered = false;
  std::string debugger;       // its path; empty: it has answered by itself, or none is installed
  bool must_be_last = false;  // a debugger may wait for it for ever
};

namespace {

// The thread's work for one worker.
StackDump::Taken take(const StackDump::Worker& worker, StackDump::Threads threads,
                      const std::string& path) {
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
  for (const pid_t pid : tree) {
    const std::string text = stacks_of(pid);
    taken.of_kernel_bytes += static_cast<off_t>(text.size());
    taken.must_be_last = taken.must_be_last || text.find(": D (") != std::string::npos;
    write_all(taken.fd.get(), text);
  }
  taken.pid = program_in(tree);
  taken.is_python = is_python(taken.pid);
  using Threads = StackDump::Threads;
  const bool must_answer = threads != Threads::kAll || find_in_path(path, "py-spy").empty();
  if (taken.is_python && must_answer) {
    taken.asked =
        PythonStacks::ask(taken.pid, threads == Threads::kMain ? kStackSignal : kAllStacksSignal);
  }
  return taken;
}

// The answers of those that were asked; who does not answer is left to a debugger.
void collect_answers(std::vector<StackDump::Taken>& taken, const std::string& path) {
  const auto until = std::chrono::steady_clock::now() + kAnswerLimit;
  for (StackDump::Taken& each : taken) {
    if (each.asked && each.asked->await(until)) {
      const std::string text = each.asked->text(kAnswerBytes);
      each.has_answered = !text.empty();
      write_all(each.fd.get(), text);
    }
    if (!each.has_answered) each.debugger = debugger_for(each.is_python, path);
  }
}

// Of a program that takes the stacks of one process. Must not ask a server for symbols.
std::vector<std::string> command_for(const StackDump::Taken& worker) {
  const std::string pid = std::to_string(worker.pid);
  if (program_of(worker.debugger) == "py-spy") return {worker.debugger, "dump", "--pid", pid};
  return {worker.debugger, "-p", pid};
}

// For one gdb with all these workers, one after the other.
std::vector<std::string> command_of_gdb(const std::vector<StackDump::Taken>& taken,
                                        const std::vector<std::size_t>& workers) {
  std::vector<std::string> command{taken[workers.front()].debugger, "-nx", "-q", "-batch"};
  for (const char* const setting :
       {"set debuginfod enabled off", "set auto-load off", "set demangle-style none",
        "set logging overwrite off", "set logging redirect on"}) {
    command.insert(command.end(), {"-iex", setting});
  }
  const auto tell = [&command](const std::string& line) {
    command.insert(command.end(), {"-ex", line});
  };
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const StackDump::Taken& worker = taken[workers[i]];
    const std::string number = std::to_string(i + 1);
    if (i > 0) tell("add-inferior");
    if (i > 0) tell("inferior " + number);
    tell("set logging file /proc/self/fd/" + std::to_string(worker.fd.get()));
    tell("set logging on");
    tell("attach " + std::to_string(worker.pid));
    tell("thread apply " + number + ".* backtrace");
    tell("set logging off");
  }
  return command;
}

}  // namespace

StackDump::StackDump(boost::asio::io_context& io, std::vector<Worker> workers, Threads threads,
                     const Environment& environment, Done done)
    : io_(io),
      environment_(without_symbol_servers(environment)),
      done_(std::move(done)),
      calls_(io.get_executor(), "ddprun-stacks") {
  calls_.run<std::vector<Taken>>(
      [workers = std::move(workers), threads, path = value_or_empty(environment, "PATH")] {
        std::vector<Taken> taken;
        for (const Worker& worker : workers) taken.push_back(take(worker, threads, path));
        collect_answers(taken, path);
        return taken;
      },
      [this](std::vector<Taken> taken) { on_taken(std::move(taken)); });
}

StackDump::~StackDump() {
  for (const Debugger& debugger : debuggers_) {
    if (debugger.process) debugger.process->signal_group(SIGKILL);
  }
  if (taken_.empty()) return;
  // Closing a file may hang if its file system does not answer. calls_ ends with this object, so it cannot do that.
  rdzv::destroy_on_thread(std::move(taken_));
}

bool StackDump::owns(pid_t pid) const {
  return std::ranges::any_of(debuggers_, [pid](const Debugger& debugger) {
    return debugger.process && debugger.process->pid() == pid;
  });
}

void StackDump::on_taken(std::vector<Taken> taken) {
  taken_ = std::move(taken);
  std::vector<std::size_t> of_gdb;
  for (std::size_t i = 0; i < taken_.size(); ++i) {
    if (taken_[i].debugger.empty()) continue;
    if (program_of(taken_[i].debugger) == "gdb") {
      of_gdb.push_back(i);
    } else {
      start_debugger(command_for(taken_[i]), {i});
    }
  }
  std::ranges::stable_sort(of_gdb, {}, [this](std::size_t i) { return taken_[i].must_be_last; });
  if (!of_gdb.empty()) start_debugger(command_of_gdb(taken_, of_gdb), of_gdb);
  on_debugger_ended(debuggers_.size());
}

void StackDump::start_debugger(std::vector<std::string> command, std::vector<std::size_t> workers) {
  ProcessSpec spec;
  spec.path = command.front();
  spec.argv = std::move(command);
  spec.environment = to_lines(environment_);
  // gdb writes into the descriptors that its commands name.
  const bool is_gdb = program_of(spec.path) == "gdb";
  const rdzv::UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  spec.stdout_fd = spec.stderr_fd = is_gdb ? nowhere.get() : taken_[workers.front()].fd.get();
  for (const std::size_t worker : workers) spec.inherited_fds.push_back(taken_[worker].fd.get());
  const std::size_t index = debuggers_.size();
  auto process =
      WorkerProcess::start(io_, spec, [this, index](ExitStatus) { on_debugger_ended(index); });
  debuggers_.push_back({process ? std::move(*process) : nullptr, std::move(workers)});
}

// Calls done_ if no debugger is left. `index`: the one that ended; debuggers_.size(): none did.
void StackDump::on_debugger_ended(std::size_t index) {
  if (index < debuggers_.size()) debuggers_[index].process.reset();
  const auto runs = [](const Debugger& debugger) { return debugger.process != nullptr; };
  if (std::ranges::any_of(debuggers_, runs)) return;
  const Done done = done_;  // it may destroy this object
  done();
}

bool StackDump::is_at_work_on(std::size_t worker) const {
  return std::ranges::any_of(debuggers_, [worker](const Debugger& debugger) {
    return debugger.process && std::ranges::count(debugger.workers, worker) > 0;
  });
}

std::vector<StackDump::Account> StackDump::so_far(std::size_t bytes_max) const {
  std::vector<Account> accounts;
  for (std::size_t i = 0; i < taken_.size(); ++i) {
    const Taken& taken = taken_[i];
    Account account;
    account.rank = taken.rank;
    account.pid = taken.pid;
    account.is_python = taken.is_python;
    account.debugger = program_of(taken.debugger);
    if (taken.has_answered) account.debugger = "faulthandler";
    account.has_ended = !is_at_work_on(i);
    account.file = taken.file;
    if (taken.file.empty()) {
      const auto of_kernel = static_cast<std::size_t>(taken.of_kernel_bytes);
      account.text = lines_at(taken.fd.get(), 0, std::min(of_kernel, bytes_max));
      account.debugger_text = lines_at(taken.fd.get(), taken.of_kernel_bytes, bytes_max);
    }
    accounts.push_back(std::move(account));
  }
  return accounts;
}

}  // namespace ddprun::agent
