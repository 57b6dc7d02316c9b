#include "agent/standby/background.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <tuple>

#include "rendezvous/common/directory_entries.h"
#include "rendezvous/common/file_text.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {
namespace {

constexpr const char* kFirstVictim = "1000";  // of the kernel, when memory runs out
constexpr int kNiceOfDying = 10;              // a tenth of what the others get
constexpr int kNiceOfIdle = 19;               // of its autogroup

template <typename Function>
void for_each_thread(pid_t pid, const Function& f) {
  const rdzv::UniqueFd threads(::open(("/proc/" + std::to_string(pid) + "/task").c_str(),
                                      O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!threads) return;
  for_each_entry(threads.get(), [&](const char* name, unsigned char) {
    if (const auto thread = parse_number<pid_t>(name)) f(*thread);
  });
}

void set_policy_of_threads(pid_t pid, int policy) {
  for_each_thread(pid, [policy](pid_t thread) {
    const sched_param none{};
    ::sched_setscheduler(thread, policy, &none);
  });
}

// Where sessions are scheduled as groups, a nice value counts among the threads of one alone.
void weigh_autogroup(pid_t pid, int nice) {
  if (::getsid(pid) == pid) write_of_process(pid, "autogroup", std::to_string(nice));
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
  const sched_param none{};
  if (::sched_getscheduler(0) == SCHED_OTHER) ::sched_setscheduler(pid, SCHED_BATCH, &none);
}

void make_worker(pid_t pid) {
  write_of_process(pid, "oom_score_adj", file_text("/proc/self/oom_score_adj"));
  if (::sched_getscheduler(0) == SCHED_OTHER) set_policy_of_threads(pid, SCHED_OTHER);
}

void put_behind(pid_t pid) {
  const bool is_idle = may_leave_idle_policy();
  if (is_idle) set_policy_of_threads(pid, SCHED_IDLE);
  for_each_thread(pid, [](pid_t thread) {
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(thread), kNiceOfDying);
  });
  weigh_autogroup(pid, is_idle ? kNiceOfIdle : kNiceOfDying);
}

void let_end(pid_t pid) {
  set_policy_of_threads(pid, SCHED_OTHER);
  weigh_autogroup(pid, kNiceOfDying);
}

}  // namespace ddprun::agent
