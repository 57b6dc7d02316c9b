// A driver library whose GPUs are as $DDPRUN_FAKE_GPUS says, a word for each: fine, lost, unknown, ecc, used-by-PID; or
// init-CODE, with which it cannot be used. The layout and the names are those of NVML's binary interface.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 2;
constexpr int kLost = 15;
constexpr int kUnknown = 999;

struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
struct Memory {
  unsigned long long total, free, used;
};
struct Process {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};

std::vector<std::string> gpus() {
  const char* const words = std::getenv("DDPRUN_FAKE_GPUS");
  std::istringstream in(words != nullptr ? words : "");
  std::vector<std::string> gpus;
  for (std::string word; in >> word;) gpus.push_back(word);
  return gpus;
}

std::size_t index_of(void* device) { return *static_cast<unsigned*>(device); }
std::string state_of(void* device) { return gpus().at(index_of(device)); }
int result_of(void* device) {
  if (state_of(device) == "lost") return kLost;
  return state_of(device) == "unknown" ? kUnknown : kSuccess;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  const auto words = gpus();
  constexpr char kInit[] = "init-";
  if (words.empty() || words[0].rfind(kInit, 0) != 0) return kSuccess;
  return std::atoi(words[0].c_str() + std::strlen(kInit));
}
int nvmlShutdown() { return kSuccess; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(gpus().size());
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  static unsigned indices[] = {0, 1, 2, 3};
  if (index >= gpus().size()) return kInvalidArgument;
  *device = &indices[index];
  return result_of(*device);
}
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned size) {
  std::snprintf(uuid, size, "GPU-fake%zu", index_of(device));
  return kSuccess;
}
int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* info) {
  std::memset(info, 0, sizeof *info);
  std::snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02zX:00.0", 0x3A + index_of(device));
  return kSuccess;
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  *memory = {};
  return result_of(device);
}
int nvmlDeviceGetTotalEccErrors(void* device, int, int, unsigned long long* count) {
  *count = state_of(device) == "ecc" ? 1 : 0;
  return result_of(device);
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, Process* processes) {
  constexpr char kUsed[] = "used-by-";
  const std::string state = state_of(device);
  *count = 0;
  if (state.rfind(kUsed, 0) != 0) return kSuccess;
  processes[0] = {};
  processes[0].pid = static_cast<unsigned>(std::atoi(state.c_str() + std::strlen(kUsed)));
  processes[0].used_memory = 1 << 20;
  *count = 1;
  return kSuccess;
}

}  // extern "C"
