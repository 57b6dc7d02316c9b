#include "rendezvous/common/loop/blocking_calls.h"

#include <boost/asio/post.hpp>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>

#include "rendezvous/common/loop/timer.h"

namespace ddprun {

using std::chrono::steady_clock;

struct BlockingCalls::Call {
  std::function<void()> make;               // runs on the thread
  std::function<void(bool is_there)> done;  // used by the event loop only, as is `timer`
  std::optional<Timer> timer;
  bool is_settled = false;  // decided: `done` gets the answer, or gets none
};

struct BlockingCalls::State : std::enable_shared_from_this<State> {
  explicit State(boost::asio::any_io_executor the_executor) : executor(std::move(the_executor)) {}

  void run();
  void make(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Call>& call);

  void time_is_over(const std::shared_ptr<Call>& call);
  void answer(const std::shared_ptr<Call>& call, bool is_there);

  const boost::asio::any_io_executor executor;
  std::mutex mutex;
  std::condition_variable work;
  std::deque<std::shared_ptr<Call>> calls;
  std::set<std::shared_ptr<Call>> unanswered;  // used by the event loop only
  std::optional<steady_clock::time_point> busy_since;
  bool is_stopping = false;  // the owner is gone, and the executor may be gone
};

BlockingCalls::BlockingCalls(boost::asio::any_io_executor executor, const char* thread_name)
    : thread_name_(thread_name), state_(std::make_shared<State>(std::move(executor))) {}

BlockingCalls::~BlockingCalls() {
  bool is_busy = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_stopping = true;
    is_busy = state_->busy_since.has_value();
  }
  state_->work.notify_one();
  // Destroyed here, because when the thread drops the calls the executor may be gone.
  for (const auto& call : state_->unanswered) {
    call->done = nullptr;
    call->timer.reset();
  }
  state_->unanswered.clear();
  if (thread_ && is_busy) thread_->detach();
}

std::optional<steady_clock::duration> BlockingCalls::busy_for() const {
  const std::lock_guard lock(state_->mutex);
  if (!state_->busy_since) return std::nullopt;
  return steady_clock::now() - *state_->busy_since;
}

void BlockingCalls::start(std::function<void()> make, std::function<void(bool)> done,
                          std::optional<std::chrono::milliseconds> limit) {
  const auto call = std::make_shared<Call>();
  call->make = std::move(make);
  call->done = std::move(done);
  if (limit) {
    call->timer.emplace(state_->executor);
    call->timer->arm(*limit, [state = state_.get(), weak = std::weak_ptr(call)] {
      if (const auto late = weak.lock()) state->time_is_over(late);
    });
  }
  state_->unanswered.insert(call);
  {
    const std::lock_guard lock(state_->mutex);
    state_->calls.push_back(call);
  }
  if (thread_) return state_->work.notify_one();
  if (auto thread = rdzv::Thread::start(thread_name_, [state = state_] { state->run(); })) {
    thread_ = std::move(*thread);
    return;
  }
  std::unique_lock lock(state_->mutex);
  state_->calls.pop_back();
  state_->make(lock, call);
}

void BlockingCalls::State::run() {
  std::unique_lock lock(mutex);
  while (!is_stopping) {
    if (calls.empty()) {
      work.wait(lock);
      continue;
    }
    const auto call = std::move(calls.front());
    calls.pop_front();
    if (!call->is_settled) make(lock, call);
  }
  calls.clear();
}

void BlockingCalls::State::make(std::unique_lock<std::mutex>& lock,
                                const std::shared_ptr<Call>& call) {
  busy_since = steady_clock::now();
  lock.unlock();
  call->make();
  lock.lock();
  const bool is_unwanted = is_stopping || std::exchange(call->is_settled, true);
  if (is_unwanted) {
    lock.unlock();
    call->make = nullptr;  // destroys the answer too: closing a file may hang
    lock.lock();
  }
  busy_since.reset();
  if (is_unwanted) return;
  // Without the lock, which the posted handler takes at once. The owner waits for a thread that is
  // not busy, so the executor still exists.
  lock.unlock();
  boost::asio::post(executor, [state = shared_from_this(), call] {
    {
      const std::lock_guard guard(state->mutex);
      if (state->is_stopping) return;
    }
    state->answer(call, /*is_there=*/true);
  });
  lock.lock();
}

void BlockingCalls::State::time_is_over(const std::shared_ptr<Call>& call) {
  {
    const std::lock_guard lock(mutex);
    if (is_stopping || std::exchange(call->is_settled, true)) return;
  }
  answer(call, /*is_there=*/false);
}

void BlockingCalls::State::answer(const std::shared_ptr<Call>& call, bool is_there) {
  unanswered.erase(call);
  call->timer.reset();
  const auto done = std::exchange(call->done, nullptr);
  done(is_there);
}

}  // namespace ddprun
