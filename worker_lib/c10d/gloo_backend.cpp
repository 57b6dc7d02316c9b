#include "worker_lib/c10d/gloo_backend.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace ddprun {
namespace {

using c10d::ProcessGroupGloo;

// The address of this machine from which `host` is reached, as text; empty if that cannot be told.
// Asks the routing table (a datagram socket sends nothing on connect), not the name of this
// machine, whose look-up, Gloo's default, can take seconds.
std::string local_address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return {};
  std::string text;
  for (const addrinfo* at = found; at != nullptr && text.empty(); at = at->ai_next) {
    const int fd = ::socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    char name[NI_MAXHOST];
    if (::connect(fd, at->ai_addr, at->ai_addrlen) == 0 &&
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), size, name, sizeof name, nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      text = name;
    }
    ::close(fd);
  }
  freeaddrinfo(found);
  return text;
}

std::shared_ptr<::gloo::transport::Device> device_for(const ProcessGroupOptions& options) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) {
    return ProcessGroupGloo::createDeviceForInterface(interface);
  }
  if (options.is_one_node) return ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  const std::string address = local_address_towards(options.master_addr);
  if (address.empty()) return ProcessGroupGloo::createDefaultDevice();
  return ProcessGroupGloo::createDeviceForHostname(address);
}

c10::intrusive_ptr<ProcessGroupGloo::Options> gloo_options(const ProcessGroupOptions& options) {
  auto for_gloo = ProcessGroupGloo::Options::create(options.join_timeout);
  for_gloo->devices.push_back(device_for(options));
  return for_gloo;
}

}  // namespace

// All are connected within the one time limit, and from then on there is the other.
GlooBackend::GlooBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                         const ProcessGroupOptions& options)
    : ProcessGroupGloo(store, rank, size, gloo_options(options)) {
  ProcessGroupGloo::setTimeout(options.timeout);
}

void GlooBackend::abort() {
  for (const auto& context : contexts_) context->closeConnections();
}

torch::Tensor widened_for_gloo(const torch::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kInt16:
    case torch::kUInt16:
      return tensor.to(torch::kInt32);
    case torch::kUInt32:
      return tensor.to(torch::kInt64);
    default:
      return tensor;
  }
}

}  // namespace ddprun
