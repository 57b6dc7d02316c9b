// The agent's end of one worker's link (rendezvous/common/worker_abi/worker_link.h): the socket for requests,
// and the page in which the worker notes how far it is, which is looked at only when somebody asks.
//
// Whoever starts the worker makes the link before, lets the worker inherit its two descriptors
// (ProcessSpec), says started() after, and keeps the link as long as the worker. Event loop only.
// The mistake to avoid: taking anything a worker says for true, or for well-formed. A worker that
// sends what it must not loses its link and runs on; one that never uses the link is none the
// worse.
#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/common/worker_abi/worker_link.h"

namespace ddprun::agent {

class WorkerLink : public std::enable_shared_from_this<WorkerLink> {
 public:
  // Told once, with a sentence, when the worker broke the rules and the link was closed.
  using OnMisuse = std::function<void(std::string_view)>;

  static Result<std::shared_ptr<WorkerLink>> make(const boost::asio::any_io_executor& executor);
  WorkerLink(const WorkerLink&) = delete;
  WorkerLink& operator=(const WorkerLink&) = delete;

  // What the worker inherits.
  int worker_socket() const { return worker_socket_.get(); }  // -1 after started()
  int worker_page() const { return page_.get(); }
  void started(pid_t pid, OnMisuse on_misuse);

  // True: the worker acts upon such requests, and has this one. False: tell it in another way. It
  // is remembered, for a worker that opens its link only later.
  bool ask_to_leave();

  // How far the worker has said it is; nothing if it never did. Also after its end.
  std::optional<WorkerProgress> progress() const;

 private:
  WorkerLink(const boost::asio::any_io_executor& executor, rdzv::UniqueFd socket,
             rdzv::UniqueFd worker_socket, rdzv::UniqueFd page);

  void await_message();
  void read_messages();
  bool on_message(const link::Message& message);  // false: it must not have come
  void send_leave();
  void close();

  boost::asio::posix::stream_descriptor socket_;
  rdzv::UniqueFd worker_socket_;
  rdzv::UniqueFd page_;
  pid_t pid_ = -1;
  OnMisuse on_misuse_;
  std::uint32_t taken_ = 0;  // the requests of its last hello
  bool must_leave_ = false;
  bool was_told_ = false;  // kLeave was sent
};

}  // namespace ddprun::agent
