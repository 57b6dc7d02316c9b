// NVML, the NVIDIA driver's library, loaded from the system when it is asked. Its calls take milliseconds, and may hang when a
// GPU has fallen off the bus: never call them on the event loop. Any thread, also several at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

struct Gpu {
  std::string uuid;         // "GPU-..."
  std::string pci_address;  // "0000:3b:00.0", as /sys spells it
  // Either is empty if it is not known.

  bool operator==(const Gpu&) const = default;
};

struct GpuProcess {
  int pid = 0;              // as the driver sees it: of another pid namespace, perhaps
  std::uint64_t bytes = 0;  // that it holds; 0: not known
  std::string name;         // its program's, without the folder; empty: not known

  bool operator==(const GpuProcess&) const = default;
};

// What one GPU says at one moment. Nothing: it does not say.
struct GpuSample {
  Gpu gpu;
  std::optional<std::uint64_t> memory_used;
  std::optional<std::uint64_t> memory_total;
  std::optional<int> utilization;    // percent of the last second or less, in which a kernel ran
  std::optional<int> temperature;    // in degrees Celsius
  std::optional<std::uint64_t> ecc;  // errors that were not corrected, since the driver was loaded
  std::vector<GpuProcess> processes;
  std::string trouble;   // why it says nothing: "GPU is lost"; empty: it does
  bool is_lost = false;  // or some call fails as if it were

  bool operator==(const GpuSample&) const = default;
};

// A message of the driver about a GPU: its Xid.
struct GpuXid {
  int gpu = 0;
  int xid = 0;

  bool operator==(const GpuXid&) const = default;
};

// "0000:3b:00.0" as /sys spells it, of "00000000:3B:00.0" as NVML does.
std::string sysfs_address(std::string_view address);

class Nvml {
 public:
  static constexpr const char* kLibrary = "libnvidia-ml.so.1";

  // Null: there is none, or no driver, or it cannot be used because a GPU is lost, which sets `is_gpu_lost`.
  static std::unique_ptr<Nvml> load(const std::string& library = kLibrary,
                                    bool* is_gpu_lost = nullptr);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // All of this machine or container, in the driver's order. Nothing: they cannot be counted.
  std::optional<std::vector<Gpu>> gpus() const;
  std::vector<GpuSample> samples() const;

  // ---- Xids: on one thread at a time
  // All GPUs that know some tell theirs; from then on none is missed. False: there is no such GPU. Call it again after a trouble.
  bool subscribe_to_xids();
  struct XidAnswer {
    std::optional<GpuXid> xid;  // nothing: none has come in this time
    std::string trouble;        // why it could not wait; empty: it could
  };
  XidAnswer await_xid(std::chrono::milliseconds most);

 private:
  struct Functions;
  using Device = void*;

  Nvml(void* library, std::unique_ptr<Functions> functions);
  std::optional<unsigned> count() const;
  Device device(unsigned index, bool* is_lost = nullptr) const;
  Gpu gpu(Device device) const;
  GpuSample sample(Device device) const;
  std::vector<GpuProcess> processes(Device device) const;

  void* const library_;
  const std::unique_ptr<Functions> functions_;
  void* events_ = nullptr;
  std::map<Device, int> index_of_;  // the driver does not tell it of a GPU that is lost
};

}  // namespace ddprun::agent
