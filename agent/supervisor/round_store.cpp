#include "agent/supervisor/round_store.h"

#include <charconv>
#include <stdexcept>
#include <utility>

#include "rendezvous/net/socket_address.h"

namespace ddprun::agent {

void RoundStore::prepare(std::function<void(Result<void>)> done) {
  const std::string& name =
      job_.nodes.is_alone() ? job_.store_endpoint.address : job_.nodes.local_addr;
  if (name.empty() || rdzv::parse_numeric(name)) {
    address_ = name;
    return done({});
  }
  if (const auto known = rdzv::addresses_without_lookup(name)) {
    address_ = known->front();
    return done({});
  }
  lookup_ = rdzv::look_up_name(
      io_, name, [this, name, done = std::move(done)](Result<std::vector<std::string>> addresses) {
        if (!addresses) {
          return done(fail(ErrorCode::kNotFound, "the host name " + name + " has no address (" +
                                                     addresses.error().message +
                                                     "); give an address of this machine"));
        }
        address_ = addresses->front();
        done({});
      });
}

StoreResult RoundStore::open(Round round, const std::string& own) {
  const auto port = open_at(address_.empty() ? own : address_);
  if (port) return {round, *port, {}};
  StoreResult result{round, 0,
                     "cannot open the store that workers meet at: " + port.error().to_string()};
  if (port.error().code != ErrorCode::kResourceExhausted) {
    result.error += "; give another --master-port, or none and get a free one";
  }
  return result;
}

Result<std::uint16_t> RoundStore::open_at(const std::string& address) {
  const StoreEndpoint& place = job_.store_endpoint;
  std::optional<rdzv::PortRange> range;
  if (place.first_port != place.last_port) range = {place.first_port, place.last_port};
  if (!place.agent_hosts_store) {
    auto reserved =
        rdzv::reserve_port({.address = address, .port = place.first_port, .port_range = range});
    if (!reserved) return fail(std::move(reserved.error()));
    reserved_port_ = std::move(*reserved);
    return reserved_port_->bound.port;
  }
  idle_ = std::make_unique<Idle>(io_);
  idle_->options.memory_limit = place.store_memory;
  idle_->options.log = log_;
  idle_->options.listens = !job_.nodes.shares_store_port;
  if (job_.nodes.shares_store_port) return job_.nodes.leader.endpoint.port;
  auto port = listen({.address = address, .port = place.first_port, .port_range = range});
  if (!port) idle_.reset();
  return port;
}

Result<std::uint16_t> RoundStore::listen(rdzv::ListenOptions options) {
  auto listener = rdzv::open_listener(options);
  // With NAT --local-addr may not be an address of this host: then listen on all addresses.
  const bool may_be_translated = !job_.nodes.is_alone() && !address_.empty();
  if (!listener && may_be_translated && listener.error().code != ErrorCode::kAddressInUse) {
    options.address = "::";
    listener = rdzv::open_listener(options);
  }
  if (!listener) return fail(std::move(listener.error()));
  idle_->listener.assign(listener->socket.release());
  idle_->listener.async_wait(boost::asio::posix::descriptor_base::wait_read,
                             idle_->lifetime.guard([this](const boost::system::error_code& ec) {
                               if (!ec) serve();
                             }));
  return listener->bound.port;
}

void RoundStore::serve() {
  if (idle_->listener.is_open()) idle_->options.listen_fd = idle_->listener.release();
  auto server = rdzv::StoreServer::start(idle_->options);
  idle_.reset();
  if (!server) throw std::runtime_error(server.error().to_string());
  server_ = std::move(*server);
}

void RoundStore::adopt(rdzv::UniqueFd client, std::string received) {
  if (idle_) serve();
  if (server_) server_->adopt(std::move(client), std::move(received));
}

void RoundStore::begin_generation(std::uint32_t generation) {
  if (!server_) return;
  server_->erase_if([generation](std::string_view name) {
    // worker_lib names the groups of generation g so; clients put the slash before every key.
    constexpr std::string_view kPrefix = "/ddprun@";
    if (!name.starts_with(kPrefix)) return false;
    std::uint32_t its = generation;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), its);
    return its < generation - 1;
  });
}

std::optional<StoreStatus> RoundStore::status() const {
  if (idle_) return StoreStatus{};
  if (!server_) return std::nullopt;
  const rdzv::StoreStats stats = server_->stats();
  return StoreStatus{stats.requests, stats.connections, stats.keys, stats.memory_bytes};
}

}  // namespace ddprun::agent
