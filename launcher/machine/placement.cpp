#include "launcher/machine/placement.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "launcher/machine/placement_files.h"
#include "rendezvous/common/cgroup.h"
#include "rendezvous/common/text/ranks.h"

namespace ddprun::agent {
namespace {

// Each directory is a GPU of the machine; in a container only those with a device node are usable.
std::vector<Gpu> gpus_from_proc(const std::string& root) {
  const std::string directory = root + "/proc/driver/nvidia/gpus/";
  std::vector<Gpu> gpus;
  for (const std::string& address : names_in(directory)) {
    const std::string information = file_text(directory + address + "/information");
    if (information.empty()) continue;
    const std::string minor(field(information, "Device Minor"));
    if (!minor.empty() && !is_there(root + "/dev/nvidia" + minor)) continue;
    gpus.push_back(Gpu{std::string(field(information, "GPU UUID")), sysfs_address(address)});
  }
  return gpus;
}

std::vector<Gpu> gpus_from_dev(const std::string& root) {
  constexpr std::string_view kPrefix = "nvidia";
  std::vector<Gpu> gpus;
  for (const std::string& name : names_in(root + "/dev")) {
    if (name.starts_with(kPrefix) && number(std::string_view(name).substr(kPrefix.size()))) {
      gpus.emplace_back();
    }
  }
  return gpus;
}

std::optional<double> ratio(std::optional<int> quota, std::optional<int> period) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / *period;
}

// cpu.max: "150000 100000", or "max 100000" for no limit.
std::optional<double> quota_v2(const std::string& directory) {
  const std::string text = file_text(directory + "/cpu.max");
  const std::string_view limits = trimmed(text);
  const std::size_t space = limits.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  return ratio(number(limits.substr(0, space)), number(limits.substr(space + 1)));
}

std::optional<double> quota_v1(const std::string& directory) {
  return ratio(number_in(directory + "/cpu.cfs_quota_us"),
               number_in(directory + "/cpu.cfs_period_us"));
}

// The index of the one GPU that an entry of CUDA_VISIBLE_DEVICES names.
std::optional<int> named_gpu(std::string_view entry, const std::vector<Gpu>& gpus) {
  const int count = static_cast<int>(gpus.size());
  if (!entry.starts_with("GPU-")) {
    const auto index = leading_number(entry);
    return index && *index < count ? index : std::nullopt;
  }
  std::optional<int> found;
  for (int i = 0; i < count; ++i) {
    if (!gpus[static_cast<std::size_t>(i)].uuid.starts_with(entry)) continue;
    if (found) return std::nullopt;  // a prefix that several devices share names none
    found = i;
  }
  return found;
}

}  // namespace

std::optional<std::vector<int>> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  text = trimmed(text);
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    const std::size_t dash = part.find('-');
    const auto first = number(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : number(part.substr(dash + 1));
    if (!first || !last || *last < *first || *last > kHighestCpu) return std::nullopt;
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  }
  std::ranges::sort(cpus);
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::string to_cpu_list(const std::vector<int>& cpus) { return number_ranges(cpus, ","); }

int count_cpus(const Machine& machine) {
  const auto cpus = parse_cpu_list(file_text(machine.root + "/sys/devices/system/cpu/online"));
  if (cpus && !cpus->empty()) return static_cast<int>(cpus->size());
  return std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
}

std::vector<int> allowed_cpus(const Machine& machine) {
  if (machine.affinity) return *machine.affinity;
  // The kernel refuses a mask with fewer bits than it has CPUs; CPU_SETSIZE is 1024.
  for (int size = CPU_SETSIZE; size <= kHighestCpu + 1; size *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(
        CPU_ALLOC(static_cast<std::size_t>(size)), [](cpu_set_t* set) { CPU_FREE(set); });
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(size));
    if (mask == nullptr || ::sched_getaffinity(0, bytes, mask.get()) != 0) continue;
    std::vector<int> cpus;
    for (int cpu = 0; cpu < size; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes, mask.get())) cpus.push_back(cpu);
    }
    return cpus;
  }
  return {};
}

std::optional<double> cpu_quota(const Machine& machine) {
  std::optional<double> least;
  for (const std::string& folder : cgroup::folders("cpu", machine.root)) {
    const auto v2 = quota_v2(folder);
    const auto quota = v2 ? v2 : quota_v1(folder);
    if (quota && (!least || *quota < *least)) least = quota;
  }
  return least;
}

int count_usable_cpus(const Machine& machine) {
  const auto allowed = static_cast<double>(allowed_cpus(machine).size());
  const double usable = std::min(allowed, cpu_quota(machine).value_or(allowed));
  // Rounded up, without std::ceil (agent/output/CMakeLists.txt says why).
  const int whole = static_cast<int>(usable);
  return std::max(1, whole < usable ? whole + 1 : whole);
}

std::vector<Gpu> find_gpus(const Machine& machine) {
  if (const auto nvml = Nvml::load(machine.nvml_library)) {
    if (auto gpus = nvml->gpus()) return *std::move(gpus);
  }
  auto gpus = gpus_from_proc(machine.root);
  return gpus.empty() ? gpus_from_dev(machine.root) : gpus;
}

std::vector<int> visible_gpus(const std::string* cuda_visible_devices,
                              const std::vector<Gpu>& gpus) {
  std::vector<int> visible;
  if (cuda_visible_devices == nullptr) {
    for (std::size_t i = 0; i < gpus.size(); ++i) visible.push_back(static_cast<int>(i));
    return visible;
  }
  std::string_view rest = *cuda_visible_devices;
  if (trimmed(rest).starts_with("MIG-")) {
    if (!gpus.empty()) visible.push_back(gpus.size() == 1 ? 0 : kSomeMigInstance);
    return visible;
  }
  while (!rest.empty()) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(entry.size() + 1, rest.size()));
    const auto gpu = named_gpu(trimmed(entry), gpus);
    if (!gpu) break;
    if (std::ranges::find(visible, *gpu) != visible.end()) return {};
    visible.push_back(*gpu);
  }
  return visible;
}

}  // namespace ddprun::agent
