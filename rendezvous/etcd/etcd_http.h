// The way to the members of etcd, as an EtcdClient uses it: HTTP requests and streams, to one of its
// endpoints each. The shipped one speaks HTTP; tests/sim has a virtual one.
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
  virtual ~EtcdHttp() = default;  // nothing is called any more
  // One request after the other to each endpoint. `done` is never called from within.
  virtual void send(std::size_t endpoint, HttpRequest request, HttpClient::Done done) = 0;
  // Ends when what it returns is destroyed, which may be in one of the events.
  virtual std::unique_ptr<Attempt> open_stream(std::size_t endpoint, HttpRequest request,
                                               HttpStream::Events events) = 0;
};

// `tls`: none: plain. `time_limit`: of one request to one endpoint.
std::unique_ptr<EtcdHttp> etcd_http(boost::asio::io_context& io, std::vector<Endpoint> endpoints,
                                    std::shared_ptr<TlsContext> tls,
                                    std::chrono::milliseconds time_limit);

}  // namespace ddprun::rdzv
