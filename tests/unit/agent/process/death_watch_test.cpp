// Deaths of real processes that hold a robust mutex in shared memory.
#include "agent/process/death_watch.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "rendezvous/common/unique_fd.h"
#include "rendezvous/common/worker_abi/worker_link.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// A child with a link's page, whose lock it holds before the test goes on.
class Holder {
 public:
  explicit Holder(const std::function<void(link::Page&)>& then)
      : page_fd_(::memfd_create("page", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(page_fd_.get(), link::kPageBytes), 0);
    page_ = static_cast<link::Page*>(
        ::mmap(nullptr, link::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd_.get(), 0));
    pid_ = ::fork();
    if (pid_ == 0) {
      hold();
      then(*page_);
      ::_exit(0);
    }
    while (page_->recovery.holds_death_lock != 1) std::this_thread::yield();
  }
  ~Holder() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::munmap(page_, link::kPageBytes);
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  pid_t pid() const { return pid_; }
  int page_fd() const { return page_fd_.get(); }
  link::Page& page() { return *page_; }
  int reap() {
    int status = -1;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return status;
  }

 private:
  void hold() {
    static_assert(sizeof(pthread_mutex_t) <= sizeof(link::Recovery::death_lock));
    auto* const mutex = reinterpret_cast<pthread_mutex_t*>(page_->recovery.death_lock);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(mutex, &attributes);
    pthread_mutex_lock(mutex);
    page_->recovery.holds_death_lock = 1;
  }

  rdzv::UniqueFd page_fd_;
  link::Page* page_ = nullptr;
  pid_t pid_ = -1;
};

const auto waits = [](link::Page&) {
  for (;;) ::pause();
};

class DeathWatchTest : public ::testing::Test {
 protected:
  void watch(const Holder& holder) {
    watch_->watch(holder.pid(), holder.page_fd(), [this, pid = holder.pid()](int status) {
      deaths_[pid] = status;
      died_at_ = Clock::now();
    });
  }
  bool hears_of(const Holder& holder, Clock::duration patience = 10s) {
    const auto until = Clock::now() + patience;
    while (!deaths_.contains(holder.pid()) && Clock::now() < until) {
      loop_.restart();
      loop_.run_for(1ms);
    }
    return deaths_.contains(holder.pid());
  }
  // Nothing more has come of whatever has happened before.
  bool hears_nothing_of(const Holder& holder) { return !hears_of(holder, 50ms); }
  static Clock::duration used() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return std::chrono::seconds(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           std::chrono::microseconds(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  }

  boost::asio::io_context loop_;
  std::unique_ptr<DeathWatch> watch_ = std::make_unique<DeathWatch>(loop_.get_executor());
  std::map<pid_t, int> deaths_;
  Clock::time_point died_at_;
};

TEST_F(DeathWatchTest, TellsHowAWorkerDies) {
  Holder killed(waits);
  Holder fails([](link::Page& page) {
    while (page.notes == 0) ::usleep(100);
    ::_exit(3);
  });
  watch(killed);
  watch(fails);
  EXPECT_TRUE(hears_nothing_of(killed));
  ::kill(killed.pid(), SIGKILL);
  ASSERT_TRUE(hears_of(killed));
  EXPECT_EQ(deaths_[killed.pid()], SIGKILL);
  EXPECT_EQ(killed.reap(), SIGKILL);
  fails.page().notes = 1;
  ASSERT_TRUE(hears_of(fails));
  EXPECT_EQ(deaths_[fails.pid()], 3 << 8);
}

TEST_F(DeathWatchTest, TellsOfAsManyAsThereAre) {
  std::vector<std::unique_ptr<Holder>> holders;
  for (int i = 0; i < 20; ++i) holders.push_back(std::make_unique<Holder>(waits));
  for (const auto& each : holders) watch(*each);
  for (const auto& each : holders) ::kill(each->pid(), SIGKILL);
  for (const auto& each : holders) EXPECT_TRUE(hears_of(*each));
}

TEST_F(DeathWatchTest, TellsOfAWorkerThatWasDeadBeforeItWasWatched) {
  Holder holder(waits);
  ::kill(holder.pid(), SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(holder.pid()), &info, WEXITED | WNOWAIT), 0);
  watch(holder);
  EXPECT_TRUE(hears_of(holder));
}

