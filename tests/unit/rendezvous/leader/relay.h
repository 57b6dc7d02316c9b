// A TCP relay on loopback that stands for the network between an agent and its leader: it can break
// the connections that go through it, refuse new ones, and hold back what either side says.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ddprun::rdzv::testing {

class Relay {
 public:
  Relay(boost::asio::io_context& io, std::uint16_t to)
      : io_(io), to_(boost::asio::ip::address_v4::loopback(), to), acceptor_(io) {
    listen(0);
  }

  std::uint16_t port() const { return port_; }

  // Every connection, as a host that dies does.
  void break_connections() {
    for (const auto& pair : pairs_) pair->close();
    pairs_.clear();
  }
  void refuse() { acceptor_.close(); }
  void accept_again() { listen(port_); }
  // What is said stays here until it is let go.
  void hold() { is_holding_ = true; }
  void let_go() {
    is_holding_ = false;
    for (const auto& pair : pairs_) pair->flush(is_holding_);
  }

 private:
  using tcp = boost::asio::ip::tcp;

  struct Pair : std::enable_shared_from_this<Pair> {
    Pair(boost::asio::io_context& io, tcp::socket from) : sides{std::move(from), tcp::socket(io)} {}

    void close() {
      boost::system::error_code ignored;
      for (tcp::socket& side : sides) side.close(ignored);
    }
    void forward(int from, const bool& is_holding) {
      sides[from].async_read_some(boost::asio::buffer(buffers[from]),
                                  [self = shared_from_this(), from, &is_holding](
                                      boost::system::error_code ec, std::size_t count) {
                                    if (ec) return self->close();
                                    self->held[from].append(self->buffers[from].data(), count);
                                    self->flush(is_holding);
                                    self->forward(from, is_holding);
                                  });
    }
    void flush(const bool& is_holding) {
      if (is_holding) return;
      for (int from = 0; from < 2; ++from) {
        boost::system::error_code ignored;  // the reading side reports it
        boost::asio::write(sides[1 - from], boost::asio::buffer(held[from]), ignored);
        held[from].clear();
      }
    }

    tcp::socket sides[2];
    std::array<std::array<char, 4096>, 2> buffers;
    std::string held[2];
  };

  void listen(std::uint16_t port) {
    acceptor_ = tcp::acceptor(io_, {boost::asio::ip::address_v4::loopback(), port});
    port_ = acceptor_.local_endpoint().port();
    accept();
  }
  void accept() {
    acceptor_.async_accept([this](boost::system::error_code ec, tcp::socket socket) {
      if (ec) return;
      const auto pair = std::make_shared<Pair>(io_, std::move(socket));
      boost::system::error_code refused;
      pair->sides[1].connect(to_, refused);
      if (!refused) {
        pairs_.push_back(pair);
        pair->forward(0, is_holding_);
        pair->forward(1, is_holding_);
      }
      accept();
    });
  }

  boost::asio::io_context& io_;
  const tcp::endpoint to_;
  tcp::acceptor acceptor_;
  std::uint16_t port_ = 0;
  bool is_holding_ = false;
  std::vector<std::shared_ptr<Pair>> pairs_;
};

}  // namespace ddprun::rdzv::testing
