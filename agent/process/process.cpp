#include "agent/process/process.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/process/v2/process.hpp>
#include <boost/system/system_error.hpp>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <list>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "agent/process/child_end.h"
#include "agent/process/left_processes.h"
#include "agent/process/process_stacks.h"
#include "agent/process/worker_facts.h"
#include "rendezvous/common/descriptor_limit.h"
#include "rendezvous/common/exec_arguments.h"
#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/common/open_files.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/common/signals_blocked.h"
#include "rendezvous/common/trimmed.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/common/worker_abi/collective_record.h"
#include "rendezvous/common/worker_abi/worker_link.h"

namespace ddprun::agent {
namespace {

namespace asio = boost::asio;
using Process = boost::process::v2::basic_process<asio::io_context::executor_type>;

constexpr int kFirstRealTimeSignal = 32;              // the agent handles none of those
constexpr std::chrono::milliseconds kLookAgain{100};  // if the exit status is not available yet
constexpr std::chrono::milliseconds kRestLimit{
    1000};  // for the group of a worker that has succeeded

struct SignalState {
  sigset_t mask;
  struct sigaction pipe;
  struct sigaction file_size;
};

SignalState& inherited_signals() {
  static SignalState state = [] {
    SignalState read{};
    ::pthread_sigmask(SIG_SETMASK, nullptr, &read.mask);
    ::sigaction(SIGPIPE, nullptr, &read.pipe);
    ::sigaction(SIGXFSZ, nullptr, &read.file_size);
    return read;
  }();
  return state;
}

std::optional<rlimit>& inherited_files() {
  static std::optional<rlimit> limit;  // none: adopt_descriptor_limit() was not called
  return limit;
}

// exec resets handlers, but only at its end. Ignored signals are inherited, so they stay
// ignored.
std::vector<int> signals_with_handlers() {
  std::vector<int> signals;
  for (int signal = 1; signal < kFirstRealTimeSignal; ++signal) {
    struct sigaction current {};
    if (::sigaction(signal, nullptr, &current) == 0 && current.sa_handler != SIG_DFL &&
        current.sa_handler != SIG_IGN) {
      signals.push_back(signal);
    }
  }
  return signals;
}

rdzv::UniqueFd pidfd_of(pid_t pid) {
  return rdzv::UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

// Kills and reaps a child that must not run, with its process group, which may have members
// already. The zombie keeps the number reserved until the keeper's slot is cleared.
void end_and_reap(pid_t pid, std::atomic<pid_t>* keeper_slot) {
  ::kill(-pid, SIGKILL);
  ::kill(pid, SIGKILL);
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  ::kill(-pid, SIGKILL);
  if (keeper_slot != nullptr) keeper_slot->store(0);
  reaped(pid, 0);
}

// The thread sanitizer has to know of every fork.
#if defined(SYS_clone3) && !defined(__SANITIZE_THREAD__)
#define DDPRUN_HAS_CLONE3
#endif

// What a child writes to its pipe if it cannot execute its program. If it can, exec closes the pipe.
struct Refusal {
  int error = 0;
  bool is_of_tracing = false;
};

Error error_of(const Refusal& refusal, const std::string& path) {
  if (refusal.error == ESRCH) {
    return error_from_errno(refusal.error,
                            "a new process cannot know whether its parent lives (getpid, getppid)");
  }
  return error_from_errno(
      refusal.error,
      refusal.is_of_tracing
          ? "a worker cannot wait for a debugger, because tracing is refused here (a container "
            "needs the capability SYS_PTRACE)"
          : "cannot start " + path);
}

// Makes the child, which Boost.Process then reaps, and does not wait for its exec: a file server may hold that for ever,
// and meanwhile the agent has to answer its leader. So the child is a fork, with memory of its own, and not a vfork.
// Boost's launchers wait, and let Asio rebuild its reactor in the child. Here everything is prepared before, and the
// child makes system calls only.
class Starter {
 public:
  struct Started {
    pid_t pid = -1;
    rdzv::UniqueFd end;   // its pidfd; none: the kernel has none, or a filter refuses it
    rdzv::UniqueFd exec;  // a Refusal comes here, or the end of the file
    bool is_in_control_group = false;
  };

  explicit Starter(const ProcessSpec& spec)
      : spec_(spec), argv_(pointers_to(spec.argv)), environment_(pointers_to(spec.environment)) {
    CPU_ZERO(&cpus_);
    for (const int cpu : spec.cpus) CPU_SET(static_cast<std::size_t>(cpu), &cpus_);
  }

  Result<Started> start() {
    parent_ = ::getpid();
    int pipe[2];
    if (::pipe2(pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
      return fail(error_of_start(errno, "cannot start " + spec_.path));
    }
    exec_.reset(pipe[0]);
    exec_of_child_.reset(pipe[1]);
    Started started;
    int fork_errno = 0;
    {
      const AllSignalsBlocked blocked;
      started = start_child();
      fork_errno = errno;
    }
    if (started.pid < 0) return fail(error_of_start(fork_errno, "cannot start " + spec_.path));
    if (!started.end) started.end = pidfd_of(started.pid);
    started.exec = std::move(exec_);
    return started;
  }

 private:
  Started start_child() {
    Started started;
#ifdef DDPRUN_HAS_CLONE3
    if (spec_.control_group >= 0) {
      started = clone_into(spec_.control_group);
      if (started.pid >= 0 || is_shortage(errno)) return started;
    }
    started = clone_into(-1);
    // Older kernels do not have clone3, and seccomp filters of containers may refuse it.
    if (started.pid >= 0 || is_shortage(errno)) return started;
#endif
    handled_signals_ = signals_with_handlers();
    started.pid = ::fork();
    if (started.pid == 0) become_worker();
    return started;
  }

#ifdef DDPRUN_HAS_CLONE3
  // With a pidfd: if no descriptor is left, no child is made.
  Started clone_into(int control_group) {
    Started started;
    int pid_fd = -1;
    clone_args arguments{};
    arguments.flags = CLONE_PIDFD | CLONE_CLEAR_SIGHAND;
    arguments.pidfd = reinterpret_cast<std::uintptr_t>(&pid_fd);
    arguments.exit_signal = SIGCHLD;
    if (control_group >= 0) {
      arguments.flags |= CLONE_INTO_CGROUP;
      arguments.cgroup = static_cast<std::uint64_t>(control_group);
      tells_of_begin_ = true;
    }
    started.pid = static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof arguments));
    if (started.pid == 0) become_worker();
    tells_of_begin_ = false;
    if (started.pid < 0) return started;
    started.end.reset(pid_fd);
    if (control_group >= 0 && !has_begun(started.end.get())) {
      // Since Linux 6.14 the kernel kills a new child if its control group and that of its parent
      // were not killed the same number of times.
      end_and_reap(started.pid, nullptr);
      errno = EBUSY;
      return {};
    }
    started.is_in_control_group = control_group >= 0;
    return started;
  }

  // Waits for the child's first instruction, or for its end: for no file, and no other process.
  bool has_begun(int end) const {
    pollfd either[] = {{exec_.get(), POLLIN, 0}, {end, POLLIN, 0}};
    while (::poll(either, 2, -1) < 0 && errno == EINTR) {
    }
    char begun = 0;
    return ::read(exec_.get(), &begun, 1) == 1;
  }

  // An error that any other way to start a child would get as well.
  static bool is_shortage(int error) {
    return error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE;
  }
#endif

  // Runs in the child: system calls only, since other threads of the parent may have held locks. setsid() comes late:
  // with autogroup scheduling a new session has to wait for its turn.
  [[noreturn]] void become_worker() {
    if (tells_of_begin_) std::ignore = ::write(exec_of_child_.get(), "", 1);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The agent died before the line above; or it lives, and a filter refuses one of the two calls.
    if (::getppid() != parent_) refuse(ESRCH);
    // Yama may allow tracing by ancestors only: allow what the agent starts (StackDump), too.
    ::prctl(PR_SET_PTRACER, parent_, 0, 0, 0);
    if (!spec_.cpus.empty()) ::sched_setaffinity(0, sizeof cpus_, &cpus_);
    if (spec_.stdin_fd >= 0) ::dup2(spec_.stdin_fd, STDIN_FILENO);
    if (spec_.stdout_fd >= 0) ::dup2(spec_.stdout_fd, STDOUT_FILENO);
    if (spec_.stderr_fd >= 0) ::dup2(spec_.stderr_fd, STDERR_FILENO);
    // A worker gets fds 0, 1 and 2, as under torchrun, and its link; no other descriptor.
    close_files_on_exec_from(STDERR_FILENO + 1);
    if (spec_.link_socket_fd >= 0) hand_over_link();
    for (const int fd : spec_.inherited_fds) ::fcntl(fd, F_SETFD, 0);
    if (inherited_files()) ::setrlimit(RLIMIT_NOFILE, &*inherited_files());
    // The agent's handlers must not run in the child, which has the agent's descriptors: clone3 has reset them, or this
    // does, before the signal mask.
    for (const int signal : handled_signals_) ::signal(signal, SIG_DFL);
    ::sigaction(SIGPIPE, &inherited_signals().pipe, nullptr);
    ::sigaction(SIGXFSZ, &inherited_signals().file_size, nullptr);
    const int notice = spec_.preempt_signal;
    if ((notice == SIGUSR1 || notice == SIGUSR2) && !runs_a_shell()) ::signal(notice, SIG_IGN);
    if (::setsid() < 0) ::setpgid(0, 0);  // refused: the group is what matters
    if (spec_.keeper_slot != nullptr) spec_.keeper_slot->store(::getpid());
    ::sigprocmask(SIG_SETMASK, &inherited_signals().mask, nullptr);
    if (spec_.waits_for_debugger) be_traced();
    ::execve(spec_.path.c_str(), argv_.data(), environment_.data());
    refuse(errno);
  }

  // By itself, or by a program that executes its arguments (nice, env, numactl).
  bool runs_a_shell() const {
    constexpr std::size_t kWordsMax = 16;
    const auto words = std::span(argv_).first(std::min(argv_.size(), kWordsMax));
    return agent::runs_a_shell(spec_.path.c_str()) ||
           std::ranges::any_of(words, [](const char* word) {
             return word != nullptr && agent::runs_a_shell(word);
           });
  }

  [[noreturn]] void refuse(int error, bool is_of_tracing = false) const {
    const Refusal refusal{error, is_of_tracing};
    std::ignore = ::write(exec_of_child_.get(), &refusal, sizeof refusal);
    ::_exit(127);
  }

  // Right before exec, because from then on every signal stops the child for its tracer. exec itself stops it with
  // SIGTRAP, so that is unblocked.
  void be_traced() const {
    sigset_t trap;
    sigemptyset(&trap);
    sigaddset(&trap, SIGTRAP);
    ::sigprocmask(SIG_UNBLOCK, &trap, nullptr);
    // The user's debugger too.
    ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) refuse(errno, /*is_of_tracing=*/true);
  }

