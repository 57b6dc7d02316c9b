// Runs an event loop in a test until something holds. Nothing sleeps.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>

namespace ddprun {

// False: it does not hold after ten seconds.
inline bool run_until(boost::asio::io_context& loop, const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    loop.restart();
    loop.run_one_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace ddprun
