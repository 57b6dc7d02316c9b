#include "agent/process/process.h"

#include <fcntl.h>
#include <linux/sched.h>
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
#include <tuple>
#include <utility>

#include "agent/loop/timer.h"
#include "agent/process/child_end.h"
#include "agent/process/left_processes.h"
#include "agent/process/process_stacks.h"
#include "agent/process/worker_facts.h"
#include "rendezvous/common/descriptor_limit.h"
#include "rendezvous/common/lifetime.h"
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

std::vector<const char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<const char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const auto& string : strings) pointers.push_back(string.c_str());
  pointers.push_back(nullptr);
  return pointers;
}

// The thread sanitizer records signal handlers in memory, which a child that shares the memory
// would change; it turns vfork into fork.
#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(__SANITIZE_THREAD__)
#define DDPRUN_HAS_CLONE3
#endif

#ifdef DDPRUN_HAS_CLONE3
// vfork with a pidfd: if no descriptor is left, no child is made. The child runs on this stack
// frame while the parent waits for its exec or end; so `body` must not return.
[[gnu::noinline]] pid_t clone_child(clone_args& arguments, void (*body)(void*), void* context) {
#if defined(__x86_64__)
  long result = SYS_clone3;
  asm volatile("syscall"
               : "+a"(result)
               : "D"(&arguments), "S"(sizeof arguments)
               : "rcx", "r11", "memory");
#else
  register long number asm("x8") = SYS_clone3;
  register long result asm("x0") = reinterpret_cast<long>(&arguments);
  register long size asm("x1") = sizeof arguments;
  asm volatile("svc 0" : "+r"(result) : "r"(number), "r"(size) : "memory");
#endif
  if (result == 0) {
    body(context);
    ::_exit(127);
  }
  if (result > 0) return static_cast<pid_t>(result);
  errno = static_cast<int>(-result);
  return -1;
}
#endif

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

// Starts the child, which Boost.Process then reaps. Boost's default_launcher forks and lets Asio rebuild
// its reactor in the child; its vfork_launcher does so in memory shared with the parent. A child that
// only calls exec needs neither: here everything is prepared before vfork, and the child makes system
// calls only.
class Starter {
 public:
  struct Started {
    pid_t pid = -1;
    rdzv::UniqueFd end;  // its pidfd; none: the kernel has none, or a filter refuses it
    bool is_in_control_group = false;
  };

  explicit Starter(const ProcessSpec& spec)
      : spec_(spec), argv_(pointers_to(spec.argv)), environment_(pointers_to(spec.environment)) {
    CPU_ZERO(&cpus_);
    for (const int cpu : spec.cpus) CPU_SET(static_cast<std::size_t>(cpu), &cpus_);
  }

  Result<Started> start() {
    parent_ = ::getpid();
    Started started;
    int fork_errno = 0;
    {
      const AllSignalsBlocked blocked;
      started = start_child();
      fork_errno = errno;
    }
    if (started.pid < 0) return fail(error_of_start(fork_errno, "cannot start " + spec_.path));
    if (exec_errno_ != 0) {
      end_and_reap(started.pid, spec_.keeper_slot);
      return fail(error_from_errno(exec_errno_, what_failed()));
    }
    if (!started.end) started.end = pidfd_of(started.pid);
    if (spec_.waits_for_debugger) leave_stopped(started.pid);
    return started;
  }

 private:
  std::string what_failed() const {
    if (exec_errno_ == ESRCH) {
      return "a new process cannot know whether its parent lives (getpid, getppid)";
    }
    if (!is_tracing_refused_) return "cannot start " + spec_.path;
    return "a worker cannot wait for a debugger, because tracing is refused here (a container "
           "needs the capability SYS_PTRACE)";
  }

  // We trace the child, so it stops in exec, before its first instruction. Detaching with SIGSTOP
  // leaves it stopped, and another process can then trace it.
  static void leave_stopped(pid_t pid) {
    siginfo_t info{};
    while (::waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED | WEXITED | WNOWAIT) != 0 &&
           errno == EINTR) {
    }
    if (info.si_code == CLD_TRAPPED) ::ptrace(PTRACE_DETACH, pid, nullptr, SIGSTOP);
  }

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
    started.pid = vfork_child();
    return started;
  }