  // Runs in the child, because the page must contain its pid before the worker reads it: a worker
  // ignores a link with another pid.
  void hand_over_link() const {
    write_link_page(spec_, ::getpid(), parent_);
    ::fcntl(spec_.link_socket_fd, F_SETFD, 0);
    ::fcntl(spec_.link_page_fd, F_SETFD, 0);
    ::fcntl(spec_.link_record_fd, F_SETFD, 0);
    if (spec_.link_snapshot_fd >= 0) ::fcntl(spec_.link_snapshot_fd, F_SETFD, 0);
    if (spec_.link_mirror_fd >= 0) ::fcntl(spec_.link_mirror_fd, F_SETFD, 0);
  }

  const ProcessSpec& spec_;
  const std::vector<char*> argv_;
  const std::vector<char*> environment_;
  std::vector<int> handled_signals_;  // after fork
  cpu_set_t cpus_;
  pid_t parent_ = -1;
  rdzv::UniqueFd exec_;
  rdzv::UniqueFd exec_of_child_;
  bool tells_of_begin_ = false;
};

// Stopped by a signal, not by a tracer.
bool is_stopped(pid_t pid) { return stat_after_name(pid).starts_with('T'); }

// The exit status of a process that a debugger traces: until the debugger has waited for it, its
// parent cannot. The last field of /proc/PID/stat is the status of waitpid(). None: it has not
// ended.
std::optional<ExitStatus> status_of_traced(pid_t pid) {
  const std::string fields = stat_after_name(pid);
  if (!fields.starts_with('Z')) return std::nullopt;
  const std::size_t last = fields.find_last_of(' ');
  const auto status = parse_number<int>(trimmed(std::string_view(fields).substr(last + 1)));
  return status ? std::optional(status_of(*status)) : std::nullopt;
}

class Worker final : public WorkerProcess {
 public:
  Worker(asio::io_context& io, pid_t pid, bool is_in_control_group, std::atomic<pid_t>* keeper_slot,
         OnEnd on_end)
      : executor_(io.get_executor()),
        pid_(pid),
        is_in_control_group_(is_in_control_group),
        exec_(io),
        end_(io),
        child_signal_(io),
        look_again_(io.get_executor()),
        keeper_slot_(keeper_slot),
        on_end_(std::move(on_end)),
        names_(io.get_executor()) {}

