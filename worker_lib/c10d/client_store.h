// ClientStore: what process groups meet through, a c10d::Store over the client of our own
// (rendezvous/store_client/store_client.h), for our store server and PyTorch's alike. LibTorch's own client
// looks the server's address up in reverse at every connect, which stalls a group's start by
// seconds where the name server is slow, and waits for replies without a deadline. Any thread, as
// the client. Errors are thrown as c10::DistStoreError, which LibTorch's callers expect.
#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "rendezvous/store_client/store_client.h"

namespace ddprun {

class ClientStore : public c10d::Store {
 public:
  using Bytes = std::vector<std::uint8_t>;
  using Keys = std::vector<std::string>;

  // `kept` lives as long as this: the server, when this process hosts it.
  ClientStore(std::unique_ptr<rdzv::StoreClient> client, c10::intrusive_ptr<c10d::Store> kept);

  c10::intrusive_ptr<c10d::Store> clone() override;
  // With this time limit, to connect too.
  c10::intrusive_ptr<c10d::Store> clone_within(std::chrono::milliseconds timeout) const;
  using c10d::Store::set;
  void set(const std::string& key, const Bytes& value) override;
  using c10d::Store::compareSet;
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override;
  Bytes get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const Keys& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const Keys& keys) override;
  void wait(const Keys& keys, const std::chrono::milliseconds& timeout) override;
  void setTimeout(const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const Bytes& value) override;
  std::vector<Bytes> multiGet(const Keys& keys) override;
  void multiSet(const Keys& keys, const std::vector<Bytes>& values) override;
  bool hasExtendedApi() const override { return true; }

  // Ends the connection and the calls that other threads are blocked in.
  void shut_down() { client_->shut_down(); }

 private:
  std::unique_ptr<rdzv::StoreClient> client_;
  c10::intrusive_ptr<c10d::Store> kept_;
};

}  // namespace ddprun
