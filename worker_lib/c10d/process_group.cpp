#include "worker_lib/c10d/process_group.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "ddprun/devices.h"
#include "ddprun/log.h"
#include "worker_lib/c10d/client_store.h"
#include "worker_lib/c10d/nccl_module.h"
#include "worker_lib/c10d/shm_backend.h"
#include "worker_lib/c10d/shm_nodes_backend.h"
#include "worker_lib/c10d/words.h"
#include "worker_lib/shm/shm_join.h"

namespace ddprun {
namespace {

using c10d::ProcessGroup;
using c10d::ProcessGroupGloo;

class ClosableGloo : public ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  void close() {
    for (const auto& context : contexts_) context->closeConnections();
  }
};

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

// What FileStore tries for minutes in silence.
void check_store_file(const std::string& path) {
  const auto refuse = [&path](const std::string& what) {
    throw UsageError("the ranks cannot meet in the file " + path + ": " + what);
  };
  std::error_code error;
  const auto folder = std::filesystem::absolute(path, error).parent_path();
  if (std::filesystem::is_directory(path, error)) refuse("it is a folder; name a file in it");
  if (!std::filesystem::is_directory(folder, error)) {
    refuse("there is no folder " + folder.string());
  }
  const bool is_there = std::filesystem::exists(path, error);
  if (::access(is_there ? path.c_str() : folder.c_str(), R_OK | W_OK) != 0) {
    refuse((is_there ? "it" : "its folder") + std::string(" cannot be written"));
  }
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
  if (!environment.store_file.empty()) {
    check_store_file(environment.store_file);
    return c10::make_intrusive<c10d::FileStore>(environment.store_file, environment.world_size);
  }
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

Backend backend_from(const std::string& name) {
  if (name == "auto") return Backend::kAuto;
  if (name == "gloo" || name == "cpu:gloo") return Backend::kGloo;
  if (name == "nccl" || name == "cuda:nccl" || name == "cpu:gloo,cuda:nccl" ||
      name == "cuda:nccl,cpu:gloo") {
    return Backend::kNccl;
  }
  if (name == "shm" || name == "cpu:shm") return Backend::kShm;
  throw UsageError("there is no backend '" + name +
                   "': use auto, gloo, nccl, shm or cpu:gloo,cuda:nccl");
}

Backend choose_backend(Backend wanted, const std::optional<torch::Device>& device) {
  if (wanted == Backend::kShm) return wanted;
  const Backend for_cpu = wanted == Backend::kAuto ? Backend::kShm : Backend::kGloo;
  const bool is_on_cpu = device ? device->is_cpu() : wanted == Backend::kGloo;
  if (is_on_cpu && wanted != Backend::kNccl) return for_cpu;
  const int gpus = count_gpus();
  if (!device && wanted == Backend::kAuto && gpus == 0) return for_cpu;
  if (gpus == 0) {
    throw UsageError(
        std::string(wanted == Backend::kNccl ? "the backend nccl" : "the device " + device->str()) +
        " needs a GPU and this process sees none: there is no NVIDIA driver, or "
        "CUDA_VISIBLE_DEVICES hides every device; use --backend gloo to train on the CPU");
  }
  load_nccl_module();
  require_cuda(gpus);
  return wanted == Backend::kGloo ? Backend::kGloo : Backend::kNccl;
}

GroupMaker::GroupMaker(Environment environment, c10::intrusive_ptr<c10d::Store> store,
                       ProcessGroupOptions options)
    : environment_(std::move(environment)), store_(std::move(store)), options_(options) {
  if (options_.backend == Backend::kShm && environment_.world_size > 1) {
    watch_ = value_or_throw(shm::PeerWatch::start());
  }
}

c10::intrusive_ptr<c10d::Backend> GroupMaker::make_gloo(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) const {
  auto gloo_options = ProcessGroupGloo::Options::create(options_.join_timeout);
  gloo_options->devices.push_back(gloo_device(environment_));
  auto backend = c10::make_intrusive<ClosableGloo>(store, rank, size, gloo_options);
  backend->setTimeout(options_.timeout);  // the constructor connected everybody under the other one
  return backend;
}

namespace {

shm::Exchange exchange_over(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto text_of = [](const std::vector<std::uint8_t>& bytes) {
    return std::string(bytes.begin(), bytes.end());
  };
  return {.set =
              [store](const std::string& key, const std::string& value) {
                store->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
              },
          .get =
              [store, text_of](const std::vector<std::string>& keys) {
                std::vector<std::string> values;
                if (store->hasExtendedApi()) {
                  for (const auto& bytes : store->multiGet(keys)) values.push_back(text_of(bytes));
                } else {
                  for (const auto& key : keys) values.push_back(text_of(store->get(key)));
                }
                return values;
              }};
}

}  // namespace

// Nothing where Gloo has to do: alone, or where the ranks cannot share memory.
c10::intrusive_ptr<c10d::Backend> GroupMaker::make_shm(const c10::intrusive_ptr<c10d::Store>& store,
                                                       int rank,
                                                       const std::vector<int>& global_ranks) const {
  if (global_ranks.size() == 1) return {};
  auto joined = shm::join(
      {.exchange = exchange_over(store),
       .identity = shm::identity_of_this_process(environment_.rank - environment_.local_rank),
       .rank = rank,
       .global_ranks = global_ranks,
       .bytes_per_rank = options_.shared_bytes_per_rank,
       .until = std::chrono::steady_clock::now() + options_.join_timeout},
      watch_);
  if (!joined) {
    if (rank == 0) log::warning("no shared memory, Gloo instead: ", joined.error().message);
    return {};
  }
  const auto& nodes = joined->placement.nodes;
  if (!joined->node) return {};
  if (nodes.size() == 1) return c10::make_intrusive<ShmBackend>(joined->node, options_.timeout);
  c10::intrusive_ptr<c10d::Backend> leaders;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    if (nodes[node].front() != rank) continue;
    leaders = make_gloo(c10::make_intrusive<c10d::PrefixStore>("leaders", store),
                        static_cast<int>(node), static_cast<int>(nodes.size()));
  }
  auto all = make_gloo(c10::make_intrusive<c10d::PrefixStore>("all", store), rank,
                       static_cast<int>(global_ranks.size()));
  return c10::make_intrusive<NodesBackend>(
      std::move(*joined), rank, std::move(leaders), std::move(all),
      [](c10d::Backend& gloo) { static_cast<ClosableGloo&>(gloo).close(); }, options_.timeout);
}

// All members have been connected over Gloo: what fails now is NCCL's own.
c10::intrusive_ptr<c10d::Backend> GroupMaker::make_nccl(
    const std::string& name, int rank, const std::vector<int>& global_ranks) const {
  try {
    return make_nccl_backend(c10::make_intrusive<c10d::PrefixStore>(name + "/nccl", store_),
                             {.group = name,
                              .rank = rank,
                              .global_ranks = {global_ranks.begin(), global_ranks.end()},
                              .gpu = options_.device.index()},
                             options_.timeout);
  } catch (const std::exception& error) {
    throw Failure(ErrorCode::kUnavailable,
                  "NCCL could not connect the GPUs of the ranks: each needs a GPU of its own; "
                  "NCCL_DEBUG=INFO says more (" +
                      words_of(error) + ")");
  }
}

c10::intrusive_ptr<ProcessGroup> GroupMaker::connect(const std::string& name, int rank,
                                                     const std::vector<int>& global_ranks) const {
  const int size = static_cast<int>(global_ranks.size());
  auto group = c10::make_intrusive<ProcessGroup>(store_, rank, size);
  group->setGroupName(name);
  // Before its backends are set, which take it from here.
  if (options_.backend == Backend::kNccl) group->setBoundDeviceId(options_.device);
  if (options_.backend == Backend::kShm) {
    const auto shared =
        make_shm(c10::make_intrusive<c10d::PrefixStore>(name + "/shm", store_), rank, global_ranks);
    if (shared) {
      group->setBackend(c10::DeviceType::CPU, ProcessGroup::BackendType::CUSTOM, shared);
      group->setDefaultBackend(ProcessGroup::BackendType::CUSTOM);
      return group;
    }
  }
  // Values on the CPU (a file's bytes, a metric) travel through Gloo also where tensors go through
  // NCCL.
  auto gloo = make_gloo(c10::make_intrusive<c10d::PrefixStore>(name + "/gloo", store_), rank, size);
  group->setBackend(c10::DeviceType::CPU, ProcessGroup::BackendType::GLOO, gloo);
  group->setDefaultBackend(ProcessGroup::BackendType::GLOO);
  if (options_.backend == Backend::kNccl) {
    group->setBackend(c10::DeviceType::CUDA, ProcessGroup::BackendType::NCCL,
                      make_nccl(name, rank, global_ranks));
    group->setDefaultBackend(ProcessGroup::BackendType::NCCL);
  } else if (options_.device.is_cuda()) {
    group->setBackend(c10::DeviceType::CUDA, ProcessGroup::BackendType::GLOO, gloo);
  }
  return group;
}

void shut_down(ProcessGroup& group) {
  for (const c10::Device device : group.getDeviceTypes()) {
    if (device.is_cuda()) group.getBackend(device.type())->shutdown();
  }
}

void close_connections(ProcessGroup& group) {
  const auto backend = group.getBackend(c10::DeviceType::CPU);
  if (auto* const gloo = dynamic_cast<ClosableGloo*>(backend.get())) gloo->close();
  if (auto* const shared = dynamic_cast<ShmBackend*>(backend.get())) shared->close();
  if (auto* const nodes = dynamic_cast<NodesBackend*>(backend.get())) nodes->close();
}

namespace {

std::string arrival_key(const std::string& name, int global_rank) {
  return name + "/arrived/" + std::to_string(global_rank);
}

}  // namespace

c10::intrusive_ptr<ProcessGroup> GroupMaker::make(const std::string& name, int rank,
                                                  const std::vector<int>& global_ranks) const {
  try {
    store_->setTimeout(options_.join_timeout);
    if (global_ranks.size() > 1) {
      store_->set(arrival_key(name, global_ranks[static_cast<std::size_t>(rank)]),
                  std::vector<std::uint8_t>{1});
    }
    return connect(name, rank, global_ranks);
  } catch (const Failure&) {
    throw;
  } catch (const std::exception& error) {
    fail(name, global_ranks, words_of(error));
  }
}

void GroupMaker::fail(const std::string& name, const std::vector<int>& global_ranks,
                      const std::string& words) const {
  constexpr std::size_t kMostNamed = 8;
  std::string missing;
  std::size_t count = 0;
  try {
    store_->setTimeout(std::chrono::seconds(1));
    for (const int rank : global_ranks) {
      if (store_->check({arrival_key(name, rank)})) continue;
      if (++count > kMostNamed) continue;
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
  } catch (const std::exception&) {
    throw Failure(ErrorCode::kUnavailable,
                  "could not join the group, and the store where the ranks meet has gone: the "
                  "launcher or rank 0, whichever serves it, has ended (" +
                      words + ")");
  }
  std::ostringstream wait;
  wait << static_cast<double>(options_.join_timeout.count()) / 1000 << " s";
  std::string place;
  if (!environment_.store_file.empty()) {
    place = " to " + environment_.store_file;
  } else if (!environment_.master_addr.empty()) {
    place = " to " + environment_.master_addr + ":" + std::to_string(environment_.master_port);
  }
  if (count > 0) {
    if (count > kMostNamed) missing += " and " + std::to_string(count - kMostNamed) + " more";
    throw Failure(ErrorCode::kTimeout,
                  (count == 1 ? "rank " : "ranks ") + missing + " did not come" + place +
                      " within " + wait.str() +
                      ": are all ranks started, with the same place to meet and the same world "
                      "size? (" +
                      words + ")");
  }
  throw Failure(ErrorCode::kUnavailable,
                "all ranks came, but could not connect to each other within " + wait.str() +
                    ": can every node reach the others' addresses? GLOO_SOCKET_IFNAME chooses the "
                    "network interface" +
                    (environment_.store_file.empty()
                         ? std::string()
                         : "; and was " + environment_.store_file + " there before?") +
                    " (" + words + ")");
}

}  // namespace ddprun
