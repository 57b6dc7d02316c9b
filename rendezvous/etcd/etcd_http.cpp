#include "rendezvous/etcd/etcd_http.h"

#include <utility>

namespace ddprun::rdzv {
namespace {

struct OpenStream final : Attempt {
  OpenStream(boost::asio::io_context& io, HttpOptions options, HttpRequest request,
             HttpStream::Events events)
      : stream(io, std::move(options), std::move(request), std::move(events)) {}
  HttpStream stream;
};

class OverHttp final : public EtcdHttp {
 public:
  OverHttp(boost::asio::io_context& io, std::vector<Endpoint> endpoints,
           const std::shared_ptr<TlsContext>& tls, std::chrono::milliseconds time_limit)
      : io_(io) {
    for (const Endpoint& each : endpoints) {
      HttpOptions options;
      options.server = each;
      options.tls = tls;
      options.time_limit = time_limit;
      options.max_reply_bytes = std::size_t{4} << 20;
      clients_.push_back(std::make_unique<HttpClient>(io_, options));
      options_.push_back(std::move(options));
    }
  }

  void send(std::size_t endpoint, HttpRequest request, HttpClient::Done done) override {
    clients_[endpoint]->send(std::move(request), std::move(done));
  }
  std::unique_ptr<Attempt> open_stream(std::size_t endpoint, HttpRequest request,
                                       HttpStream::Events events) override {
    return std::make_unique<OpenStream>(io_, options_[endpoint], std::move(request),
                                        std::move(events));
  }

 private:
  boost::asio::io_context& io_;
  std::vector<HttpOptions> options_;                  // of each endpoint
  std::vector<std::unique_ptr<HttpClient>> clients_;  // of each endpoint
};

}  // namespace

std::unique_ptr<EtcdHttp> etcd_http(boost::asio::io_context& io, std::vector<Endpoint> endpoints,
                                    std::shared_ptr<TlsContext> tls,
                                    std::chrono::milliseconds time_limit) {
  return std::make_unique<OverHttp>(io, std::move(endpoints), tls, time_limit);
}

}  // namespace ddprun::rdzv
