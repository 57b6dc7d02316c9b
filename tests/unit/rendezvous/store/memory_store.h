// Decoder and core without sockets: clients are numbers, bytes go in, bytes come out. What the
// server does with them, in one thread and without a kernel.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store/store_core.h"
#include "rendezvous/store_wire/store_decoder.h"

namespace ddprun::rdzv::testing {

class MemoryStore {
 public:
  explicit MemoryStore(std::size_t memory_limit = limits::kDefaultStoreMemory)
      : core_(memory_limit) {}

  ClientId connect() {
    const ClientId client = core_.connect();
    clients_[client] = {};
    return client;
  }

  void disconnect(ClientId client) {
    clients_.erase(client);
    std::vector<ClientId> released;
    core_.disconnect(client, released);
    deliver(released);
  }

  // False when the store closed the connection by it (now, or before).
  bool send(ClientId client, std::string_view bytes) {
    if (!clients_.contains(client)) return false;
    wire::Request request;
    for (;;) {
      const auto status = clients_[client].decoder.next(bytes, request);
      if (status == wire::RequestDecoder::Status::kNeedMore) return true;
      std::vector<ClientId> released;
      const bool is_served = status == wire::RequestDecoder::Status::kRequest &&
                             core_.handle(client, request, clients_[client].reply, released) ==
                                 StoreCore::Verdict::kServed;
      deliver(released);
      if (is_served) continue;
      leftover_[client] += take(client);
      disconnect(client);
      return false;
    }
  }

  bool is_open(ClientId client) const { return clients_.contains(client); }

  // What the store sent to this client since the last call.
  std::string take(ClientId client) {
    std::string bytes = std::exchange(leftover_[client], {});
    if (!clients_.contains(client)) return bytes;
    auto& reply = clients_[client].reply;
    while (!reply.empty()) {
      std::string_view parts[3];
      const std::size_t count = reply.gather(parts);
      std::size_t size = 0;
      for (std::size_t i = 0; i < count; ++i) {
        bytes += parts[i];
        size += parts[i].size();
      }
      reply.consume(size);
    }
    return bytes;
  }

  StoreCore& core() { return core_; }
  wire::RequestDecoder& decoder(ClientId client) { return clients_[client].decoder; }

 private:
  struct Client {
    wire::RequestDecoder decoder;
    wire::ReplyQueue reply;
  };

  void deliver(const std::vector<ClientId>& released) {
    for (const ClientId client : released) clients_.at(client).reply.byte(wire::kStopWaiting);
  }

  StoreCore core_;
  std::map<ClientId, Client> clients_;
  std::map<ClientId, std::string> leftover_;
};

}  // namespace ddprun::rdzv::testing
