// An Ethernet switch in this process: each port is a TAP device, and each cable can be cut, slowed
// or made to lose frames, in one direction or in both, on any kernel that has TAP devices (tc's
// netem, which could do a part of this, is missing in many kernels). Owned by a Network; its own
// thread forwards the frames, and the members may be called from any other.
//
// A cut is silent: the device keeps its carrier, and no sender gets an error. Do not measure speed
// with it, because every frame costs two system calls.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/common/unique_fd.h"

namespace ddprun::test {
using rdzv::UniqueFd;

// What a cable does to the frames of its node.
struct Cable {
  bool sends = true;                    // frames from the node pass
  bool receives = true;                 // frames to the node pass
  std::chrono::microseconds delay{0};   // each way
  std::chrono::microseconds jitter{0};  // up to this much more; frames may be reordered
  double loss = 0;                      // probability, each way
};

class FrameSwitch {
 public:
  // The hardware address that the device at port N must have.
  static std::string hardware_address(std::size_t port);

  explicit FrameSwitch(std::vector<UniqueFd> taps);
  ~FrameSwitch();
  FrameSwitch(const FrameSwitch&) = delete;
  FrameSwitch& operator=(const FrameSwitch&) = delete;

  void set_cable(std::size_t port, const Cable& cable);

  // Breaks one TCP connection as a rebooting middlebox would: the next segment that the node at
  // `port` sends to or from `tcp_port` becomes a reset, for both ends. Returns when that is done;
  // false if there was no such segment in time.
  bool break_connection(std::size_t port, std::uint16_t tcp_port,
                        std::chrono::milliseconds deadline);

 private:
  using Clock = std::chrono::steady_clock;
  struct Delivery {
    std::size_t port;
    std::string frame;
  };
  struct Breaking {
    std::size_t port;
    std::uint16_t tcp_port;
  };

  void carry_frames();
  void take_in(std::size_t port, std::string frame);
  void send(std::size_t from, std::size_t to, const std::string& frame);
  void deliver(const Delivery& delivery) const;
  std::optional<Clock::duration> deliver_due();
  bool is_lost(const Cable& cable);
  Clock::duration time_on(const Cable& cable);

  const std::vector<UniqueFd> taps_;
  const UniqueFd over_;  // an eventfd: readable when the thread is to end

  std::mutex mutex_;  // guards all members below
  std::condition_variable broken_;
  std::vector<Cable> cables_;
  std::optional<Breaking> breaking_;
  std::multimap<Clock::time_point, Delivery> delayed_;
  std::mt19937 random_{20240607};  // any seed: no test may depend on which frames are lost

  std::thread thread_;
};

}  // namespace ddprun::test
