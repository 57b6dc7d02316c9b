// The transport of an EtcdClient: HTTP requests and streams, each to one of its endpoints. The
// production implementation speaks HTTP (etcd_leader_over_sockets); tests/sim has a virtual one.
#pragma once

#include <cstddef>
#include <memory>

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

}  // namespace ddprun::rdzv
