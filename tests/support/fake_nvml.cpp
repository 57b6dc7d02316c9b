// A driver library for tests, with the layout and the names of NVML's binary interface: the calls that Nvml makes. It has two
// GPUs that say nothing, the second not even its UUID; or those of the file that DDPRUN_FAKE_NVML names, which is read at each
// call, with these lines:
//
//   gpu used=BYTES total=BYTES util=PERCENT temp=DEGREES ecc=ERRORS [lost]    the next GPU
//   process GPU PID BYTES
//   xid GPU CODE           tells of it once: each such line is one
//   events fail TIMES      so many waits for an Xid fail, as when a GPU is lost
//   hang                   no sample comes back as long as the file has it
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;
constexpr int kInsufficientSize = 7;
constexpr int kTimeout = 10;
constexpr int kIsLost = 15;
constexpr unsigned kGpusMax = 16;
int initialized = 0;
unsigned indices[kGpusMax] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
std::size_t xids_told = 0;
unsigned waits_failed = 0;

struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};
struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
struct Event {
  void* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

struct Answers {
  std::vector<std::map<std::string, unsigned long long>> gpus;
  std::vector<std::pair<unsigned, Process>> processes;
  std::vector<std::pair<unsigned, unsigned>> xids;
  unsigned waits_that_fail = 0;
  bool hangs = false;
};

Answers answers() {
  Answers answers;
  const char* const name = std::getenv("DDPRUN_FAKE_NVML");
  if (name == nullptr) {
    answers.gpus.resize(2);
    return answers;
  }
  std::ifstream file(name);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "gpu") {
      auto& gpu = answers.gpus.emplace_back();
      while (words >> word) {
        const std::size_t equals = word.find('=');
        gpu[word.substr(0, equals)] =
            equals == std::string::npos ? 1 : std::strtoull(word.c_str() + equals + 1, nullptr, 10);
      }
    } else if (word == "process") {
      std::pair<unsigned, Process> process{};
      words >> process.first >> process.second.pid >> process.second.used;
      answers.processes.push_back(process);
    } else if (word == "xid") {
      std::pair<unsigned, unsigned> xid{};
      words >> xid.first >> xid.second;
      answers.xids.push_back(xid);
    } else if (word == "events") {
      words >> word >> answers.waits_that_fail;
    } else if (word == "hang") {
      answers.hangs = true;
    }
  }
  return answers;
}

unsigned index_of(void* device) { return *static_cast<unsigned*>(device); }

bool is_from_file() { return std::getenv("DDPRUN_FAKE_NVML") != nullptr; }

// One number of this GPU.
int tell(void* device, const char* name, auto* number) {
  const Answers all = answers();
  const auto& gpu = all.gpus.at(index_of(device));
  if (gpu.contains("lost")) return kIsLost;
  const auto found = gpu.find(name);
  if (found == gpu.end()) return kNotSupported;
  *number = static_cast<std::remove_pointer_t<decltype(number)>>(found->second);
  return kSuccess;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  ++initialized;
  return kSuccess;
}
int nvmlShutdown() {
  --initialized;
  return kSuccess;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = initialized > 0 ? static_cast<unsigned>(answers().gpus.size()) : 0;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &indices[index];
  return kSuccess;
}
int nvmlDeviceGetIndex(void* device, unsigned* index) {
  *index = index_of(device);
  return answers().gpus.at(*index).contains("lost") ? kIsLost : kSuccess;
}
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned size) {
  if (index_of(device) == 1 && !is_from_file()) return kNotSupported;
  std::snprintf(uuid, size, "GPU-fake%u", index_of(device));
  return kSuccess;
}
int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* info) {
  std::memset(info, 0, sizeof *info);
  std::snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", 0x3A + index_of(device));
  return kSuccess;
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  while (answers().hangs) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (const int result = tell(device, "used", &memory->used); result != kSuccess) return result;
  return tell(device, "total", &memory->total);
}
int nvmlDeviceGetUtilizationRates(void* device, Utilization* utilization) {
  return tell(device, "util", &utilization->gpu);
}
int nvmlDeviceGetTemperature(void* device, unsigned, unsigned* degrees) {
  return tell(device, "temp", degrees);
}
int nvmlDeviceGetTotalEccErrors(void* device, unsigned, unsigned, unsigned long long* errors) {
  return tell(device, "ecc", errors);
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, Process* processes) {
  unsigned found = 0;
  for (const auto& [gpu, process] : answers().processes) {
    if (gpu != index_of(device)) continue;
    if (found < *count) processes[found] = process;
    ++found;
  }
  const bool has_room = found <= *count;
  *count = found;
  return has_room ? kSuccess : kInsufficientSize;
}
int nvmlSystemGetProcessName(unsigned pid, char* name, unsigned size) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
  std::string text;
  if (!std::getline(file, text)) return kNotSupported;
  std::snprintf(name, size, "/usr/bin/%s", text.c_str());
  return kSuccess;
}
int nvmlEventSetCreate(void** events) {
  *events = indices;
  return kSuccess;
}
int nvmlDeviceRegisterEvents(void*, unsigned long long, void*) {
  return is_from_file() ? kSuccess : kNotSupported;
}
int nvmlEventSetWait_v2(void*, Event* event, unsigned most_ms) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(most_ms);
  do {
    const Answers all = answers();
    const auto& xids = all.xids;
    if (waits_failed < all.waits_that_fail) {
      ++waits_failed;
      return kIsLost;
    }
    if (xids.size() > xids_told) {
      *event = {&indices[xids[xids_told].first], 8, xids[xids_told].second, 0, 0};
      ++xids_told;
      return kSuccess;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } while (std::chrono::steady_clock::now() < end);
  return kTimeout;
}

}  // extern "C"
