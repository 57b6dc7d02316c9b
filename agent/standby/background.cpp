#include "agent/standby/background.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "agent/process/process_stacks.h"
#include "rendezvous/common/directory_entries.h"
#include "rendezvous/common/file_text.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {
namespace {

constexpr const char* kFirstVictim = "1000";  // of the kernel, when memory runs out
constexpr int kNiceOfDying = 10;              // a tenth of what the others get
constexpr int kNiceOfIdle = 19;               // of its autogroup

bool is_scheduled_as_usual() {
  return (::sched_getscheduler(0) & ~SCHED_RESET_ON_FORK) == SCHED_OTHER;
}

template <typename Function>
void for_each_thread(pid_t pid, const Function& f) {
  const rdzv::UniqueFd threads(::open(("/proc/" + std::to_string(pid) + "/task").c_str(),
                                      O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!threads) return;
  for_each_entry(threads.get(), [&](const char* name, unsigned char) {
    if (const auto thread = parse_number<pid_t>(name)) f(*thread);
  });
}

void set_policy(pid_t thread, int policy) {
  const sched_param none{};
  ::sched_setscheduler(thread, policy, &none);
}

// Where sessions are scheduled as groups, a nice value counts among the threads of one alone.
void weigh_autogroup(pid_t pid, int nice) {
  if (::getsid(pid) == pid) write_of_process(pid, "autogroup", std::to_string(nice));
}

// Where its main thread was last. However low its weight, it would get a turn on each other processor, too, and a turn lasts
// to the kernel's next tick: 4 ms at 250 Hz.
std::optional<cpu_set_t> processor_of(pid_t pid) {
  std::istringstream stat(stat_after_name(pid));
  const std::vector<std::string> fields{std::istream_iterator<std::string>(stat), {}};
  constexpr std::size_t kProcessor = 36;  // proc(5): field 39, where the state is 3
  if (fields.size() <= kProcessor) return std::nullopt;
  const auto processor = parse_number<std::size_t>(fields[kProcessor]);
  if (!processor || *processor >= CPU_SETSIZE) return std::nullopt;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(*processor, &one);
  return one;
}

// SCHED_IDLE counts as nice 20, which not everyone may lower.
bool may_leave_idle_policy() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NICE, &limit) == 0 && limit.rlim_cur >= 20) return true;
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3]{};
  return ::syscall(SYS_capget, &header, data) == 0 &&
         (data[CAP_TO_INDEX(CAP_SYS_NICE)].effective & CAP_TO_MASK(CAP_SYS_NICE)) != 0;
}

}  // namespace

void write_of_process(pid_t pid, const char* name, std::string_view text) {
  const std::string path = "/proc/" + std::to_string(pid) + "/" + name;
  const rdzv::UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file) std::ignore = ::write(file.get(), text.data(), text.size());
}

void make_background(pid_t pid) {
  write_of_process(pid, "oom_score_adj", kFirstVictim);
  if (is_scheduled_as_usual()) set_policy(pid, SCHED_BATCH);
}

void make_worker(pid_t pid) {
  write_of_process(pid, "oom_score_adj", file_text("/proc/self/oom_score_adj"));
  if (!is_scheduled_as_usual()) return;
  for_each_thread(pid, [](pid_t thread) { set_policy(thread, SCHED_OTHER); });
}

void put_behind(pid_t pid) {
  const auto processor = processor_of(pid);
  const bool is_idle = may_leave_idle_policy();
  for_each_thread(pid, [&](pid_t thread) {
    if (processor) ::sched_setaffinity(thread, sizeof *processor, &*processor);
    if (is_idle) set_policy(thread, SCHED_IDLE);
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(thread), kNiceOfDying);
  });
  weigh_autogroup(pid, is_idle ? kNiceOfIdle : kNiceOfDying);
}

void let_end(pid_t pid) {
  cpu_set_t own;
  const bool has_own = ::sched_getaffinity(0, sizeof own, &own) == 0;
  for_each_thread(pid, [&](pid_t thread) {
    if (has_own) ::sched_setaffinity(thread, sizeof own, &own);
    set_policy(thread, SCHED_OTHER);
  });
  weigh_autogroup(pid, kNiceOfDying);
}

}  // namespace ddprun::agent