#ifdef DDPRUN_HAS_CLONE3
  Started clone_into(int control_group) {
    Started started;
    int pid_fd = -1;
    clone_args arguments{};
    arguments.flags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD | CLONE_CLEAR_SIGHAND;
    arguments.pidfd = reinterpret_cast<std::uintptr_t>(&pid_fd);
    arguments.exit_signal = SIGCHLD;
    if (control_group >= 0) {
      arguments.flags |= CLONE_INTO_CGROUP;
      arguments.cgroup = static_cast<std::uint64_t>(control_group);
    }
    started.pid = clone_child(
        arguments, [](void* self) { static_cast<Starter*>(self)->become_worker(); }, this);
    if (started.pid < 0) return started;
    started.end.reset(pid_fd);
    if (control_group >= 0 && !has_begun_) {
      // Since Linux 6.14 the kernel kills a new child if its control group and that of its parent
      // were not killed the same number of times.
      end_and_reap(started.pid, nullptr);
      errno = EBUSY;
      return {};
    }
    started.is_in_control_group = control_group >= 0;
    return started;
  }

  // An error that any other way to start a child would get as well.
  static bool is_shortage(int error) {
    return error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE;
  }
#endif

  // A separate function, so that the child does not share the caller's stack frame.
  [[gnu::noinline]] pid_t vfork_child() {
    handled_signals_ = signals_with_handlers();
    const pid_t pid = ::vfork();
    if (pid == 0) become_worker();
    return pid;
  }

  // Runs in the child, in the parent's memory: system calls only. setsid() comes late: with
  // autogroup scheduling a new session has to wait for its turn, and the parent waits with it. No
  // address sanitizer here: after exec or _exit() its marks would stay in the shared stack.
  [[noreturn, gnu::no_sanitize_address]] void become_worker() {
    has_begun_ = true;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent_) {  // the agent died before the line above
      exec_errno_ = ESRCH;         // or it lives, and a filter refuses one of the two calls
      ::_exit(127);
    }
    // Yama may allow tracing by ancestors only: allow what the agent starts (StackDump), too.
    ::prctl(PR_SET_PTRACER, parent_, 0, 0, 0);
    if (!spec_.cpus.empty()) ::sched_setaffinity(0, sizeof cpus_, &cpus_);
    if (spec_.stdout_fd >= 0) ::dup2(spec_.stdout_fd, STDOUT_FILENO);
    if (spec_.stderr_fd >= 0) ::dup2(spec_.stderr_fd, STDERR_FILENO);
    // A worker gets fds 0, 1 and 2, as under torchrun, and its link; no other descriptor.
    close_files_on_exec_from(STDERR_FILENO + 1);
    if (spec_.link_socket_fd >= 0) hand_over_link();
    for (const int fd : spec_.inherited_fds) ::fcntl(fd, F_SETFD, 0);
    if (inherited_files()) ::setrlimit(RLIMIT_NOFILE, &*inherited_files());
    // The agent's handlers must not run in the child, which shares its memory: clone3 has reset them,
    // or this does, before the signal mask.
    for (const int signal : handled_signals_) ::signal(signal, SIG_DFL);
    ::sigaction(SIGPIPE, &inherited_signals().pipe, nullptr);
    ::sigaction(SIGXFSZ, &inherited_signals().file_size, nullptr);
    if (::setsid() < 0) ::setpgid(0, 0);  // refused: the group is what matters
    if (spec_.keeper_slot != nullptr) spec_.keeper_slot->store(::getpid());
    ::sigprocmask(SIG_SETMASK, &inherited_signals().mask, nullptr);
    if (spec_.waits_for_debugger) be_traced();
    ::execve(spec_.path.c_str(), const_cast<char* const*>(argv_.data()),
             const_cast<char* const*>(environment_.data()));
    exec_errno_ = errno;  // the parent reads it: the memory is shared
    ::_exit(127);
  }

  // Right before exec, because from then on a signal stops the child for its parent, which waits
  // for exec. exec itself stops it with SIGTRAP, so that is unblocked. No address sanitizer, as in
  // become_worker().
  [[gnu::no_sanitize_address]] void be_traced() {
    sigset_t trap;
    sigemptyset(&trap);
    sigaddset(&trap, SIGTRAP);
    ::sigprocmask(SIG_UNBLOCK, &trap, nullptr);
    // The user's debugger too.
    ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0) return;
    exec_errno_ = errno;
    is_tracing_refused_ = true;
    ::_exit(127);
  }

  // Runs in the child, because the page must contain its pid before the worker reads it: a worker
  // ignores a link with another pid.
  void hand_over_link() {
    write_link_page(spec_, ::getpid(), parent_);
    ::fcntl(spec_.link_socket_fd, F_SETFD, 0);
    ::fcntl(spec_.link_page_fd, F_SETFD, 0);
    ::fcntl(spec_.link_record_fd, F_SETFD, 0);
    if (spec_.link_snapshot_fd >= 0) ::fcntl(spec_.link_snapshot_fd, F_SETFD, 0);
    if (spec_.link_mirror_fd >= 0) ::fcntl(spec_.link_mirror_fd, F_SETFD, 0);
  }

  const ProcessSpec& spec_;
  const std::vector<const char*> argv_;
  const std::vector<const char*> environment_;
  std::vector<int> handled_signals_;  // after vfork
  cpu_set_t cpus_;
  pid_t parent_ = -1;
  volatile bool has_begun_ = false;
  volatile int exec_errno_ = 0;
  volatile bool is_tracing_refused_ = false;
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
         bool waits_for_debugger, OnEnd on_end)
      : executor_(io.get_executor()),
        pid_(pid),
        is_in_control_group_(is_in_control_group),
        end_(io),
        child_signal_(io),
        look_again_(io.get_executor()),
        keeper_slot_(keeper_slot),
        waits_for_debugger_(waits_for_debugger),
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

  pid_t pid() const override { return pid_; }
  bool is_in_control_group() const override { return is_in_control_group_; }
  bool has_pidfd() const override { return end_.is_open(); }

  void signal_group(int signal) override {
    if (!has_ended_) ::kill(-pid_, signal);
  }

  void signal_worker(int signal) override {
    if (!has_ended_) ::kill(pid_, signal);
  }

  void stop(int signal) override {
    if (has_ended_) return;
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
  void await_end() {
    const auto look = [this](const boost::system::error_code& ec) {
      if (!ec) look_for_end();
    };
    if (has_pidfd()) {
      end_.async_wait(asio::posix::stream_descriptor::wait_read, lifetime_.guard(look));
    } else {
      child_signal_.async_wait(lifetime_.guard([this, look](const auto& ec, int /*signal*/) {
        if (!ec) await_end();
        look(ec);
      }));
    }
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
  std::optional<Process> process_;      // with a pidfd, once it is watched
  asio::posix::stream_descriptor end_;  // closed: child_signal_ tells instead
  asio::signal_set child_signal_;
  Timer look_again_;
  std::atomic<pid_t>* keeper_slot_;
  const bool waits_for_debugger_;
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
  const rdzv::Lifetime lifetime_;
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
                                                            const ProcessSpec& spec, OnEnd on_end) {
  auto started = Starter(spec).start();
  if (!started) return fail(std::move(started.error()));
  auto worker =
      std::make_unique<Worker>(io, started->pid, started->is_in_control_group, spec.keeper_slot,
                               spec.waits_for_debugger, std::move(on_end));
  if (auto watched = worker->watch(std::move(started->end)); !watched) {
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
  auto worker = std::make_unique<Worker>(io, pid, is_in_control_group, keeper_slot,
                                         /*waits_for_debugger=*/false, std::move(on_end));
  if (auto watched = worker->watch(pidfd_of(pid)); !watched) {
    end_and_reap(pid, keeper_slot);
    return fail(std::move(watched.error()));
  }
  return worker;
}

}  // namespace ddprun::agent
