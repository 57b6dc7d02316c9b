#include "agent/standby/background.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
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

template <typename Function>
void for_each_thread(pid_t pid, const Function& f) {
  const rdzv::UniqueFd threads(::open(("/proc/" + std::to_string(pid) + "/task").c_str(),
                                      O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!threads) return;
  for_each_entry(threads.get(), [&](const char* name, unsigned char) {
    if (const auto thread = parse_number<pid_t>(name)) f(*thread);
  });
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
  if (::sched_getscheduler(0) != SCHED_OTHER) return;
  for_each_thread(pid, [](pid_t thread) {
    const sched_param none{};
    ::sched_setscheduler(thread, SCHED_OTHER, &none);
  });
}

void put_behind(pid_t pid) {
  for_each_thread(pid, [](pid_t thread) {
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(thread), kNiceOfDying);
  });
  // Where sessions are scheduled as groups, a nice value counts among the threads of one alone.
  if (::getsid(pid) == pid) write_of_process(pid, "autogroup", std::to_string(kNiceOfDying));
}

}  // namespace ddprun::agent
