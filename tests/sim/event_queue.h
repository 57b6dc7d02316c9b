// Virtual time: a queue of events, sorted by their time. Faults affect processes: an event of a
// dead process is dropped, and one of a stopped process waits.
//
// Do not end a process from within one of its own events, because objects that are in use on the
// stack would be destroyed. Use `when_idle`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "rendezvous/common/clock.h"

namespace ddprun::sim {

struct Process {
  bool is_alive = true;
  bool is_paused = false;
  std::vector<std::function<void()>> backlog;
  std::function<void()> when_idle;  // called after each of its events; may end the process
};
using ProcessPtr = std::shared_ptr<Process>;

class EventQueue {
 public:
  EventQueue() = default;
  // Breaks cycles: an event that waits in a stopped process may own the process.
  ~EventQueue() {
    for (const ProcessPtr& process : stopped_) process->backlog.clear();
  }
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  CoreTime now() const { return now_; }

  void at(CoreTime when, ProcessPtr process, std::function<void()> what) {
    events_.push_back({std::max(when, now_), ++count_, std::move(process), std::move(what)});
    std::push_heap(events_.begin(), events_.end(), is_later);
  }
  void at(CoreTime when, std::function<void()> what) { at(when, nullptr, std::move(what)); }
  void after(CoreTime::duration delay, std::function<void()> what) {
    at(now_ + delay, std::move(what));
  }
  void after(CoreTime::duration delay, const ProcessPtr& process, std::function<void()> what) {
    at(now_ + delay, process, std::move(what));
  }

  void run_in(const ProcessPtr& process, std::function<void()> what) {
    if (!process->is_alive) return;
    if (process->is_paused) {
      if (process->backlog.empty()) stopped_.push_back(process);
      process->backlog.push_back(std::move(what));
      return;
    }
    what();
    if (!process->is_alive || !process->when_idle) return;
    const auto when_idle = process->when_idle;  // the callback may reset it
    when_idle();
  }
  void resume(const ProcessPtr& process) {
    process->is_paused = false;
    for (auto& what : std::exchange(process->backlog, {})) run_in(process, std::move(what));
  }

  bool run_next() {
    if (events_.empty()) return false;
    std::pop_heap(events_.begin(), events_.end(), is_later);
    Event event = std::move(events_.back());
    events_.pop_back();
    now_ = event.when;
    if (event.process) {
      run_in(event.process, std::move(event.what));
    } else {
      event.what();
    }
    return true;
  }
  std::uint64_t count() const { return count_; }

 private:
  struct Event {
    CoreTime when;
    std::uint64_t number = 0;  // events at the same time keep their order
    ProcessPtr process;        // null: belongs to no process
    std::function<void()> what;
  };
  static bool is_later(const Event& a, const Event& b) {
    return a.when != b.when ? a.when > b.when : a.number > b.number;
  }

  CoreTime now_{};
  std::uint64_t count_ = 0;
  std::vector<Event> events_;
  std::vector<ProcessPtr> stopped_;  // processes that had waiting events
};

}  // namespace ddprun::sim
