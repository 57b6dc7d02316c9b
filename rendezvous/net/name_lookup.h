// The addresses of a host name, looked up beside the event loop: what a name server takes, or does
// not answer, holds up neither the loop nor the end of the process. (Asio's resolver joins its
// thread at the end, and getaddrinfo cannot be interrupted.) One lookup at a time; everything
// happens on the thread that runs the io_context, but for the waiting.
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

  // Numeric addresses, the preferred first; never an empty list. Replaces the lookup under way.
  void start(const std::string& host, Done done);
  // `done` is not called any more.
  void cancel() { told_.reset(); }

 private:
  boost::asio::io_context& io_;
  // Destroyed with the question it is about.
  std::shared_ptr<boost::asio::posix::stream_descriptor> told_;
};

// The same, waiting for it; the error is the name server's word alone.
Result<std::vector<std::string>> addresses_of(const std::string& host);

// What needs no name server: numeric addresses, and "localhost", whatever one makes of it.
std::optional<std::vector<std::string>> addresses_without_lookup(const std::string& host);

}  // namespace ddprun::rdzv
