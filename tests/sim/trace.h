// A log of the simulation, with the virtual time in each line. When it is off, no text is built.
#pragma once

#include <concepts>
#include <iomanip>
#include <sstream>
#include <string>

#include "tests/sim/event_queue.h"

namespace ddprun::sim {

class Trace {
 public:
  Trace(const EventQueue& queue, bool is_on) : queue_(queue), is_on_(is_on) {}

  // Writes a line of these pieces; one that must be made first is given as a function.
  template <typename... Pieces>
  void operator()(const Pieces&... pieces) {
    if (!is_on_) return;
    const auto us = queue_.now().time_since_epoch().count();
    text_ << std::setw(5) << us / 1'000'000 << '.' << std::setw(6) << std::setfill('0')
          << us % 1'000'000 << std::setfill(' ') << "  ";
    const auto write = [this](const auto& piece) {
      if constexpr (std::invocable<decltype(piece)>) {
        text_ << piece();
      } else {
        text_ << piece;
      }
    };
    (write(pieces), ...);
    text_ << '\n';
  }
  std::string text() const { return text_.str(); }

 private:
  const EventQueue& queue_;
  bool is_on_;
  std::ostringstream text_;
};

}  // namespace ddprun::sim
