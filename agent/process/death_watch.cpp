#include "agent/process/death_watch.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <iterator>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "agent/process/process_stacks.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/common/scheduling.h"
#include "rendezvous/common/worker_abi/worker_link.h"

namespace ddprun::agent {
namespace {

#ifndef SYS_futex_waitv
constexpr long kFutexWaitv = 449;  // on every architecture
#else
constexpr long kFutexWaitv = SYS_futex_waitv;
#endif

// As linux/futex.h has them since 5.16.
struct Waiter {
  std::uint64_t value = 0;
  std::uint64_t address = 0;
  std::uint32_t flags = 0;
  std::uint32_t reserved = 0;
};
constexpr std::uint32_t kSize32 = 2;
constexpr std::uint32_t kPrivate = 128;
constexpr std::size_t kWaitersMax = 128;

// A lock changes when its owner dies, or once more when others set FUTEX_WAITERS.
constexpr int kWakesMax = 8;

using Word = std::atomic<std::uint32_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 4);

// The page of a link, whose size is sealed. Only the lock's first word is written to.
class Lock {
 public:
  explicit Lock(int page_fd)
      : memory_(::mmap(nullptr, link::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0)) {
  }
  ~Lock() {
    if (memory_ != MAP_FAILED) ::munmap(memory_, link::kPageBytes);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  bool is_held() const {
    return memory_ != MAP_FAILED &&
           page().recovery.holds_death_lock.load(std::memory_order_acquire) == 1;
  }
  Word& word() const { return *reinterpret_cast<Word*>(page().recovery.death_lock); }

 private:
  link::Page& page() const { return *static_cast<link::Page*>(memory_); }
  void* memory_;
};

struct Watched {
  pid_t pid = -1;
  std::shared_ptr<const Lock> lock;
  std::uint32_t owner = 0;  // its TID, in the worker's own pid namespace; 0: not read yet
  int wakes = 0;
};

bool is_dead(std::uint32_t value) {
  return (value & FUTEX_OWNER_DIED) != 0 || (value & FUTEX_TID_MASK) == 0;
}

// The value to wait on: the kernel wakes only where FUTEX_WAITERS is set. Nothing: there is no use in
// waiting.
std::optional<std::uint32_t> value_to_wait_on(Watched& watched) {
  Word& word = watched.lock->word();
  std::uint32_t value = word.load(std::memory_order_acquire);
  if (watched.owner == 0) watched.owner = value & FUTEX_TID_MASK;
  while (!is_dead(value) && (value & FUTEX_TID_MASK) == watched.owner) {
    if ((value & FUTEX_WAITERS) != 0) return value;
    if (++watched.wakes > kWakesMax) return std::nullopt;
    if (word.compare_exchange_weak(value, value | FUTEX_WAITERS)) return value | FUTEX_WAITERS;
  }
  return std::nullopt;
}

}  // namespace

struct DeathWatch::Shared {
  std::mutex mutex;
  std::vector<Watched> arrived;  // that the thread has not taken yet
  std::vector<pid_t> forgotten;  // likewise
  std::atomic<bool> is_over = false;
  Word changed{0};  // counts what of this has changed; the thread waits on it, too

  void wake() {
    changed.fetch_add(1);
    ::syscall(SYS_futex, &changed, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
};

namespace {

// Until it is over, or the kernel cannot do it.
void wait_for_deaths(auto& shared, const std::function<void(pid_t)>& hint) {
  std::vector<Watched> all;
  while (!shared.is_over) {
    const std::uint32_t changed = shared.changed.load();
    {
      const std::scoped_lock lock(shared.mutex);
      std::erase_if(all, [&](const Watched& each) {
        return std::ranges::count(shared.forgotten, each.pid) > 0;
      });
      shared.forgotten.clear();
      std::ranges::move(shared.arrived, std::back_inserter(all));
      shared.arrived.clear();
    }
    std::vector<Waiter> waiters{
        {changed, reinterpret_cast<std::uintptr_t>(&shared.changed), kSize32 | kPrivate, 0}};
    std::erase_if(all, [&](Watched& each) {
      if (waiters.size() == kWaitersMax) return false;
      const auto value = value_to_wait_on(each);
      if (value) {
        waiters.push_back(
            {*value, reinterpret_cast<std::uintptr_t>(&each.lock->word()), kSize32, 0});
      } else if (each.wakes <= kWakesMax) {
        hint(each.pid);
      }
      return !value;
    });
    const long woken =
        ::syscall(kFutexWaitv, waiters.data(), waiters.size(), 0, nullptr, CLOCK_MONOTONIC);
    if (woken < 0 && errno != EAGAIN && errno != EINTR) return;
    for (std::size_t i = 1; i < waiters.size(); ++i) {
      Watched& each = all[i - 1];
      if (each.lock->word().load() != waiters[i].value) ++each.wakes;
    }
  }
}

}  // namespace

DeathWatch::DeathWatch(const boost::asio::any_io_executor& executor)
    : executor_(executor), shared_(std::make_shared<Shared>()) {}

DeathWatch::~DeathWatch() {
  shared_->is_over = true;
  shared_->wake();
}

void DeathWatch::watch(pid_t pid, int page_fd, OnDeath on_death) {
  if (!is_possible_ || watched_.contains(pid)) return;
  auto lock = std::make_shared<const Lock>(page_fd);
  if (!lock->is_held()) return;
  if (!has_thread_) {
    auto hint = lifetime_.guard([this](pid_t which) { on_hint(which); });
    auto started = rdzv::Thread::start("ddprun-deaths", [shared = shared_, executor = executor_,
                                                         hint = std::move(hint)]() mutable {
      rdzv::wake_at_once();
      wait_for_deaths(*shared, [&](pid_t which) {
        boost::asio::post(executor, [hint, which]() mutable { hint(which); });
      });
    });
    if (!started) {
      is_possible_ = false;
      return;
    }
    thread_ = std::move(*started);
    has_thread_ = true;
  }
  watched_.emplace(pid, std::move(on_death));
  {
    const std::scoped_lock guard(shared_->mutex);
    shared_->arrived.push_back({pid, std::move(lock)});
  }
  shared_->wake();
}

void DeathWatch::forget(pid_t pid) {
  if (watched_.erase(pid) == 0) return;
  {
    const std::scoped_lock guard(shared_->mutex);
    std::erase_if(shared_->arrived, [pid](const Watched& each) { return each.pid == pid; });
    shared_->forgotten.push_back(pid);
  }
  shared_->wake();
}

void DeathWatch::on_hint(pid_t pid) {
  const auto found = watched_.find(pid);
  if (found == watched_.end()) return;
  const auto status = status_of_dying(pid);
  if (!status) return;  // the thread watches it no more
  const OnDeath on_death = std::move(found->second);
  watched_.erase(found);
  on_death(*status);  // may destroy this object
}

std::optional<int> status_of_dying(pid_t pid) {
  constexpr unsigned kExiting = 0x4;  // PF_EXITING
  constexpr int kFlags = 6;           // fields from the state on, which is 0
  std::istringstream fields(stat_after_name(pid));
  char state = 0;
  fields >> state;
  std::string field;
  unsigned flags = 0;
  for (int i = 1; fields >> field; ++i) {
    if (i == kFlags) flags = parse_number<unsigned>(field).value_or(0);
  }
  // The last one is the status.
  const int status = parse_number<int>(field).value_or(0);
  const bool is_dying = state == 'Z' || state == 'X' || (flags & kExiting) != 0;
  return is_dying && status != 0 ? std::optional(status) : std::nullopt;
}

}  // namespace ddprun::agent
