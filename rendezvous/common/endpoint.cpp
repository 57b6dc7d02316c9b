#include "rendezvous/common/endpoint.h"

#include "rendezvous/common/parse_number.h"

namespace ddprun::rdzv {
namespace {

tl::unexpected<Error> not_an_endpoint(std::string_view text, std::string_view why) {
  return fail(ErrorCode::kInvalidArgument,
              "'" + std::string(text) + "' is not HOST:PORT: " + std::string(why));
}

}  // namespace

std::string Endpoint::to_string() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string to_string(const std::vector<Endpoint>& endpoints) {
  std::string text;
  for (const Endpoint& each : endpoints) text += (text.empty() ? "" : ",") + each.to_string();
  return text;
}

Result<Endpoint> parse_endpoint(std::string_view text) {
  if (const auto scheme = text.find("://"); scheme != std::string_view::npos) {
    return not_an_endpoint(text, "leave " + std::string(text.substr(0, scheme + 3)) + " out");
  }
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return not_an_endpoint(text, "there is no ':'");
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return not_an_endpoint(text, "an IPv6 address needs brackets, as in [::1]:29400");
  }
  if (host.empty()) return not_an_endpoint(text, "the host is empty");
  const auto port = parse_number<std::uint16_t>(digits);
  if (!port) return not_an_endpoint(text, "the port must be a number from 0 to 65535");
  return Endpoint{std::string(host), *port};
}

}  // namespace ddprun::rdzv
