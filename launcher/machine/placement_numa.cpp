// The NUMA part of placement: which CPUs are near a GPU, as /sys describes the machine. The modes
// and tie-breaks are torchrun's four, but applied by sched_setaffinity instead of numactl.
#include <algorithm>
#include <map>
#include <utility>

#include "launcher/machine/placement.h"
#include "launcher/machine/placement_files.h"

namespace ddprun::agent {
namespace {

using Cpus = std::vector<int>;

Cpus common_to(const Cpus& a, const Cpus& b) {
  Cpus both;
  std::ranges::set_intersection(a, b, std::back_inserter(both));
  return both;
}

std::optional<Cpus> cpus_in(const std::string& path) {
  const std::string text = file_text(path);
  return text.empty() ? std::nullopt : parse_cpu_list(text);
}

// What /sys says about one machine; what it does not say is an Error.
class Topology {
 public:
  explicit Topology(const Machine& machine)
      : system_(machine.root + "/sys"), allowed_(allowed_cpus(machine)) {}

  Result<int> node_of(const Gpu& gpu) const {
    if (gpu.pci_address.empty()) {
      return fail(ErrorCode::kNotFound, "the driver does not tell where a GPU is plugged in");
    }
    const std::string path = system_ + "/bus/pci/devices/" + gpu.pci_address + "/numa_node";
    const std::string text = file_text(path);
    if (text.empty()) return fail(ErrorCode::kNotFound, path + " cannot be read");
    // -1: a machine with a single node.
    return number(trimmed(text)).value_or(0);
  }

  Result<Cpus> cpus_of_node(int node) const {
    const std::string path = node_directory() + "/node" + std::to_string(node) + "/cpulist";
    const auto cpus = cpus_in(path);
    if (!cpus) return fail(ErrorCode::kNotFound, path + " cannot be read");
    Cpus ours = common_to(*cpus, allowed_);
    if (ours.empty()) {
      return fail(ErrorCode::kResourceExhausted,
                  "none of the CPUs of NUMA node " + std::to_string(node) + " (" +
                      to_cpu_list(*cpus) + ") may be used by this process (" +
                      to_cpu_list(allowed_) + ")");
    }
    return ours;
  }

  Result<int> socket_of(int cpu) const {
    const std::string path = cpu_directory(cpu) + "/topology/physical_package_id";
    const auto socket = number_in(path);
    if (!socket) return fail(ErrorCode::kNotFound, path + " cannot be read");
    return *socket;
  }

  Result<Cpus> cpus_of_socket(int socket) const {
    Cpus cpus;
    for (const std::string& name : names_in(node_directory())) {
      const auto node =
          name.starts_with("node") ? number(std::string_view(name).substr(4)) : std::nullopt;
      if (!node) continue;
      // A node whose CPUs are all forbidden, or that has only memory, adds nothing.
      const auto of_node = cpus_of_node(*node);
      if (!of_node) continue;
      const auto its_socket = socket_of(of_node->front());
      if (!its_socket) return fail(its_socket.error());
      if (*its_socket == socket) cpus.insert(cpus.end(), of_node->begin(), of_node->end());
    }
    std::ranges::sort(cpus);
    return cpus;
  }

  // The lowest CPU of the core that `cpu` is a hardware thread of; it identifies the core.
  Result<int> core_of(int cpu) const {
    return first_in(cpu_directory(cpu) + "/topology/thread_siblings_list");
  }

  // The lowest CPU of those that share the last level of data cache with `cpu`.
  Result<int> cache_of(int cpu) const {
    const std::string directory = cpu_directory(cpu) + "/cache";
    int highest = -1;
    std::string shared_by;
    for (const std::string& name : names_in(directory)) {
      const std::string cache = directory + "/" + name;
      const auto level = number_in(cache + "/level");
      const std::string type = file_text(cache + "/type");
      if (!level || type.empty() || trimmed(type) == "Instruction" || *level <= highest) continue;
      highest = *level;
      shared_by = cache + "/shared_cpu_list";
    }
    if (shared_by.empty()) return fail(ErrorCode::kNotFound, directory + " tells of no cache");
    return first_in(shared_by);
  }

 private:
  std::string node_directory() const { return system_ + "/devices/system/node"; }
  std::string cpu_directory(int cpu) const {
    return system_ + "/devices/system/cpu/cpu" + std::to_string(cpu);
  }
  static Result<int> first_in(const std::string& path) {
    const auto cpus = cpus_in(path);
    if (!cpus || cpus->empty()) return fail(ErrorCode::kNotFound, path + " cannot be read");
    return cpus->front();
  }

