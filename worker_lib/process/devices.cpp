#include "ddprun/devices.h"

#include <dlfcn.h>

#include <cstdio>

#include "ddprun/error.h"

namespace ddprun {
namespace {

// The few functions of the CUDA driver's API that are needed, by their names in the library. A
// result of 0 is success; a device is a number.
class Driver {
 public:
  explicit Driver(const char* library) {
    // Stays loaded, as CUDA's own libraries do with it.
    void* const driver = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (driver == nullptr) return;
    find(driver, "cuDriverGetVersion", get_version_);
    const bool has_all =
        find(driver, "cuInit", init_) && find(driver, "cuDeviceGetCount", get_count_) &&
        find(driver, "cuDeviceGet", get_) && find(driver, "cuDeviceGetName", get_name_) &&
        find(driver, "cuDeviceTotalMem_v2", get_bytes_) &&
        find(driver, "cuDeviceGetAttribute", get_attribute_);
    is_usable_ = has_all && init_(0) == 0;
  }

  int newest_cuda() const {
    int version = 0;
    return get_version_ != nullptr && get_version_(&version) == 0 ? version : 0;
  }

  int count() const {
    int devices = 0;
    return is_usable_ && get_count_(&devices) == 0 ? devices : 0;
  }

  Gpu describe(int index) const {
    constexpr int kComputeMajor = 75;
    constexpr int kComputeMinor = 76;
    Gpu gpu{.index = index, .name = "unknown"};
    int device = 0;
    if (get_(&device, index) != 0) return gpu;
    char name[256] = "";
    if (get_name_(name, sizeof name, device) == 0) gpu.name = name;
    std::size_t bytes = 0;
    if (get_bytes_(&bytes, device) == 0) gpu.bytes = bytes;
    int major = 0;
    int minor = 0;
    if (get_attribute_(&major, kComputeMajor, device) == 0 &&
        get_attribute_(&minor, kComputeMinor, device) == 0) {
      gpu.compute_capability = 10 * major + minor;
    }
    return gpu;
  }

 private:
  template <typename Function>
  static bool find(void* driver, const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(driver, name));
    return function != nullptr;
  }

  int (*get_version_)(int* version) = nullptr;
  int (*init_)(unsigned flags) = nullptr;
  int (*get_count_)(int* count) = nullptr;
  int (*get_)(int* device, int index) = nullptr;
  int (*get_name_)(char* name, int size, int device) = nullptr;
  int (*get_bytes_)(std::size_t* bytes, int device) = nullptr;
  int (*get_attribute_)(int* value, int attribute, int device) = nullptr;
  bool is_usable_ = false;
};

}  // namespace

std::string Gpu::to_string() const {
  char text[400];
  std::snprintf(text, sizeof text, "GPU %d: %s, %.1f GiB", index, name.c_str(),
                static_cast<double>(bytes) / (1 << 30));
  std::string line = text;
  if (compute_capability > 0) {
    line += ", compute capability " + std::to_string(compute_capability / 10) + "." +
            std::to_string(compute_capability % 10);
  }
  return line;
}

std::vector<Gpu> list_gpus(const char* driver) {
  const Driver asked(driver);
  std::vector<Gpu> gpus;
  for (int index = 0; index < asked.count(); ++index) gpus.push_back(asked.describe(index));
  return gpus;
}

int count_gpus(const char* driver) { return Driver(driver).count(); }

int cuda_of_driver(const char* driver) { return Driver(driver).newest_cuda(); }

int gpu_of_worker(const Environment& environment, int visible) {
  if (environment.local_rank < visible) return environment.local_rank;
  if (visible == 1 && environment.is_slurm_step) return 0;  // the step gave each task one
  throw UsageError("local rank " + std::to_string(environment.local_rank) +
                   " has no GPU of its own: this process sees " + std::to_string(visible) +
                   "; start at most one worker per GPU, or use the backend gloo");
}

}  // namespace ddprun