// The kernel frees the memory after it has told.
TEST_F(DeathWatchTest, TellsBeforeTheMemoryOfALargeProcessIsFreed) {
  constexpr std::size_t kBytes = 400 << 20;
  std::vector<Clock::duration> early;
  for (int i = 0; i < 5; ++i) {
    Holder holder([&](link::Page& page) {
      void* const memory =
          ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      ::madvise(memory, kBytes, MADV_NOHUGEPAGE);
      std::memset(memory, 1, kBytes);
      page.notes = 1;
      for (;;) ::pause();
    });
    while (holder.page().notes == 0) ::usleep(1000);
    watch(holder);
    hears_nothing_of(holder);
    ::kill(holder.pid(), SIGKILL);
    ASSERT_TRUE(hears_of(holder));
    siginfo_t info{};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(holder.pid()), &info, WEXITED | WNOWAIT), 0);
    early.push_back(Clock::now() - died_at_);
  }
  std::ranges::sort(early);
  EXPECT_GT(early[2], 2ms) << "it takes the kernel ten and more";
}

TEST_F(DeathWatchTest, AProgramThatExecutesAnotherHasNotDied) {
  Holder holder([](link::Page& page) {
    while (page.notes == 0) ::usleep(100);
    ::execl("/bin/sleep", "sleep", "1000", nullptr);
  });
  watch(holder);
  holder.page().notes = 1;
  EXPECT_TRUE(hears_nothing_of(holder));
  EXPECT_EQ(holder.page().recovery.death_lock[3] & 0x40, 0x40) << "though its lock has";
  EXPECT_EQ(::kill(holder.pid(), 0), 0);
}

TEST_F(DeathWatchTest, AProgramWhoseMainThreadEndsHasNotDied) {
  Holder holder([](link::Page&) {
    std::thread([] {
      for (;;) ::pause();
    }).detach();
    ::syscall(SYS_exit, 0);  // pthread_exit() unwinds the stack first
  });
  watch(holder);
  EXPECT_TRUE(hears_nothing_of(holder));
  EXPECT_EQ(holder.page().recovery.death_lock[3] & 0x40, 0x40);
  EXPECT_EQ(status_of_dying(holder.pid()), std::nullopt);
}

TEST_F(DeathWatchTest, AWorkerThatEndsWithZeroIsLeftToItsPidfd) {
  Holder holder([](link::Page& page) {
    while (page.notes == 0) ::usleep(100);
    ::_exit(0);
  });
  watch(holder);
  holder.page().notes = 1;
  EXPECT_TRUE(hears_nothing_of(holder));
}

TEST_F(DeathWatchTest, AWorkerThatWritesGarbageCostsNothingAndHidesNoOther) {
  const auto scribble = [](link::Page& page, std::uint32_t first, std::uint32_t second) {
    auto* const word = reinterpret_cast<std::atomic<std::uint32_t>*>(page.recovery.death_lock);
    for (;;) {
      word->store(first);
      word->store(second);
    }
  };
  const auto own = static_cast<std::uint32_t>(::getpid());
  Holder sets_and_clears([&](link::Page& page) { scribble(page, own, own | 0x80000000); });
  Holder changes([&](link::Page& page) { scribble(page, own, own + 1); });
  Holder honest(waits);
  watch(sets_and_clears);
  watch(changes);
  watch(honest);
  hears_nothing_of(honest);
  const auto before = used();
  std::this_thread::sleep_for(200ms);
  EXPECT_LT(used() - before, 5ms) << "its thread waits";
  ::kill(honest.pid(), SIGKILL);
  EXPECT_TRUE(hears_of(honest));
  EXPECT_FALSE(deaths_.contains(changes.pid()));
}

TEST_F(DeathWatchTest, WhoHoldsNoLockOrIsForgottenIsNotTold) {
  Holder holder(waits);
  holder.page().recovery.holds_death_lock = 0;
  watch(holder);
  holder.page().recovery.holds_death_lock = 1;
  Holder forgotten(waits);
  watch(forgotten);
  watch_->forget(forgotten.pid());
  ::kill(holder.pid(), SIGKILL);
  ::kill(forgotten.pid(), SIGKILL);
  EXPECT_TRUE(hears_nothing_of(holder));
  EXPECT_TRUE(hears_nothing_of(forgotten));
}

TEST_F(DeathWatchTest, EndsWhileItWaitsAndWhileAWordOfADeathIsUnderWay) {
  for (int i = 0; i < 20; ++i) {
    Holder holder(waits);
    watch(holder);
    if (i % 2 == 1) ::kill(holder.pid(), SIGKILL);
    if (i % 4 == 3) ::usleep(2000);
    watch_ = std::make_unique<DeathWatch>(loop_.get_executor());
    EXPECT_TRUE(!hears_of(holder, 2ms));
  }
}

}  // namespace
}  // namespace ddprun::agent
