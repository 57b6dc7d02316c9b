#include "agent/gpu/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

namespace ddprun::agent {
namespace {

// What we use of NVML's documented binary interface.
using NvmlDevice = void*;
using NvmlEvents = void*;
constexpr int kNvmlSuccess = 0;
constexpr int kNvmlInsufficientSize = 7;
constexpr int kNvmlTimeout = 10;
constexpr int kNvmlGpuIsLost = 15;
constexpr int kNvmlUnknown = 999;
constexpr unsigned kNvmlUncorrected = 1;
constexpr unsigned kNvmlVolatile = 0;  // since the driver was loaded
constexpr unsigned kNvmlOfGpu = 0;     // the sensor
constexpr unsigned long long kNvmlXid = 8;
constexpr unsigned long long kNvmlNotAvailable = ~0ULL;

struct NvmlPciInfo {
  std::array<char, 16> short_bus_id;
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pci_device_id;
  unsigned pci_subsystem_id;
  std::array<char, 32> bus_id;
};
struct NvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
struct NvmlUtilization {
  unsigned gpu;
  unsigned memory;
};
struct NvmlProcess {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance;
  unsigned compute_instance;
};
struct NvmlEvent {
  NvmlDevice device;
  unsigned long long type;
  unsigned long long data;
  unsigned gpu_instance;
  unsigned compute_instance;
};

bool is_loss(int result) { return result == kNvmlGpuIsLost || result == kNvmlUnknown; }

template <typename Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
}

}  // namespace

