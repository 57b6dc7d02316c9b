// A log of the simulation, with the virtual time in each line, for debugging.
#pragma once

#include <iomanip>
#include <sstream>
#include <string>

#include "tests/sim/event_queue.h"

namespace ddprun::sim {

class Trace {
 public:
  Trace(const EventQueue& queue, bool is_on) : queue_(queue), is_on_(is_on) {}

  // Prints one line in pieces: the first one begins it with the time, the piece "\n" ends it.
  template <typename T>
  Trace& operator<<(const T& piece) {
    if (!is_on_) return *this;
    if (is_at_start_) {
      const auto us = queue_.now().time_since_epoch().count();
      text_ << std::setw(5) << us / 1'000'000 << '.' << std::setw(6) << std::setfill('0')
            << us % 1'000'000 << std::setfill(' ') << "  ";
    }
    text_ << piece;
    is_at_start_ = text_.view().ends_with('\n');
    return *this;
  }
  std::string text() const { return text_.str(); }

 private:
  const EventQueue& queue_;
  bool is_on_;
  bool is_at_start_ = true;
  std::ostringstream text_;
};

}  // namespace ddprun::sim
