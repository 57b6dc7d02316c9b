#include "worker_lib/src/process_group.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "worker_lib/src/client_store.h"
#include "worker_lib/src/nccl_module.h"

namespace ddprun {
namespace {

using c10d::ProcessGroup;
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

std::shared_ptr<::gloo::transport::Device> gloo_device(const Environment& environment) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) {
    return ProcessGroupGloo::createDeviceForInterface(interface);
  }
  if (environment.local_world_size == environment.world_size) {
    return ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  }
  const std::string address = local_address_towards(environment.master_addr);
  if (address.empty()) return ProcessGroupGloo::createDefaultDevice();
  return ProcessGroupGloo::createDeviceForHostname(address);
}

c10::intrusive_ptr<c10d::Store> host_store(const Environment& environment,
                                           std::chrono::milliseconds join_timeout) {
  c10d::TCPStoreOptions options;
  options.port = environment.master_port;
  options.isServer = true;
  options.waitWorkers = false;
  options.timeout = join_timeout;
  try {
    return c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
  } catch (const c10::Error& error) {
    throw UsageError(
        "rank 0 could not open the group's store at port " +
        std::to_string(environment.master_port) +
        ": choose another MASTER_PORT if a program holds it, and a MASTER_ADDR of this "
        "machine (" +
        error.what_without_backtrace() + ")");
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> make_store(const Environment& environment,
                                           std::chrono::milliseconds join_timeout) {
  if (environment.world_size == 1) return c10::make_intrusive<c10d::HashStore>();
  c10::intrusive_ptr<c10d::Store> hosted;
  if (environment.rank == 0 && !environment.agent_hosts_store) {
    hosted = host_store(environment, join_timeout);
  }
  auto client =
      rdzv::StoreClient::connect({.server = {environment.master_addr, environment.master_port},
                                  .connect_timeout = join_timeout,
                                  .timeout = join_timeout});
  return c10::make_intrusive<ClientStore>(value_or_throw(std::move(client)), std::move(hosted));
}

Backend choose_backend(Backend wanted) {
  if (wanted == Backend::kGloo) return Backend::kGloo;
  const int gpus = visible_gpus();
  if (wanted == Backend::kAuto && gpus == 0) return Backend::kGloo;
  if (gpus == 0) {
    throw UsageError(
        "the backend nccl needs a GPU and this process sees none: there is no NVIDIA driver, or "
        "CUDA_VISIBLE_DEVICES hides every device; use --backend gloo to train on the CPU");
  }
  load_nccl_module();
  return Backend::kNccl;
}

GroupMaker::GroupMaker(Environment environment, c10::intrusive_ptr<c10d::Store> store,
                       Backend backend, torch::Device device, const ContextOptions& options)
    : environment_(std::move(environment)),
      store_(std::move(store)),
      backend_(backend),
      device_(device),
      options_(options) {}

c10::intrusive_ptr<c10d::Backend> GroupMaker::make_gloo(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) const {
  auto gloo_options = ProcessGroupGloo::Options::create(options_.join_timeout);
  gloo_options->devices.push_back(gloo_device(environment_));
  auto backend = c10::make_intrusive<ProcessGroupGloo>(store, rank, size, gloo_options);
  backend->setTimeout(options_.timeout);  // the constructor connected everybody under the other one
  return backend;
}

c10::intrusive_ptr<ProcessGroup> GroupMaker::make(const std::string& name, int rank,
                                                  int size) const {
  auto group = c10::make_intrusive<ProcessGroup>(store_, rank, size);
  group->setGroupName(name);
  // Values on the CPU (a file's bytes, a metric) travel through Gloo also where tensors go through
  // NCCL.
  store_->setTimeout(options_.join_timeout);
  auto gloo = make_gloo(c10::make_intrusive<c10d::PrefixStore>(name + "/gloo", store_), rank, size);
  group->setBackend(c10::DeviceType::CPU, ProcessGroup::BackendType::GLOO, gloo);
  group->setDefaultBackend(ProcessGroup::BackendType::GLOO);
  if (backend_ == Backend::kNccl) {
    auto nccl = make_nccl_backend(c10::make_intrusive<c10d::PrefixStore>(name + "/nccl", store_),
                                  rank, size, options_.timeout);
    group->setBackend(c10::DeviceType::CUDA, ProcessGroup::BackendType::NCCL, nccl);
    group->setDefaultBackend(ProcessGroup::BackendType::NCCL);
    group->setBoundDeviceId(device_);
  }
  return group;
}

}  // namespace ddprun