  ~Worker() override {
    if (process_) process_->detach();
  }

  // Takes over the child, but not if it fails: then the caller must reap it. Without a pidfd, which
  // Boost.Process needs, SIGCHLD tells of the end. What a debugger traces is then known to have ended
  // when the debugger lets it go, because only that one gets the signal.
  Result<void> watch(rdzv::UniqueFd end) {
    boost::system::error_code ec;
    if (end) {
      // One descriptor for Boost.Process and one to wait on: Boost's wait reaps the child, and the
      // rest of the group must be killed before that.
      rdzv::UniqueFd other(::fcntl(end.get(), F_DUPFD_CLOEXEC, 0));
      if (!other) return fail(error_from_errno(errno, "cannot watch a worker"));
      try {
        end_.assign(other.get());
        static_cast<void>(other.release());
        process_.emplace(executor_, pid_, end.get());
        static_cast<void>(end.release());
      } catch (const boost::system::system_error& error) {
        return fail(error_from_errno(error.code().value(), "cannot watch a worker"));
      }
    } else {
      child_signal_.add(SIGCHLD, ec);
      // It may have ended before.
      boost::asio::post(executor_, lifetime_.guard([this] { look_for_end(); }));
    }
    if (ec) return fail(error_from_errno(ec.value(), "cannot watch a worker"));
    await_end();
    return {};
  }

