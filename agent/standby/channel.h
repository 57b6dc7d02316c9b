// The agent's end of the socket to a zygote or a standby (worker_abi/zygote_protocol.h). Event loop
// only. Both callbacks may destroy the channel.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <span>
#include <string_view>
#include <utility>

#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/common/worker_abi/zygote_protocol.h"

namespace ddprun::agent {

class Channel {
 public:
  struct Events {
    std::function<void(const zygote::Header&, std::string_view text)> message;
    std::function<void()> closed;  // the process has ended, or what it sent is no message
  };
  // The agent's end and the other one, both close-on-exec.
  static Result<std::pair<rdzv::UniqueFd, rdzv::UniqueFd>> make_pair();

  Channel(const boost::asio::any_io_executor& executor, rdzv::UniqueFd socket, Events events);

  // False: there is nobody at the other end, or no room in the socket.
  bool send(zygote::Kind kind, std::uint32_t flags, std::string_view text,
            std::span<const int> descriptors = {});

 private:
  void await();
  void read();

  boost::asio::posix::stream_descriptor socket_;
  const Events events_;
  const Lifetime lifetime_;
};

}  // namespace ddprun::agent
