// The transport of an EtcdClient: HTTP requests and streams, each to one of its endpoints. The
// production implementation speaks HTTP; tests/sim has a virtual one.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "rendezvous/common/endpoint.h"
#include "rendezvous/http/http_client.h"
#include "rendezvous/net/transport.h"

namespace ddprun::rdzv {

class EtcdHttp {
 public:
  virtual ~EtcdHttp() = default;  // no callback runs afterwards
  // Requests to the same endpoint are sent one after another. `done` is never called from within
  // send().
  virtual void send(std::size_t endpoint, HttpRequest request, HttpClient::Done done) = 0;
  // The stream ends when the returned object is destroyed, which may happen in one of the events.
  virtual std::unique_ptr<Attempt> open_stream(std::size_t endpoint, HttpRequest request,
                                               HttpStream::Events events) = 0;
};

// `tls`: null for plain HTTP. `time_limit`: for one request to one endpoint.
std::unique_ptr<EtcdHttp> etcd_http(boost::asio::io_context& io, std::vector<Endpoint> endpoints,
                                    std::shared_ptr<TlsContext> tls,
                                    std::chrono::milliseconds time_limit);

}  // namespace ddprun::rdzv
