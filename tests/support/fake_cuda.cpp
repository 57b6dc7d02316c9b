// A fake CUDA driver with two GPUs: the functions of libcuda.so.1 that devices.h and page_memory.h use.
#include <cstdio>
#include <cstring>

extern "C" {

std::size_t fake_pinned_bytes = 0;
void* fake_pinned = nullptr;

// Pins one block at a time.
int cuMemHostRegister_v2(void* memory, std::size_t size, unsigned flags) {
  if (fake_pinned != nullptr || flags != 1) return 712;  // already registered
  fake_pinned = memory;
  fake_pinned_bytes = size;
  return 0;
}

int cuMemHostUnregister(void* memory) {
  if (memory != fake_pinned) return 713;  // not registered
  fake_pinned = nullptr;
  fake_pinned_bytes = 0;
  return 0;
}

int cuInit(unsigned) { return 0; }

int cuDriverGetVersion(int* version) {
  *version = 12040;
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}

int cuDeviceGet(int* device, int index) {
  *device = 100 + index;
  return index < 2 ? 0 : 101;
}

int cuDeviceGetName(char* name, int size, int device) {
  return std::snprintf(name, static_cast<std::size_t>(size), "Fake %d", device) < size ? 0 : 1;
}

int cuDeviceTotalMem_v2(std::size_t* bytes, int device) {
  *bytes = static_cast<std::size_t>(device - 20) << 30;
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 76 ? device - 100 : -1;
  return *value < 0 ? 1 : 0;
}
}
