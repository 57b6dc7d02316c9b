// The events of a core that its shell feeds: each is handled to its end before the next one. An action of the core may post
// events, which are handled after the other actions of the same step. Owned by the shell; event loop thread only.
#pragma once

#include <deque>
#include <functional>
#include <utility>

namespace ddprun {

template <typename Event>
class RunToCompletion {
 public:
  // `handle` must not destroy this object.
  explicit RunToCompletion(std::function<void(const Event&)> handle) : handle_(std::move(handle)) {}
  RunToCompletion(const RunToCompletion&) = delete;
  RunToCompletion& operator=(const RunToCompletion&) = delete;

  // True: the event and all that followed from it have been handled. False: it was posted while another event is handled,
  // and comes later.
  bool post(Event event) {
    posted_.push_back(std::move(event));
    if (std::exchange(is_handling_, true)) return false;
    while (!posted_.empty()) {
      const Event next = std::move(posted_.front());
      posted_.pop_front();
      handle_(next);
    }
    is_handling_ = false;
    return true;
  }

 private:
  const std::function<void(const Event&)> handle_;
  std::deque<Event> posted_;  // not handled yet
  bool is_handling_ = false;
};

}  // namespace ddprun
