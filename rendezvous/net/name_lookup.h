// Looks up a host name on a thread of its own: a name server that is slow or does not answer delays
// neither the event loop nor the end of the process. (Asio's resolver joins its thread at the end,
// and getaddrinfo cannot be interrupted.) One lookup at a time; its members are used, and `done` is
// called, on the thread that runs the io_context.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/common/result.h"

namespace ddprun::rdzv {

class NameLookup {
 public:
  using Done = std::function<void(Result<std::vector<std::string>>)>;

  explicit NameLookup(boost::asio::io_context& io) : io_(io) {}
  ~NameLookup() { cancel(); }
  NameLookup(const NameLookup&) = delete;
  NameLookup& operator=(const NameLookup&) = delete;

  // Gives numeric addresses, the preferred one first, never an empty list. Replaces a lookup in
  // progress.
  void start(const std::string& host, Done done);
  // `done` is not called any more.
  void cancel() { told_.reset(); }

 private:
  boost::asio::io_context& io_;
  // Destroyed when the lookup is cancelled or done.
  std::shared_ptr<boost::asio::posix::stream_descriptor> told_;
};

// The same, blocking; the error is only the resolver's message.
Result<std::vector<std::string>> addresses_of(const std::string& host);

// The addresses of a host that needs no name server: a numeric address, or "localhost", for which
// no server is asked.
std::optional<std::vector<std::string>> addresses_without_lookup(const std::string& host);

}  // namespace ddprun::rdzv
