#include "rendezvous/net/asio_transport.h"

#include <sys/socket.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <utility>

#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/net/call_attempt.h"
#include "rendezvous/net/connection.h"
#include "rendezvous/net/name_lookup.h"

namespace ddprun::rdzv {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

// Real time as a CoreTime; counts from the object's construction.
class ShellClock {
 public:
  CoreTime now() const {
    return CoreTime(
        std::chrono::duration_cast<CoreTime::duration>(std::chrono::steady_clock::now() - start_));
  }
  std::chrono::steady_clock::time_point at(CoreTime time) const {
    return start_ + time.time_since_epoch();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

constexpr int kAcceptsPerTurn = 256;  // then other handlers have their turn
// The pause when no descriptor is left and none could be freed.
constexpr auto kDescriptorPause = std::chrono::milliseconds(100);

// The owners set their time limits after every event. The same limit again leaves the timer as it is: otherwise it would
// not expire as long as events arrive.
class AsioTimer final : public TransportTimer {
 public:
  AsioTimer(boost::asio::io_context& io, const ShellClock& clock) : clock_(clock), timer_(io) {}

  void at(CoreTime when, std::function<void()> what) override {
    const bool is_set = timer_.is_armed() && when == when_;
    what_ = std::move(what);
    if (is_set) return;
    when_ = when;
    timer_.arm_at(clock_.at(when), [this] {
      const auto due = std::move(what_);
      due();  // may destroy this object
    });
  }
  void cancel() override {
    what_ = nullptr;
    timer_.cancel();
  }

 private:
  const ShellClock clock_;
  Timer timer_;
  CoreTime when_{};
  std::function<void()> what_;  // empty: not armed
};

class ConnectAttempt final : public Attempt {
 public:
  ConnectAttempt(boost::asio::io_context& io, const Endpoint& to, Transport::Connected done)
      : socket_(io) {
    socket_.async_connect(
        {boost::asio::ip::make_address(to.host), to.port},
        lifetime_.guard([this, done = std::move(done)](error_code ec) {
          if (ec) {
            const bool is_refused = ec == boost::asio::error::connection_refused;
            return done(fail(is_refused ? ErrorCode::kUnavailable : ErrorCode::kIo, ec.message()));
          }
          socket_.set_option(tcp::no_delay(true), ec);
          socket_.non_blocking(true, ec);
          UniqueFd descriptor(socket_.release(ec));
          done(stream_over(socket_.get_executor(), std::move(descriptor)));
        }));
  }

 private:
  tcp::socket socket_;
  const Lifetime lifetime_;
};

class AsioAcceptor final : public Attempt {
 public:
  AsioAcceptor(boost::asio::io_context& io, Listener listener, AcceptEvents events)
      : io_(io), events_(std::move(events)), listening_(io, listener.socket.release()), pause_(io) {
    await_connections();
  }

 private:
  void await_connections() {
    listening_.async_wait(listening_.wait_read, lifetime_.guard([this](error_code ec) {
      if (!ec) accept_some();
    }));
  }

  void accept_some() {
    const auto lifetime = lifetime_.watch();
    for (int i = 0; i < kAcceptsPerTurn; ++i) {
      UniqueFd socket(
          ::accept4(listening_.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket) {
        events_.on_stream(stream_over(io_.get_executor(), std::move(socket)));
        if (lifetime.expired()) return;
      } else if (errno == EAGAIN) {
        break;
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        if (events_.on_shortage()) continue;
        return pause_.arm(kDescriptorPause, [this] { accept_some(); });
      }  // any other error: that one connection has ended already
    }
    await_connections();
  }

  boost::asio::io_context& io_;
  const AcceptEvents events_;
  boost::asio::posix::stream_descriptor listening_;
  Timer pause_;
  const Lifetime lifetime_;
};

class AsioTransport final : public Transport {
 public:
  explicit AsioTransport(boost::asio::io_context& io) : io_(io) {}

  CoreTime now() const override { return clock_.now(); }
  std::unique_ptr<TransportTimer> make_timer() override {
    return std::make_unique<AsioTimer>(io_, clock_);
  }
  void post(std::function<void()> what) override { boost::asio::post(io_, std::move(what)); }
  std::unique_ptr<Attempt> connect(const Endpoint& numeric, Connected done) override {
    return std::make_unique<ConnectAttempt>(io_, numeric, std::move(done));
  }
  std::unique_ptr<Attempt> look_up(const std::string& host, LookedUp done) override {
    return look_up_name(io_, host, std::move(done));
  }
  std::unique_ptr<Attempt> call(std::function<Result<std::string>()> function,
                                Called done) override {
    return std::make_unique<CallAttempt<std::string>>(io_, "ddprun-munge", std::move(function),
                                                      std::move(done));
  }
  std::unique_ptr<Attempt> accept(Listener listener, AcceptEvents events) override {
    return std::make_unique<AsioAcceptor>(io_, std::move(listener), std::move(events));
  }

 private:
  boost::asio::io_context& io_;
  const ShellClock clock_;
};

}  // namespace

std::shared_ptr<Transport> asio_transport(boost::asio::io_context& io) {
  return std::make_shared<AsioTransport>(io);
}

}  // namespace ddprun::rdzv