  // Before watch(), for a process that was started here.
  Result<void> watch_exec(rdzv::UniqueFd exec, const ProcessSpec& spec, OnStarted on_started) {
    boost::system::error_code ec;
    exec_.assign(exec.get(), ec);
    if (ec) return fail(error_from_errno(ec.value(), "cannot watch a worker"));
    static_cast<void>(exec.release());
    path_ = spec.path;
    waits_for_debugger_ = spec.waits_for_debugger;
    on_started_ = std::move(on_started);
    exec_.async_wait(asio::posix::stream_descriptor::wait_read,
                     lifetime_.guard([this](const boost::system::error_code& failed) {
                       if (!failed) look_for_exec();
                     }));
    return {};
  }

  pid_t pid() const override { return pid_; }
  bool is_in_control_group() const override { return is_in_control_group_; }
  bool has_pidfd() const override { return end_.is_open(); }

  // It has no group before it is about to execute its program.
  void signal_group(int signal) override {
    if (!has_ended_ && ::kill(-pid_, signal) != 0) ::kill(pid_, signal);
  }

  void signal_worker(int signal) override {
    if (!has_ended_) ::kill(pid_, signal);
  }

  bool give_notice(int signal) override {
    if (has_ended_) return false;
    if (handles(pid_, signal) || blocks(pid_, signal)) return ::kill(pid_, signal) == 0;
    if (!is_shell(pid_)) return false;
    const std::vector<pid_t> others = handlers_in_group(pid_, signal);
    for (const pid_t pid : others) ::kill(pid, signal);
    return !others.empty();
  }

  // A program that is not executed yet has nothing to save, and what holds it may let SIGKILL alone through.
  void stop(int signal) override {
    if (has_ended_) return;
    if (is_executing() || awaits_trap_) return signal_group(SIGKILL);
    const bool is_a_shell = is_shell(pid_);
    if (handles(pid_, signal) && !is_a_shell) return signal_worker(signal);
    if (is_a_shell) await_others(handlers_in_group(pid_, signal));
    signal_group(signal);
  }

  // A worker that is stopped already still waits for its debugger.
  void pause() override {
    if (waits_for_debugger_ && is_stopped(pid_)) return;
    is_paused_ = true;
    signal_group(SIGSTOP);
  }

  void resume() override {
    if (std::exchange(is_paused_, false) || !waits_for_debugger_) signal_group(SIGCONT);
  }

  void hold_end() override { is_held_ = true; }

  void tell_of_rest(std::function<void(const std::string&)> tell) override {
    tell_of_rest_ = std::move(tell);
  }

  void let_end(std::chrono::milliseconds after) override {
    is_held_ = false;
    if (status_ && (!look_again_.is_armed() || after == std::chrono::milliseconds::zero())) {
      look_again_.arm(after, [this] { reap(); });
    }
  }