  std::string system_;
  Cpus allowed_;
};

// The node's CPUs by core or by cache, each group under its lowest CPU.
Result<std::map<int, Cpus>> grouped(const Cpus& cpus, const Topology& topology,
                                    Result<int> (Topology::*group_of)(int) const) {
  std::map<int, Cpus> groups;
  for (const int cpu : cpus) {
    const auto group = (topology.*group_of)(cpu);
    if (!group) return fail(group.error());
    groups[*group].push_back(cpu);
  }
  return groups;
}

// `place`: the GPU's position among the `sharers` GPUs of its node.
Result<Cpus> share_of_cores(const Cpus& node_cpus, const Topology& topology, std::size_t place,
                            std::size_t sharers) {
  const auto cores = grouped(node_cpus, topology, &Topology::core_of);
  if (!cores) return fail(cores.error());
  const std::size_t each = cores->size() / sharers;
  const std::size_t left_over = cores->size() % sharers;
  if (each < 1) {
    return fail(ErrorCode::kResourceExhausted,
                std::to_string(cores->size()) + " usable cores cannot be shared by the " +
                    std::to_string(sharers) + " GPUs of one NUMA node; try mode node");
  }
  const std::size_t first = place * each + std::min(place, left_over);
  const std::size_t count = each + (place < left_over ? 1 : 0);
  Cpus share;
  auto core = std::next(cores->begin(), static_cast<std::ptrdiff_t>(first));
  for (std::size_t i = 0; i < count; ++i, ++core) {
    share.insert(share.end(), core->second.begin(), core->second.end());
  }
  std::ranges::sort(share);
  return share;
}

Result<Cpus> core_complex(const Cpus& node_cpus, const Topology& topology, std::size_t place) {
  const auto by_cache = grouped(node_cpus, topology, &Topology::cache_of);
  if (!by_cache) return fail(by_cache.error());
  std::vector<Cpus> complexes;
  for (const auto& [first, cpus] : *by_cache) complexes.push_back(cpus);
  // Stable: of equal sizes the one with the lowest CPU stays first.
  std::ranges::stable_sort(complexes, std::ranges::greater(), &Cpus::size);
  return complexes[place % complexes.size()];
}

}  // namespace

Result<std::vector<std::vector<int>>> numa_binding(NumaMode mode, const Machine& machine,
                                                   const std::vector<Gpu>& gpus,
                                                   const std::vector<int>& visible, int workers) {
  const auto count = static_cast<std::size_t>(workers);
  if (visible.size() < count) {
    return fail(ErrorCode::kResourceExhausted,
                std::to_string(workers) + " workers need as many visible GPUs; there are " +
                    std::to_string(visible.size()));
  }
  const Topology topology(machine);
  std::vector<int> nodes;  // by position in `visible`
  for (const int gpu : visible) {
    if (gpu == kSomeMigInstance) {
      return fail(ErrorCode::kNotFound, "which GPU a MIG instance is on cannot be told");
    }
    const auto node = topology.node_of(gpus[static_cast<std::size_t>(gpu)]);
    if (!node) return fail(node.error());
    nodes.push_back(*node);
  }

  std::vector<Cpus> cpus_of;
  for (std::size_t i = 0; i < count; ++i) {
    const auto node_cpus = topology.cpus_of_node(nodes[i]);
    if (!node_cpus) return fail(node_cpus.error());
    const auto self = nodes.begin() + static_cast<std::ptrdiff_t>(i);
    const auto place = static_cast<std::size_t>(std::count(nodes.begin(), self, nodes[i]));
    Result<Cpus> cpus = *node_cpus;
    if (mode == NumaMode::kSocket) {
      cpus = topology.socket_of(node_cpus->front()).and_then([&](int socket) {
        return topology.cpus_of_socket(socket);
      });
    } else if (mode == NumaMode::kExclusive) {
      const auto sharers = static_cast<std::size_t>(std::ranges::count(nodes, nodes[i]));
      cpus = share_of_cores(*node_cpus, topology, place, sharers);
    } else if (mode == NumaMode::kCoreComplex) {
      cpus = core_complex(*node_cpus, topology, place);
    }
    if (!cpus) return fail(cpus.error());
    cpus_of.push_back(*std::move(cpus));
  }
  return cpus_of;
}

}  // namespace ddprun::agent
