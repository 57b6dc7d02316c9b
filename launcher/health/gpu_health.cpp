#include "launcher/health/gpu_health.h"

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <memory>

namespace ddprun::cli {
namespace {

// Values of nvmlReturn_t.
constexpr int kSuccess = 0;
constexpr int kGpuIsLost = 15;
constexpr int kUnknown = 999;

bool is_loss(int result) { return result == kGpuIsLost || result == kUnknown; }

struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlProcess {  // nvmlProcessInfo_t of the calls' version 3
  unsigned pid;
  unsigned long long used_memory;  // ~0: not known
  unsigned gpu_instance, compute_instance;
};

// The NVML functions that we call, as its documented ABI declares them.
class Nvml {
 public:
  using Device = void*;

  explicit Nvml(const std::string& library)
      : library_(library.empty() ? nullptr : ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    find(init, "nvmlInit_v2");
    find(get_device, "nvmlDeviceGetHandleByIndex_v2");
    find(get_uuid, "nvmlDeviceGetUUID");
    find(get_memory, "nvmlDeviceGetMemoryInfo");
    find(get_ecc, "nvmlDeviceGetTotalEccErrors");
    find(get_processes, "nvmlDeviceGetComputeRunningProcesses_v3");
  }
  bool is_there() const { return init && get_device; }

  int (*init)() = nullptr;
  int (*get_device)(unsigned, Device*) = nullptr;
  int (*get_uuid)(Device, char*, unsigned) = nullptr;
  int (*get_memory)(Device, NvmlMemory*) = nullptr;
  int (*get_ecc)(Device, int type, int counter, unsigned long long*) = nullptr;
  int (*get_processes)(Device, unsigned* count, NvmlProcess*) = nullptr;

 private:
  template <typename Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
  }

  void* const library_;  // stays loaded: this process ends soon
};

void look_at_memory_errors(const Nvml& nvml, Nvml::Device device, agent::GpuHealth& gpu) {
  constexpr int kUncorrected = 1;
  constexpr int kVolatile = 0;
  unsigned long long count = 0;
  if (!nvml.get_ecc) return;
  const int result = nvml.get_ecc(device, kUncorrected, kVolatile, &count);
  if (result == kSuccess) gpu.uncorrected_ecc = static_cast<std::int64_t>(count);
  if (is_loss(result)) gpu.is_lost = true;
}

void look_at_processes(const Nvml& nvml, Nvml::Device device, const ForeignProcess& foreign,
                       agent::GpuHealth& gpu) {
  std::array<NvmlProcess, 256> processes{};
  unsigned count = processes.size();
  if (!nvml.get_processes || nvml.get_processes(device, &count, processes.data()) != kSuccess) {
    return;
  }
  for (unsigned i = 0; i < count && i < processes.size(); ++i) {
    const auto& [pid, memory, gpu_instance, compute_instance] = processes[i];
    if (memory == 0 || memory == ~0ULL) continue;
    const auto process = foreign(static_cast<pid_t>(pid));
    if (!process) continue;
    gpu.foreign_memory += memory;
    gpu.foreign_process = "process " + std::to_string(process->pid) + " (" + process->name + ")";
  }
}

agent::GpuHealth gpu_health(const Nvml& nvml, int index, const ForeignProcess& foreign) {
  agent::GpuHealth gpu;
  gpu.index = index;
  Nvml::Device device = nullptr;
  const int got = nvml.get_device(static_cast<unsigned>(index), &device);
  gpu.is_lost = is_loss(got);
  if (got != kSuccess) return gpu;
  std::array<char, 96> uuid{};
  if (nvml.get_uuid && nvml.get_uuid(device, uuid.data(), uuid.size()) == kSuccess) {
    gpu.uuid = uuid.data();
  }
  NvmlMemory memory{};
  if (nvml.get_memory && is_loss(nvml.get_memory(device, &memory))) gpu.is_lost = true;
  look_at_memory_errors(nvml, device, gpu);
  if (!gpu.is_lost) look_at_processes(nvml, device, foreign, gpu);
  return gpu;
}

}  // namespace

GpusHealth gpus_health(const std::string& library, const std::vector<int>& indices,
                       const ForeignProcess& foreign) {
  GpusHealth health;
  const Nvml nvml(library);
  const int started = nvml.is_there() ? nvml.init() : kSuccess;
  if (is_loss(started)) health.error = started;
  for (const int index : indices) {
    if (nvml.is_there() && started == kSuccess) {
      health.gpus.push_back(gpu_health(nvml, index, foreign));
    } else {
      agent::GpuHealth unknown;
      unknown.index = index;
      health.gpus.push_back(std::move(unknown));
    }
  }
  return health;
}

}  // namespace ddprun::cli
