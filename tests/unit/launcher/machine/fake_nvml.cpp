// A driver library with two GPUs, for placement_test: the calls that placement makes, with the
// layout and the names of NVML's binary interface. The second GPU does not tell its UUID.
#include <cstdio>
#include <cstring>

namespace {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;
int initialized = 0;

struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

unsigned index_of(void* device) { return *static_cast<unsigned*>(device); }

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
  *count = initialized > 0 ? 2 : 0;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  static unsigned indices[] = {0, 1};
  *device = &indices[index];
  return kSuccess;
}
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned size) {
  if (index_of(device) == 1) return kNotSupported;
  std::snprintf(uuid, size, "GPU-fake%u", index_of(device));
  return kSuccess;
}
int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* info) {
  std::memset(info, 0, sizeof *info);
  std::snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", 0x3A + index_of(device));
  return kSuccess;
}

}  // extern "C"
