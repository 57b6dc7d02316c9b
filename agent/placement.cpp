#include "agent/placement.h"

#include <dirent.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <iterator>
#include <memory>

namespace ddprun::agent {
namespace {

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(directory.c_str()), ::closedir);
  if (listing == nullptr) return names;
  while (const dirent* entry = ::readdir(listing.get())) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  std::ranges::sort(names);
  return names;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// The number a text begins with, as strtoul reads it; nullopt if it begins with none.
std::optional<int> leading_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data() || value < 0) return std::nullopt;
  return value;
}

std::optional<int> number(std::string_view text) {
  const auto value = leading_number(text);
  return value && std::to_string(*value) == text ? value : std::nullopt;
}

// The value of "Key: value" in a file of such lines.
std::string_view field(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t colon = line.find(':');
    if (colon != std::string_view::npos && trimmed(line.substr(0, colon)) == key) {
      return trimmed(line.substr(colon + 1));
    }
  }
  return {};
}

// NVML's few functions that we call, as its documented binary interface declares them.
std::optional<std::vector<Gpu>> gpus_from_nvml(const std::string& library) {
  if (library.empty()) return std::nullopt;
  const std::unique_ptr<void, int (*)(void*)> nvml(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL),
                                                   ::dlclose);
  if (nvml == nullptr) return std::nullopt;
  using Device = void*;
  const auto init = reinterpret_cast<int (*)()>(::dlsym(nvml.get(), "nvmlInit_v2"));
  const auto shutdown = reinterpret_cast<int (*)()>(::dlsym(nvml.get(), "nvmlShutdown"));
  const auto get_count =
      reinterpret_cast<int (*)(unsigned*)>(::dlsym(nvml.get(), "nvmlDeviceGetCount_v2"));
  const auto get_device = reinterpret_cast<int (*)(unsigned, Device*)>(
      ::dlsym(nvml.get(), "nvmlDeviceGetHandleByIndex_v2"));
  const auto get_uuid =
      reinterpret_cast<int (*)(Device, char*, unsigned)>(::dlsym(nvml.get(), "nvmlDeviceGetUUID"));
  if (!init || !shutdown || !get_count || !get_device || !get_uuid) return std::nullopt;
  if (init() != 0) return std::nullopt;
  std::optional<std::vector<Gpu>> gpus;
  if (unsigned count = 0; get_count(&count) == 0) {
    gpus.emplace(count);
    for (unsigned i = 0; i < count; ++i) {
      Device device = nullptr;
      std::array<char, 96> uuid{};
      if (get_device(i, &device) != 0 || get_uuid(device, uuid.data(), uuid.size()) != 0) continue;
      (*gpus)[i].uuid = uuid.data();
    }
  }
  shutdown();
  return gpus;
}

// Each directory is a GPU of the machine; in a container only those with a device node are ours.
std::vector<Gpu> gpus_from_proc(const std::string& root) {
  const std::string directory = root + "/proc/driver/nvidia/gpus/";
  std::vector<Gpu> gpus;
  for (const std::string& address : names_in(directory)) {
    const auto information = read_file(directory + address + "/information");
    if (!information) continue;
    const std::string minor(field(*information, "Device Minor"));
    if (!minor.empty() && ::access((root + "/dev/nvidia" + minor).c_str(), F_OK) != 0) continue;
    gpus.push_back(Gpu{std::string(field(*information, "GPU UUID"))});
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
    if (found) return std::nullopt;  // a beginning that several share names none
    found = i;
  }
  return found;
}

}  // namespace

std::optional<std::vector<int>> parse_cpu_list(std::string_view text) {
  constexpr int kHighestCpu = 65535;  // bounds a file that is not what it should be
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

int count_cpus(const Machine& machine) {
  if (const auto text = read_file(machine.root + "/sys/devices/system/cpu/online")) {
    if (const auto cpus = parse_cpu_list(*text); cpus && !cpus->empty()) {
      return static_cast<int>(cpus->size());
    }
  }
  return std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
}

std::vector<Gpu> find_gpus(const Machine& machine) {
  if (auto gpus = gpus_from_nvml(machine.nvml_library)) return *std::move(gpus);
  auto gpus = gpus_from_proc(machine.root);
  return gpus.empty() ? gpus_from_dev(machine.root) : gpus;
}

int count_visible_gpus(const std::string* cuda_visible_devices, const std::vector<Gpu>& gpus) {
  if (cuda_visible_devices == nullptr) return static_cast<int>(gpus.size());
  std::string_view rest = *cuda_visible_devices;
  // A process sees one MIG instance at most, and which it is does not matter for the count.
  if (trimmed(rest).starts_with("MIG-")) return gpus.empty() ? 0 : 1;
  std::vector<int> visible;
  while (!rest.empty()) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(entry.size() + 1, rest.size()));
    const auto gpu = named_gpu(trimmed(entry), gpus);
    if (!gpu) break;
    if (std::ranges::find(visible, *gpu) != visible.end()) return 0;
    visible.push_back(*gpu);
  }
  return static_cast<int>(visible.size());
}

}  // namespace ddprun::agent
