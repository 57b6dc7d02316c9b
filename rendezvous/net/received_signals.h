// The signals that a process gets, with their senders, which asio::signal_set does not tell. At most one object of this
// class exists at a time; event loop thread only.
#pragma once

#include <sys/types.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <csignal>
#include <functional>
#include <vector>

#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::rdzv {

struct ReceivedSignal {
  int signal = 0;
  pid_t sender = 0;  // 0: the kernel, or a process of another pid namespace
  // A key of the terminal (Ctrl-C), or a terminal that was closed; else a process has sent it.
  bool is_from_kernel = false;
};

class ReceivedSignals {
 public:
  explicit ReceivedSignals(boost::asio::io_context& io) : pipe_(io) {}
  // Each signal that was added gets its default disposition.
  ~ReceivedSignals();
  ReceivedSignals(const ReceivedSignals&) = delete;
  ReceivedSignals& operator=(const ReceivedSignals&) = delete;

  // Call it once. The signals are unblocked: whatever started this process may have blocked them. `received` is called from the event loop for each of these signals.
  Result<void> handle(const std::vector<int>& signals,
                      std::function<void(const ReceivedSignal&)> received);

 private:
  void await();

  boost::asio::posix::stream_descriptor pipe_;
  UniqueFd writing_end_;
  std::array<ReceivedSignal, 16> arrived_;
  std::vector<int> handled_;
  std::function<void(const ReceivedSignal&)> received_;
  const Lifetime lifetime_;
};

}  // namespace ddprun::rdzv
