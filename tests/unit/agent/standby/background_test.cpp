#include "agent/standby/background.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "rendezvous/common/scheduling.h"

namespace ddprun::agent {
namespace {

using rdzv::scheduling_of;
using rdzv::wake_at_once;

// A child with a second thread, which sleeps.
class Child {
 public:
  Child() {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      std::thread([&ready] {
        const auto id = static_cast<pid_t>(::syscall(SYS_gettid));
        if (::write(ready[1], &id, sizeof id) != sizeof id) ::_exit(1);
        ::pause();
      }).join();
    }
    ::close(ready[1]);
    EXPECT_EQ(::read(ready[0], &thread_, sizeof thread_), ssize_t{sizeof thread_});
    ::close(ready[0]);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  pid_t thread() const { return thread_; }

 private:
  pid_t pid_ = 0;
  pid_t thread_ = 0;
};

int processors_of(pid_t thread) {
  cpu_set_t set;
  return ::sched_getaffinity(thread, sizeof set, &set) == 0 ? CPU_COUNT(&set) : -1;
}

TEST(Background, OneThatDiesHasOneProcessorForAllItsThreads) {
  const Child child;
  const int all = processors_of(0);
  ASSERT_EQ(processors_of(child.thread()), all);
  put_behind(child.pid());
  EXPECT_EQ(processors_of(child.pid()), 1);
  EXPECT_EQ(processors_of(child.thread()), 1);
  EXPECT_GE(::getpriority(PRIO_PROCESS, static_cast<id_t>(child.thread())), 10);
  let_end(child.pid());
  EXPECT_EQ(processors_of(child.pid()), all);
  EXPECT_EQ(processors_of(child.thread()), all);
  EXPECT_EQ(::sched_getscheduler(child.thread()), SCHED_OTHER);
}

TEST(Background, OneThatIsGoneChangesNothing) {
  pid_t gone = 0;
  { gone = Child().pid(); }
  put_behind(gone);
  let_end(gone);
  EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER);
}

TEST(Background, ShortSlicesAreOfTheCallingThreadAlone) {
  std::thread([] {
    const auto before = scheduling_of(0).value();
    wake_at_once();
    const auto after = scheduling_of(0).value();
    EXPECT_EQ(after.policy, before.policy);
    EXPECT_EQ(after.nice, before.nice);
    // Kernels before 6.12 have one length for all, and say none.
    EXPECT_LT(after.runtime_ns, 1'000'000U);
    const Child child;
    const auto inherited = scheduling_of(child.pid()).value();
    EXPECT_EQ(inherited.runtime_ns, before.runtime_ns);
    EXPECT_EQ(inherited.flags, before.flags);
    EXPECT_EQ(inherited.nice, before.nice);
    make_background(child.pid());
    EXPECT_EQ(::sched_getscheduler(child.pid()), SCHED_BATCH);
    make_worker(child.pid());
    EXPECT_EQ(::sched_getscheduler(child.pid()), SCHED_OTHER);
  }).join();
}

TEST(Background, WhoRunsBeforeOthersKeepsWhatItHandsDown) {
  std::thread([] {
    if (::setpriority(PRIO_PROCESS, 0, -5) != 0) return;  // not everyone may
    wake_at_once();
    EXPECT_EQ(scheduling_of(Child().pid()).value().nice, -5);
  }).join();
}

}  // namespace
}  // namespace ddprun::agent
