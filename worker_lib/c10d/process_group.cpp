#include "worker_lib/c10d/process_group.h"

#include <unistd.h>

#include <filesystem>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "ddprun/devices.h"
#include "ddprun/log.h"
#include "worker_lib/c10d/client_store.h"
#include "worker_lib/c10d/error_text.h"
#include "worker_lib/c10d/gloo_backend.h"
#include "worker_lib/c10d/gloo_interrupt.h"
#include "worker_lib/c10d/nccl_module.h"
#include "worker_lib/c10d/shm_backend.h"
#include "worker_lib/c10d/shm_nodes_backend.h"
#include "worker_lib/process/message_text.h"
#include "worker_lib/shm/shm_join.h"

namespace ddprun {
namespace {

using c10d::ProcessGroup;

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
  if (!client) throw Failure(std::move(client.error()));
  return c10::make_intrusive<ClientStore>(*std::move(client), std::move(hosted));
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
        "CUDA_VISIBLE_DEVICES hides every device; use the backend gloo to train on the CPU");
  }
  load_nccl_module();
  require_cuda(gpus);
  if (wanted != Backend::kGloo) require_nccl();
  return wanted == Backend::kGloo ? Backend::kGloo : Backend::kNccl;
}

ProcessGroupOptions options_for(const Environment& environment) {
  ProcessGroupOptions options;
  options.node = environment.rank - environment.local_rank;
  options.is_one_node = environment.local_world_size == environment.world_size;
  options.master_addr = environment.master_addr;
  if (!environment.store_file.empty()) {
    options.place = environment.store_file;
  } else if (environment.master_addr.empty()) {
    options.place = "the store that was given";
  } else {
    options.place = environment.master_addr + ":" + std::to_string(environment.master_port);
  }
  return options;
}

namespace {

shm::StoreAccess access_to(const c10::intrusive_ptr<c10d::Store>& store) {
  return {
      .set = [store](const std::string& key, const std::string& value) { store->set(key, value); },
      .get =
          [store](const std::vector<std::string>& keys) {
            std::vector<std::string> values;
            if (!store->hasExtendedApi()) {
              for (const auto& key : keys) values.push_back(store->get_to_str(key));
              return values;
            }
            for (const auto& bytes : store->multiGet(keys)) {
              values.emplace_back(bytes.begin(), bytes.end());
            }
            return values;
          }};
}

}  // namespace

// Nothing where Gloo has to do: alone, or where the ranks cannot share memory.
c10::intrusive_ptr<c10d::Backend> GroupMaker::make_shm(const c10::intrusive_ptr<c10d::Store>& store,
                                                       int rank,
                                                       const std::vector<int>& global_ranks,
                                                       std::shared_ptr<GroupRecord> record) const {
  if (global_ranks.size() == 1) return {};
  if (!watch_) watch_ = std::make_shared<shm::PeerWatch>();
  shm::Joined joined;
  try {
    joined = shm::join({.store = access_to(store),
                        .identity = shm::identity_of_this_process(options_.node),
                        .rank = rank,
                        .global_ranks = global_ranks,
                        .bytes_per_rank = options_.shared_bytes_per_rank,
                        .patience = {std::chrono::steady_clock::now() + options_.join_timeout,
                                     options_.stop_joining}},
                       watch_);
  } catch (const Failure& failure) {
    if (!options_.may_fall_back) throw;
    has_fallen_back_ = true;
    if (rank == 0) log::warning("no shared memory, Gloo instead: ", failure.error().message);
  }
  if (!joined.node) return {};
  const auto& nodes = joined.placement.nodes;
  if (nodes.size() == 1) {
    return c10::make_intrusive<ShmBackend>(joined.node, options_.timeout, std::move(record));
  }
  c10::intrusive_ptr<c10d::Backend> leaders;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    if (nodes[node].front() != rank) continue;
    leaders = c10::make_intrusive<GlooBackend>(
        c10::make_intrusive<c10d::PrefixStore>("leaders", store), static_cast<int>(node),
        static_cast<int>(nodes.size()), options_);
  }
  return c10::make_intrusive<NodesBackend>(
      std::move(joined), std::move(leaders), c10::make_intrusive<c10d::PrefixStore>("all", store),
      rank, static_cast<int>(global_ranks.size()), options_, std::move(record));
}

