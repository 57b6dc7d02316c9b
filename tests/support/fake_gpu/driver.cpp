// libcuda.so.1 for the fake GPU: what LibTorch asks of the driver beside the runtime, and what ddprun counts GPUs by.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define DDPRUN_DOES_NOTHING(name) \
  int name() { return 0; }
#define DDPRUN_NOT_SUPPORTED(name) \
  int name() { return 801; }

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}

int cuDeviceGetCount(int* count) {
  const char* text = std::getenv("FAKE_GPU_DEVICES");
  *count = text == nullptr ? 8 : std::atoi(text);
  return 0;
}

int cuDeviceGet(int* device, int index) {
  *device = index;
  return 0;
}

int cuDeviceGetName(char* text, int size, int device) {
  std::snprintf(text, static_cast<std::size_t>(size), "Fake GPU %d", device);
  return 0;
}

int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{16} << 30;
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  constexpr int kComputeCapabilityMajor = 75;
  *value = attribute == kComputeCapabilityMajor ? 8 : 0;
  return 0;
}

int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* is_active) {
  *flags = 0;
  *is_active = 1;
  return 0;
}

int cuCtxGetCurrent(void** context) {
  static int only_one = 0;
  *context = &only_one;
  return 0;
}

int cuGetErrorString(int, const char** text) {
  *text = "error of the fake GPU's driver";
  return 0;
}

DDPRUN_DOES_NOTHING(cuInit)
DDPRUN_DOES_NOTHING(cuCtxSetCurrent)
DDPRUN_DOES_NOTHING(cuDevicePrimaryCtxRetain)
DDPRUN_DOES_NOTHING(cuFuncGetAttribute)
DDPRUN_DOES_NOTHING(cuFuncSetAttribute)
DDPRUN_DOES_NOTHING(cuFuncSetCacheConfig)
DDPRUN_NOT_SUPPORTED(cuLaunchCooperativeKernel)
DDPRUN_NOT_SUPPORTED(cuLaunchKernel)
DDPRUN_NOT_SUPPORTED(cuLinkAddData_v2)
DDPRUN_NOT_SUPPORTED(cuLinkComplete)
DDPRUN_NOT_SUPPORTED(cuLinkCreate_v2)
DDPRUN_NOT_SUPPORTED(cuModuleGetFunction)
DDPRUN_NOT_SUPPORTED(cuModuleLoad)
DDPRUN_NOT_SUPPORTED(cuModuleLoadData)
DDPRUN_NOT_SUPPORTED(cuModuleLoadDataEx)
DDPRUN_NOT_SUPPORTED(cuModuleUnload)
DDPRUN_NOT_SUPPORTED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
DDPRUN_NOT_SUPPORTED(cuPointerGetAttribute)
DDPRUN_NOT_SUPPORTED(cuStreamWriteValue32)
DDPRUN_NOT_SUPPORTED(cuStreamWriteValue32_v2)
DDPRUN_NOT_SUPPORTED(cuTensorMapEncodeTiled)

}  // extern "C"
