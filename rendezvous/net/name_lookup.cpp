#include "rendezvous/net/name_lookup.h"

#include <netdb.h>

#include <algorithm>
#include <utility>

#include "rendezvous/net/call_attempt.h"
#include "rendezvous/net/socket_address.h"

namespace ddprun::rdzv {
namespace {

Result<std::vector<std::string>> look_up(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &list); code != 0) {
    return fail(ErrorCode::kNotFound, ::gai_strerror(code));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    const SocketAddress address = socket_address(each->ai_addr);
    if (!address.is_ip()) continue;
    std::string text = numeric_host(address);
    if (std::ranges::find(addresses, text) == addresses.end()) addresses.push_back(std::move(text));
  }
  if (addresses.empty()) return fail(ErrorCode::kNotFound, "it has no IP address");
  return addresses;
}

}  // namespace

std::unique_ptr<Attempt> look_up_name(boost::asio::io_context& io, const std::string& host,
                                      Transport::LookedUp done) {
  return std::make_unique<CallAttempt<std::vector<std::string>>>(
      io, "ddprun-lookup",
      [host] {
        auto addresses = look_up(host);
        if (!addresses) addresses.error().message.insert(0, "its name is not known: ");
        return addresses;
      },
      std::move(done));
}

Result<std::vector<std::string>> addresses_of(const std::string& host) {
  if (auto known = addresses_without_lookup(host)) return *std::move(known);
  return look_up(host);
}

std::optional<std::vector<std::string>> addresses_without_lookup(const std::string& host) {
  if (host == "localhost") return {{"127.0.0.1"}};
  if (const auto numeric = parse_numeric(host)) return {{numeric_host(*numeric)}};
  return std::nullopt;
}

}  // namespace ddprun::rdzv