std::string sysfs_address(std::string_view address) {
  constexpr std::size_t kDomainDigits = 4;
  const std::size_t colon = address.find(':');
  if (colon == std::string_view::npos) return {};
  if (colon > kDomainDigits) address.remove_prefix(colon - kDomainDigits);
  std::string lower;
  for (const char c : address) {
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return lower;
}

struct Nvml::Functions {
  int (*init)();
  int (*shutdown)();
  int (*count)(unsigned*);
  int (*device)(unsigned, NvmlDevice*);
  int (*uuid)(NvmlDevice, char*, unsigned);
  int (*pci)(NvmlDevice, NvmlPciInfo*);
  // These may be missing in an older driver.
  int (*memory)(NvmlDevice, NvmlMemory*);
  int (*utilization)(NvmlDevice, NvmlUtilization*);
  int (*temperature)(NvmlDevice, unsigned, unsigned*);
  int (*ecc)(NvmlDevice, unsigned, unsigned, unsigned long long*);
  int (*processes)(NvmlDevice, unsigned*, NvmlProcess*);
  int (*process_name)(unsigned, char*, unsigned);
  int (*make_events)(NvmlEvents*);
  int (*subscribe)(NvmlDevice, unsigned long long, NvmlEvents);
  int (*await_event)(NvmlEvents, NvmlEvent*, unsigned);
  int (*free_events)(NvmlEvents);
};

std::unique_ptr<Nvml> Nvml::load(const std::string& library, bool* is_gpu_lost) {
  void* const nvml = library.empty() ? nullptr : ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (nvml == nullptr) return nullptr;
  auto its = std::make_unique<Functions>();
  find(nvml, "nvmlInit_v2", its->init);
  find(nvml, "nvmlShutdown", its->shutdown);
  find(nvml, "nvmlDeviceGetCount_v2", its->count);
  find(nvml, "nvmlDeviceGetHandleByIndex_v2", its->device);
  find(nvml, "nvmlDeviceGetUUID", its->uuid);
  find(nvml, "nvmlDeviceGetPciInfo_v3", its->pci);
  find(nvml, "nvmlDeviceGetMemoryInfo", its->memory);
  find(nvml, "nvmlDeviceGetUtilizationRates", its->utilization);
  find(nvml, "nvmlDeviceGetTemperature", its->temperature);
  find(nvml, "nvmlDeviceGetTotalEccErrors", its->ecc);
  find(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", its->processes);
  if (its->processes == nullptr) {
    find(nvml, "nvmlDeviceGetComputeRunningProcesses_v2", its->processes);
  }
  find(nvml, "nvmlSystemGetProcessName", its->process_name);
  find(nvml, "nvmlEventSetCreate", its->make_events);
  find(nvml, "nvmlDeviceRegisterEvents", its->subscribe);
  find(nvml, "nvmlEventSetWait_v2", its->await_event);
  find(nvml, "nvmlEventSetFree", its->free_events);
  const bool is_usable = its->init && its->shutdown && its->count && its->device && its->uuid;
  const int begun = is_usable ? its->init() : kNvmlSuccess;
  if (is_gpu_lost != nullptr) *is_gpu_lost = is_loss(begun);
  if (!is_usable || begun != kNvmlSuccess) {
    ::dlclose(nvml);
    return nullptr;
  }
  return std::unique_ptr<Nvml>(new Nvml(nvml, std::move(its)));
}

Nvml::Nvml(void* library, std::unique_ptr<Functions> functions)
    : library_(library), functions_(std::move(functions)) {}

Nvml::~Nvml() {
  functions_->shutdown();
  ::dlclose(library_);
}

std::optional<unsigned> Nvml::count() const {
  unsigned count = 0;
  return functions_->count(&count) == kNvmlSuccess ? std::optional(count) : std::nullopt;
}

Nvml::Device Nvml::device(unsigned index, bool* is_lost) const {
  Device device = nullptr;
  const int result = functions_->device(index, &device);
  if (is_lost != nullptr) *is_lost = is_loss(result);
  return result == kNvmlSuccess ? device : nullptr;
}

Gpu Nvml::gpu(Device device) const {
  Gpu gpu;
  std::array<char, 96> uuid{};
  if (functions_->uuid(device, uuid.data(), uuid.size()) == kNvmlSuccess) gpu.uuid = uuid.data();
  NvmlPciInfo pci{};
  if (functions_->pci && functions_->pci(device, &pci) == kNvmlSuccess) {
    gpu.pci_address = sysfs_address(pci.bus_id.data());
  }
  return gpu;
}

std::optional<std::vector<Gpu>> Nvml::gpus() const {
  const auto all = count();
  if (!all) return std::nullopt;
  std::vector<Gpu> gpus(*all);
  for (unsigned i = 0; i < *all; ++i) {
    if (Device its = device(i); its != nullptr) gpus[i] = gpu(its);
  }
  return gpus;
}

std::vector<GpuSample> Nvml::samples() const {
  std::vector<GpuSample> samples(count().value_or(0));
  for (unsigned i = 0; i < samples.size(); ++i) {
    if (Device its = device(i, &samples[i].is_lost); its != nullptr) {
      samples[i] = sample(its);
    } else {
      samples[i].trouble = "the driver does not find it any more";
    }
  }
  return samples;
}

GpuSample Nvml::sample(Device device) const {
  const Functions& nvml = *functions_;
  GpuSample sample;
  sample.gpu = gpu(device);
  NvmlMemory memory{};
  const int result = nvml.memory ? nvml.memory(device, &memory) : kNvmlSuccess;
  sample.is_lost = is_loss(result);
  if (result == kNvmlGpuIsLost) {
    sample.trouble = "it is lost: it has fallen off the bus, or cannot be reached";
    return sample;
  }
  if (nvml.memory && result == kNvmlSuccess) {
    sample.memory_used = memory.used;
    sample.memory_total = memory.total;
  }
  if (NvmlUtilization used{}; nvml.utilization && nvml.utilization(device, &used) == kNvmlSuccess) {
    sample.utilization = static_cast<int>(used.gpu);
  }
  if (unsigned degrees = 0;
      nvml.temperature && nvml.temperature(device, kNvmlOfGpu, &degrees) == kNvmlSuccess) {
    sample.temperature = static_cast<int>(degrees);
  }
  unsigned long long errors = 0;
  const int counted =
      nvml.ecc ? nvml.ecc(device, kNvmlUncorrected, kNvmlVolatile, &errors) : kNvmlSuccess;
  if (nvml.ecc && counted == kNvmlSuccess) sample.ecc = errors;
  sample.is_lost |= is_loss(counted);
  sample.processes = processes(device);
  return sample;
}

std::vector<GpuProcess> Nvml::processes(Device device) const {
  if (!functions_->processes) return {};
  std::vector<NvmlProcess> found(64);
  auto count = static_cast<unsigned>(found.size());
  int result = functions_->processes(device, &count, found.data());
  if (result == kNvmlInsufficientSize) {
    found.resize(count + found.size());  // there may be more by now
    count = static_cast<unsigned>(found.size());
    result = functions_->processes(device, &count, found.data());
  }
  if (result != kNvmlSuccess) return {};
  found.resize(std::min<std::size_t>(count, found.size()));
  std::vector<GpuProcess> processes;
  for (const NvmlProcess& each : found) {
    GpuProcess process{
        static_cast<int>(each.pid), each.used == kNvmlNotAvailable ? 0 : each.used, {}};
    std::array<char, 256> name{};
    if (functions_->process_name &&
        functions_->process_name(each.pid, name.data(), name.size()) == kNvmlSuccess) {
      const std::string_view path(name.data());
      process.name = path.substr(path.rfind('/') + 1);
    }
    processes.push_back(std::move(process));
  }
  return processes;
}

bool Nvml::subscribe_to_xids() {
  const Functions& nvml = *functions_;
  if (!nvml.make_events || !nvml.subscribe || !nvml.await_event) return false;
  if (events_ != nullptr && nvml.free_events) nvml.free_events(events_);
  events_ = nullptr;
  void* events = nullptr;
  if (nvml.make_events(&events) != kNvmlSuccess) return false;
  for (unsigned i = 0; i < count().value_or(0); ++i) {
    Device its = device(i);
    if (its == nullptr) continue;
    index_of_[its] = static_cast<int>(i);
    if (nvml.subscribe(its, kNvmlXid, events) == kNvmlSuccess) events_ = events;
  }
  if (events_ == nullptr && nvml.free_events) nvml.free_events(events);
  return events_ != nullptr;
}

Nvml::XidAnswer Nvml::await_xid(std::chrono::milliseconds most) {
  if (events_ == nullptr) return {std::nullopt, "no GPU tells of Xids"};
  NvmlEvent event{};
  const int result = functions_->await_event(events_, &event, static_cast<unsigned>(most.count()));
  if (result == kNvmlTimeout) return {};
  if (result != kNvmlSuccess) {
    return {std::nullopt, "nvmlEventSetWait_v2 answers " + std::to_string(result)};
  }
  const auto its = index_of_.find(event.device);
  if (event.type != kNvmlXid || its == index_of_.end()) return {};
  return {GpuXid{its->second, static_cast<int>(event.data)}, ""};
}

}  // namespace ddprun::agent