// All members have been connected over Gloo: what fails now is NCCL's own.
c10::intrusive_ptr<c10d::Backend> GroupMaker::make_nccl(
    const std::string& name, int rank, const std::vector<int>& global_ranks) const {
  if (options_.before_nccl) options_.before_nccl();
  try {
    return make_nccl_backend(c10::make_intrusive<c10d::PrefixStore>(name + "/nccl", store_),
                             {.name = name,
                              .rank = rank,
                              .global_ranks = {global_ranks.begin(), global_ranks.end()},
                              .gpu = options_.device.index(),
                              .before_call = options_.before_call},
                             options_.timeout);
  } catch (const std::exception& error) {
    throw Failure(ErrorCode::kUnavailable,
                  "NCCL could not connect the GPUs of the ranks: each needs a GPU of its own; "
                  "NCCL_DEBUG=INFO says more (" +
                      error_line(error) + ")");
  }
}

c10::intrusive_ptr<ProcessGroup> GroupMaker::connect(const std::string& name, int rank,
                                                     const std::vector<int>& global_ranks) const {
  const int size = static_cast<int>(global_ranks.size());
  auto group = c10::make_intrusive<ProcessGroup>(store_, rank, size);
  group->setGroupName(name);
  // Before its backends are set, which take it from here.
  if (options_.backend == Backend::kNccl) group->setBoundDeviceId(options_.device);
  // A group of one never waits.
  std::shared_ptr<GroupRecord> record;
  auto all = CollectiveRecord::of_this_process();
  if ((all || options_.before_call) && size > 1) {
    std::function<void()> before_call;
    if (options_.before_call) {
      before_call = [its = options_.before_call] { its(CallKind::kWaited); };
    }
    record =
        std::make_shared<GroupRecord>(std::move(all), name, rank, size, std::move(before_call));
  }
  if (options_.backend == Backend::kShm) {
    const auto shared = make_shm(c10::make_intrusive<c10d::PrefixStore>(name + "/shm", store_),
                                 rank, global_ranks, record);
    if (shared) {
      group->setBackend(c10::DeviceType::CPU, ProcessGroup::BackendType::CUSTOM, shared);
      group->setDefaultBackend(ProcessGroup::BackendType::CUSTOM);
      return group;
    }
  }
  // Values on the CPU (a file's bytes, a metric) travel through Gloo also where tensors go through
  // NCCL.
  const auto gloo = c10::make_intrusive<GlooBackend>(
      c10::make_intrusive<c10d::PrefixStore>(name + "/gloo", store_), rank, size, options_,
      std::move(record));
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

void close_connections(ProcessGroup& group) { group.getBackend(c10::DeviceType::CPU)->abort(); }

void interrupt(const std::vector<c10::intrusive_ptr<ProcessGroup>>& groups) {
  if (detail::interrupt_gloo != nullptr) detail::interrupt_gloo("the group is made anew");
  for (const auto& group : groups) close_connections(*group);
}

bool can_be_interrupted(ProcessGroup& group) {
  const auto backend = group.getBackend(c10::DeviceType::CPU);
  if (dynamic_cast<GlooBackend*>(backend.get()) == nullptr) return true;
  return detail::can_interrupt_gloo != nullptr && detail::can_interrupt_gloo();
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
    fail(name, global_ranks, error_line(error));
  }
}

void GroupMaker::fail(const std::string& name, const std::vector<int>& global_ranks,
                      const std::string& error) const {
  std::vector<int> missing;
  try {
    store_->setTimeout(std::chrono::seconds(1));
    for (const int rank : global_ranks) {
      if (!store_->check({arrival_key(name, rank)})) missing.push_back(rank);
    }
  } catch (const std::exception&) {
    throw Failure(ErrorCode::kUnavailable,
                  "could not join the group, and the store where the ranks meet has gone: the "
                  "launcher or rank 0, whichever serves it, has ended (" +
                      error + ")");
  }
  const std::string wait = seconds_text(options_.join_timeout);
  if (!missing.empty()) {
    throw Failure(ErrorCode::kTimeout,
                  ranks_text(missing) + " did not come to " + options_.place + " within " + wait +
                      ": are all ranks started, with the same place to meet and the same world "
                      "size? (" +
                      error + ")");
  }
  throw Failure(
      ErrorCode::kUnavailable,
      "all ranks came, but could not connect to each other within " + wait +
          ": can every node reach the others' addresses? GLOO_SOCKET_IFNAME chooses the "
          "network interface" +
          (options_.place.starts_with('/') ? "; and was " + options_.place + " there before?"
                                           : std::string()) +
          " (" + error + ")");
}

}  // namespace ddprun