 private:
  // exec has neither returned nor failed, as the pipe says at this moment.
  bool is_executing() {
    if (!exec_.is_open()) return false;
    pollfd told{exec_.native_handle(), POLLIN, 0};
    return ::poll(&told, 1, 0) == 0;
  }

  void look_for_exec() {
    if (!exec_.is_open()) return;
    Refusal refusal;
    const ssize_t got = ::read(exec_.native_handle(), &refusal, sizeof refusal);
    if (got < 0) return;  // not yet
    exec_.close();
    if (got > 0) return tell_of_start(fail(error_of(refusal, path_)));
    if (!waits_for_debugger_) return tell_of_start({});
    boost::system::error_code ec;
    child_signal_.add(SIGCHLD, ec);
    awaits_trap_ = true;
    if (has_pidfd()) await_child_signal();
    look_for_trap();
  }

  void tell_of_start(Result<void> started) {
    const auto on_started = std::exchange(on_started_, nullptr);
    if (on_started) on_started(std::move(started));
  }

  // This process traces the child, so it stops in exec, before its first instruction. Detaching with SIGSTOP leaves it
  // stopped, and another process can then trace it.
  void look_for_trap() {
    siginfo_t info{};
    const int looked =
        ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT | WNOHANG);
    if (!awaits_trap_ || looked != 0 || info.si_pid != pid_) return;
    awaits_trap_ = false;
    if (info.si_code == CLD_TRAPPED) ::ptrace(PTRACE_DETACH, pid_, nullptr, SIGSTOP);
    tell_of_start({});
  }

  void await_end() {
    if (!has_pidfd()) return await_child_signal();
    end_.async_wait(asio::posix::stream_descriptor::wait_read,
                    lifetime_.guard([this](const boost::system::error_code& ec) {
                      if (!ec) look_for_end();
                    }));
  }

  void await_child_signal() {
    child_signal_.async_wait(lifetime_.guard(
        [this, is_alive = lifetime_.watch()](const boost::system::error_code& ec, int) {
          if (ec) return;
          if (!has_pidfd() || awaits_trap_) await_child_signal();
          look_for_trap();
          if (!is_alive.expired() && !has_pidfd()) look_for_end();
        }));
  }

  // Members of the group that are to end before the worker's own end counts.
  void await_others(const std::vector<pid_t>& pids) {
    for (const pid_t pid : pids) {
      rdzv::UniqueFd end = pidfd_of(pid);
      if (!end) continue;  // it is gone
      others_.emplace_back(executor_, end.release());
      others_.back().async_wait(asio::posix::stream_descriptor::wait_read,
                                lifetime_.guard([this, other = std::prev(others_.end())](auto) {
                                  others_.erase(other);
                                  if (others_.empty() && std::exchange(awaits_others_, false))
                                    look_for_end();
                                }));
    }
  }

