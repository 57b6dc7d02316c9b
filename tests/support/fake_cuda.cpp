// A fake CUDA driver with two GPUs: the functions of libcuda.so.1 that devices.h uses.
#include <cstdio>
#include <cstring>

extern "C" {

int cuInit(unsigned) { return 0; }

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