  void look_for_end() {
    if (status_) return;
    const auto is_alive = lifetime_.watch();
    look_for_exec();  // it is told before the end, whichever was noticed first
    if (is_alive.expired()) return;
    if (!others_.empty()) {
      awaits_others_ = true;
      return;
    }
    siginfo_t info{};
    std::optional<ExitStatus> status;
    if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT | WNOHANG) == 0 &&
        info.si_pid == pid_) {
      status = status_of(info);
    } else {
      status = status_of_traced(pid_);
    }
    if (!status && has_pidfd()) look_again_.arm(kLookAgain, [this] { await_end(); });
    if (!status) return;
    status_ = status;
    if (!status->is_success() || !tell_of_rest_ || is_held_) return end_group();
    rest_until_ = std::chrono::steady_clock::now() + kRestLimit;
    await_rest();
  }

  void await_rest() {
    std::vector<pid_t> rest = rest_of_group(pid_);
    if (rest.empty() || !tell_of_rest_) return end_group();
    if (std::chrono::steady_clock::now() < rest_until_) {
      look_again_.arm(rest_pause_, [this] { await_rest(); });
      rest_pause_ = std::min(rest_pause_ * 2, kLookAgain);
      return;
    }
    names_.look_up(std::move(rest), [this](const std::string& names) {
      if (tell_of_rest_) tell_of_rest_(names);
      end_group();
    });
  }

  // The zombie keeps the number reserved, so this kills the rest of its group and nothing else.
  void end_group() {
    ::kill(-pid_, SIGKILL);
    if (keeper_slot_ != nullptr) keeper_slot_->store(0);
    if (!is_held_) reap();
  }

  void reap() {
    boost::system::error_code ignored;
    if (process_) process_->running(ignored);  // a traced one is reaped when its tracer is done
    reaped(pid_, WNOHANG);  // without Boost.Process, or if a filter refuses its call
    has_ended_ = true;
    // The callback may destroy this object.
    std::exchange(on_end_, nullptr)(*status_);
  }

  const asio::io_context::executor_type executor_;
  const pid_t pid_;
  const bool is_in_control_group_;
  std::optional<Process> process_;       // with a pidfd, once it is watched
  asio::posix::stream_descriptor exec_;  // open until it is known whether the program is executed
  std::string path_;                     // the program, likewise
  OnStarted on_started_;                 // likewise
  bool waits_for_debugger_ = false;
  bool awaits_trap_ = false;            // the stop in exec, where it waits for a debugger
  asio::posix::stream_descriptor end_;  // closed: child_signal_ tells instead
  asio::signal_set child_signal_;
  Timer look_again_;
  std::atomic<pid_t>* keeper_slot_;
  bool is_paused_ = false;
  OnEnd on_end_;
  bool is_held_ = false;
  std::function<void(const std::string&)> tell_of_rest_;
  ProcessNames names_;
  std::chrono::steady_clock::time_point rest_until_;
  std::chrono::milliseconds rest_pause_{1};
  std::list<asio::posix::stream_descriptor> others_;  // see await_others()
  bool awaits_others_ = false;                        // the worker has ended before them
  std::optional<ExitStatus> status_;                  // once it has ended
  bool has_ended_ = false;                            // and is reaped
  const Lifetime lifetime_;
};

}  // namespace

void write_link_page(const ProcessSpec& spec, pid_t worker, pid_t agent) {
  link::Header header;
  header.worker_pid = worker;
  header.agent_pid = agent;
  header.preempt_signal = spec.preempt_signal;
  header.wanted_kind = spec.wanted_kind;
  header.wanted_step = spec.wanted_step;
  std::ignore = ::pwrite(spec.link_page_fd, &header, sizeof header, 0);
  record::Header record;
  record.worker_pid = worker;
  std::ignore = ::pwrite(spec.link_record_fd, &record, sizeof record, 0);
}

void adopt_signal_state() {
  inherited_signals();
  ::signal(SIGPIPE, SIG_IGN);
  // A write beyond the limit on file sizes fails with EFBIG then. The limit holds for memory files, too.
  ::signal(SIGXFSZ, SIG_IGN);
}

void unblock_signals_in_workers(const std::vector<int>& signals) {
  for (const int signal : signals) sigdelset(&inherited_signals().mask, signal);
}

void adopt_descriptor_limit() {
  inherited_files() = descriptor_limit();
  raise_descriptor_limit();
}

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::start(asio::io_context& io,
                                                            const ProcessSpec& spec, OnEnd on_end,
                                                            OnStarted on_started) {
  auto started = Starter(spec).start();
  if (!started) return fail(std::move(started.error()));
  auto worker = std::make_unique<Worker>(io, started->pid, started->is_in_control_group,
                                         spec.keeper_slot, std::move(on_end));
  auto watched = worker->watch_exec(std::move(started->exec), spec, std::move(on_started));
  if (watched) watched = worker->watch(std::move(started->end));
  if (!watched) {
    end_and_reap(started->pid, spec.keeper_slot);
    return fail(std::move(watched.error()));
  }
  return worker;
}

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::adopt(asio::io_context& io, pid_t pid,
                                                            bool is_in_control_group,
                                                            std::atomic<pid_t>* keeper_slot,
                                                            OnEnd on_end) {
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT | WNOHANG) != 0) {
    return fail(error_from_errno(errno, "cannot watch process " + std::to_string(pid)));
  }
  if (keeper_slot != nullptr) keeper_slot->store(pid);
  auto worker =
      std::make_unique<Worker>(io, pid, is_in_control_group, keeper_slot, std::move(on_end));
  if (auto watched = worker->watch(pidfd_of(pid)); !watched) {
    end_and_reap(pid, keeper_slot);
    return fail(std::move(watched.error()));
  }
  return worker;
}

}  // namespace ddprun::agent
