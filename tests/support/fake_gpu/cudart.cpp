// libcudart.so.13 without a GPU (README.md): the memory of a device is memory of the host, a stream is a thread with a
// queue, and an event counts how often it was recorded. A kernel is not run: its launch fails and names it once.
// operators.cpp runs PyTorch's operators in place of their kernels.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPageBytes = 4096;

std::int64_t number_in(const char* variable, std::int64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

thread_local int current_device = 0;

// ---- errors

std::atomic<int> sticky_error{
    cudaSuccess};  // the whole process has it, as after a fault of the GPU
thread_local cudaError_t last_error = cudaSuccess;

// A file FAKE_GPU_BROKEN/N: GPU N has failed for the processes that used it before the file was made.
void look_for_failure() {
  static const char* const folder = std::getenv("FAKE_GPU_BROKEN");
  if (folder == nullptr || sticky_error != cudaSuccess) return;
  static std::atomic<pid_t> its_process = 0;  // a fork has no context yet
  static std::atomic<std::int64_t> since = 0;
  const auto nanoseconds = [](const timespec& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  if (its_process.exchange(::getpid()) != ::getpid()) {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    since = nanoseconds(now);
  }
  struct stat about {};
  const std::string file = std::string(folder) + "/" + std::to_string(current_device);
  if (::stat(file.c_str(), &about) == 0 && nanoseconds(about.st_mtim) > since) {
    sticky_error = cudaErrorECCUncorrectable;
  }
}

cudaError_t result(cudaError_t error) {
  look_for_failure();
  if (const int sticky = sticky_error; sticky != cudaSuccess) {
    error = static_cast<cudaError_t>(sticky);
  }
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

cudaError_t take_last_error(bool forget) {
  if (const int sticky = sticky_error; sticky != cudaSuccess) {
    return static_cast<cudaError_t>(sticky);
  }
  const cudaError_t error = last_error;
  if (forget) last_error = cudaSuccess;
  return error;
}

// ---- streams

class Stream {
 public:
  explicit Stream(int priority) : priority_(priority), thread_([this] { run(); }) {}

  int priority() const { return priority_; }

  void push(std::function<void()> work) {
    const std::scoped_lock lock(mutex_);
    queue_.push_back(std::move(work));
    has_work_.notify_one();
  }

  void synchronize() {
    std::unique_lock lock(mutex_);
    is_idle_.wait(lock, [this] { return queue_.empty() && !is_busy_; });
  }

  bool is_idle() {
    const std::scoped_lock lock(mutex_);
    return queue_.empty() && !is_busy_;
  }

 private:
  [[noreturn]] void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      has_work_.wait(lock, [this] { return !queue_.empty(); });
      std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      is_busy_ = true;
      lock.unlock();
      work();
      work = nullptr;  // what it holds is released on this thread, without the lock
      lock.lock();
      is_busy_ = false;
      if (queue_.empty()) is_idle_.notify_all();
    }
  }

  const int priority_;
  std::mutex mutex_;
  std::condition_variable has_work_, is_idle_;
  std::deque<std::function<void()>> queue_;
  bool is_busy_ = false;
  std::thread thread_;
};

std::atomic<std::uint64_t> waits = 0;  // the host's

std::mutex streams_mutex;

// Streams live until the process ends: PyTorch never destroys its own, and an exit does not wait for a stream's work.
std::vector<Stream*>& streams() {
  static auto* const all = new std::vector<Stream*>;
  return *all;
}

Stream* make_stream(int priority) {
  auto* stream = new Stream(priority);
  const std::scoped_lock lock(streams_mutex);
  streams().push_back(stream);
  return stream;
}

// 0, 1 (legacy) and 2 (per thread) are the default stream.
Stream& stream_of(cudaStream_t handle) {
  static Stream* const default_stream = make_stream(0);
  return reinterpret_cast<std::uintptr_t>(handle) <= 2 ? *default_stream
                                                       : *reinterpret_cast<Stream*>(handle);
}

void synchronize_all() {
  std::vector<Stream*> all;
  {
    const std::scoped_lock lock(streams_mutex);
    all = streams();
  }
  for (Stream* stream : all) stream->synchronize();
}

// ---- events

// What was queued in a stream when an event was recorded there.
class Record {
 public:
  void note_done() {
    const std::scoped_lock lock(mutex_);
    done_at_ = Clock::now();
    is_done_.notify_all();
  }
  void await() {
    std::unique_lock lock(mutex_);
    is_done_.wait(lock, [this] { return done_at_.has_value(); });
  }
  std::optional<Clock::time_point> done_at() {
    const std::scoped_lock lock(mutex_);
    return done_at_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable is_done_;
  std::optional<Clock::time_point> done_at_;
};

// An event is its last record: work that waits for an earlier one keeps that.
struct Event {
  std::mutex mutex;
  std::shared_ptr<Record> last;  // none: it was not recorded, and is done
};

std::shared_ptr<Record> last_record(cudaEvent_t handle) {
  Event& event = *reinterpret_cast<Event*>(handle);
  const std::scoped_lock lock(event.mutex);
  return event.last;
}

// ---- memory

enum class Kind { kDevice, kPinned };

struct Block {
  std::size_t bytes;
  Kind kind;
  int device;
};

std::mutex memory_mutex;
std::map<std::uintptr_t, Block>& blocks() {
  static auto* const all = new std::map<std::uintptr_t, Block>;
  return *all;
}

std::size_t device_bytes() {
  static const auto bytes = static_cast<std::size_t>(number_in("FAKE_GPU_MEMORY_MB", 16384)) << 20;
  return bytes;
}

// What a process has of a GPU. The file FAKE_GPU_MEMORY has those of all processes; without it a process knows of itself alone.
struct Use {
  std::atomic<pid_t> pid;  // 0: the entry is free
  std::atomic<int> device;
  std::atomic<std::size_t> bytes;
  std::atomic<std::int64_t> late;        // ns for which the GPU has the bytes after the process
  std::atomic<std::int64_t> dead_since;  // ns of the steady clock; 0: it lives
};
constexpr std::size_t kUsesMax = 1024;

Use* all_uses() {
  static Use* const all = [] {
    const char* const file = std::getenv("FAKE_GPU_MEMORY");
    constexpr std::size_t kBytes = kUsesMax * sizeof(Use);
    const int descriptor = file == nullptr ? -1 : ::open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void* memory = MAP_FAILED;
    if (file == nullptr) {
      memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    } else if (descriptor >= 0 && ::ftruncate(descriptor, kBytes) == 0) {
      memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
      ::close(descriptor);
    }
    if (memory == MAP_FAILED) {
      std::perror("fake_gpu: memory of the GPUs");
      std::abort();
    }
    return static_cast<Use*>(memory);
  }();
  return all;
}

bool lives(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t end = text.rfind(") ");
  return end != std::string::npos && text[end + 2] != 'Z' && text[end + 2] != 'X';
}

// The driver has what a process of the first round had for FAKE_GPU_MEMORY_LATE_MS more. A process of a later round
// gives its memory back at once: else ranks that fail for want of memory would take it from each other without an end.
std::int64_t late_after_this_process() {
  const char* const round = std::getenv("TORCHELASTIC_RESTART_COUNT");
  if (round != nullptr && std::string_view(round) != "0") return 0;
  return number_in("FAKE_GPU_MEMORY_LATE_MS", 0) * 1'000'000;
}

std::size_t used_bytes(int device) {
  const std::int64_t now = Clock::now().time_since_epoch().count();
  std::size_t used = 0;
  for (std::size_t i = 0; i < kUsesMax; ++i) {
    Use& use = all_uses()[i];
    if (use.pid == 0 || use.device != device) continue;
    if (!lives(use.pid)) {
      std::int64_t unknown = 0;
      use.dead_since.compare_exchange_strong(unknown, now);
      if (now - use.dead_since >= use.late) continue;
    }
    used += use.bytes;
  }
  return used;
}

Use& own_use(int device) {
  const pid_t own = ::getpid();
  for (std::size_t i = 0; i < kUsesMax; ++i) {
    Use& use = all_uses()[i];
    if (use.pid == own && use.device == device) return use;
  }
  for (std::size_t i = 0; i < kUsesMax; ++i) {
    pid_t free = 0;
    if (!all_uses()[i].pid.compare_exchange_strong(free, own)) continue;
    all_uses()[i].device = device;
    all_uses()[i].late = late_after_this_process();
    return all_uses()[i];
  }
  std::fputs("fake_gpu: too many processes\n", stderr);
  std::abort();
}

const Block* find_block(const void* address, const std::scoped_lock<std::mutex>&) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  auto next = blocks().upper_bound(at);
  if (next == blocks().begin()) return nullptr;
  --next;
  return at < next->first + next->second.bytes ? &next->second : nullptr;
}

bool is_pageable(const void* address) {
  const std::scoped_lock lock(memory_mutex);
  return find_block(address, lock) == nullptr;
}

cudaError_t allocate(void** out, std::size_t bytes, Kind kind) {
  bytes = (std::max<std::size_t>(bytes, 1) + kPageBytes - 1) / kPageBytes * kPageBytes;
  const std::scoped_lock lock(memory_mutex);
  if (kind == Kind::kDevice && used_bytes(current_device) + bytes > device_bytes()) {
    return result(cudaErrorMemoryAllocation);
  }
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return result(cudaErrorMemoryAllocation);
  blocks()[reinterpret_cast<std::uintptr_t>(memory)] = {
      .bytes = bytes, .kind = kind, .device = current_device};
  if (kind == Kind::kDevice) own_use(current_device).bytes += bytes;
  *out = memory;
  return result(cudaSuccess);
}

cudaError_t release(void* memory) {
  const std::scoped_lock lock(memory_mutex);
  const auto found = blocks().find(reinterpret_cast<std::uintptr_t>(memory));
  if (found == blocks().end()) return result(cudaErrorInvalidValue);
  if (found->second.kind == Kind::kDevice)
    own_use(found->second.device).bytes -= found->second.bytes;
  munmap(memory, found->second.bytes);
  blocks().erase(found);
  return result(cudaSuccess);
}

// ---- devices and kernels

int device_count() {
  static const auto count = static_cast<int>(number_in("FAKE_GPU_DEVICES", 8));
  return count;
}

// PyTorch's operators run on the CPU from here on. By the first call for devices LibTorch's libraries are loaded.
void load_operators() {
  static const bool is_done = [] {
    void* const torch = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    if (torch == nullptr) return false;
    Dl_info own{};
    dladdr(reinterpret_cast<void*>(&load_operators), &own);
    std::string path = own.dli_fname;
    path.replace(path.rfind('/') + 1, std::string::npos, "libfake_gpu_operators.so");
    if (dlopen(path.c_str(), RTLD_NOW) == nullptr) {
      std::fprintf(stderr, "fake_gpu: %s\n", dlerror());
      std::abort();
    }
    return true;
  }();
  static_cast<void>(is_done);
}

std::unordered_map<const void*, std::string>& kernel_names() {
  static auto* const names = new std::unordered_map<const void*, std::string>;
  return *names;
}

cudaError_t refuse_kernel(const void* kernel) {
  static std::mutex mutex;
  static auto* const named = new std::set<const void*>;
  const std::scoped_lock lock(mutex);
  const auto found = kernel_names().find(kernel);
  if (named->insert(kernel).second) {
    std::fprintf(stderr, "fake_gpu: this kernel is not emulated: %s\n",
                 found == kernel_names().end() ? "(unknown)" : found->second.c_str());
  }
  return result(cudaErrorNotSupported);
}

struct LaunchConfiguration {
  dim3 grid, block;
  std::size_t shared_bytes = 0;
  void* stream = nullptr;
};
thread_local LaunchConfiguration launch_configuration;

}  // namespace

extern "C" {

// For tests: every call answers this error from here on, as after a fault of the GPU.
void fake_gpu_break(int error) { sticky_error = error; }

// For tests: how often this process has waited for an event, a stream or a GPU.
std::uint64_t fake_gpu_waits() { return waits; }

cudaError_t cudaGetDeviceCount(int* count) {
  load_operators();
  *count = device_count();
  return result(cudaSuccess);
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return result(cudaSuccess);
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return result(cudaErrorInvalidDevice);
  current_device = device;
  return result(cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return result(cudaSuccess);
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return result(cudaSuccess);
}

cudaError_t cudaGetLastError() { return take_last_error(true); }
cudaError_t cudaPeekAtLastError() { return take_last_error(false); }

const char* cudaGetErrorString(cudaError_t error) {
  static thread_local char text[64];
  std::snprintf(text, sizeof text, "error %d of the fake GPU", static_cast<int>(error));
  return text;
}

const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }

cudaError_t cudaDeviceSynchronize() {
  ++waits;
  synchronize_all();
  return result(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = 8;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 16;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      break;
    case cudaDevAttrUnifiedAddressing:
      *value = 1;
      break;
    default:
      *value = 0;
  }
  return result(cudaSuccess);
}

// Compute capability 8.0: a GPU without NVLS.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "Fake GPU %d", device);
  properties->totalGlobalMem = device_bytes();
  properties->uuid.bytes[0] = static_cast<char>(device + 1);
  properties->sharedMemPerBlock = 49152;
  properties->regsPerBlock = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 2147483647;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->major = 8;
  properties->multiProcessorCount = 16;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->l2CacheSize = 1 << 20;
  properties->unifiedAddressing = 1;
  properties->concurrentKernels = 1;
  properties->sharedMemPerMultiprocessor = 98304;
  properties->regsPerMultiprocessor = 65536;
  return result(cudaSuccess);
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, static_cast<std::size_t>(size), "0000:%02x:00.0", device);
  return result(cudaSuccess);
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return result(cudaSuccess);
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return result(cudaSuccess); }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return result(cudaSuccess);
}

cudaError_t cudaProfilerStart() { return result(cudaSuccess); }
cudaError_t cudaProfilerStop() { return result(cudaSuccess); }

// ---- memory

cudaError_t cudaMalloc(void** out, std::size_t bytes) {
  return allocate(out, bytes, Kind::kDevice);
}

// As with a GPU, it waits for all streams.
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return result(cudaSuccess);
  synchronize_all();
  return release(memory);
}

cudaError_t cudaMallocAsync(void** out, std::size_t bytes, cudaStream_t) {
  return cudaMalloc(out, bytes);
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t) { return cudaFree(memory); }

cudaError_t cudaHostAlloc(void** out, std::size_t bytes, unsigned) {
  return allocate(out, bytes, Kind::kPinned);
}

cudaError_t cudaMallocHost(void** out, std::size_t bytes) { return cudaHostAlloc(out, bytes, 0); }

cudaError_t cudaFreeHost(void* memory) { return release(memory); }
cudaError_t cudaHostRegister(void*, std::size_t, unsigned) { return result(cudaSuccess); }
cudaError_t cudaHostUnregister(void*) { return result(cudaSuccess); }

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const std::scoped_lock lock(memory_mutex);
  *total = device_bytes();
  *free = *total - std::min(*total, used_bytes(current_device));
  return result(cudaSuccess);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  const std::scoped_lock lock(memory_mutex);
  const Block* const block = find_block(address, lock);
  *attributes = {};
  attributes->hostPointer = const_cast<void*>(address);
  if (block == nullptr) {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = cudaInvalidDeviceId;
  } else {
    attributes->type = block->kind == Kind::kDevice ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    attributes->device = current_device;
    attributes->devicePointer = const_cast<void*>(address);
  }
  return result(cudaSuccess);
}

// With pageable memory the host waits, as with a GPU.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  stream.push([=] { std::memmove(to, from, bytes); });
  if (is_pageable(to) || is_pageable(from)) stream.synchronize();
  return result(cudaSuccess);
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes,
                                cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind, cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  stream.push([=] {
    for (std::size_t row = 0; row < height; ++row) {
      std::memmove(static_cast<char*>(to) + row * to_pitch,
                   static_cast<const char*>(from) + row * from_pitch, width);
    }
  });
  stream.synchronize();
  return result(cudaSuccess);
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  stream_of(stream).push([=] { std::memset(memory, value, bytes); });
  return result(cudaSuccess);
}

cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  cudaMemsetAsync(memory, value, bytes, nullptr);
  return cudaStreamSynchronize(nullptr);
}

// ---- streams and events

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned, int priority) {
  *out = reinterpret_cast<cudaStream_t>(make_stream(priority));
  return result(cudaSuccess);
}

cudaError_t cudaStreamCreate(cudaStream_t* out) { return cudaStreamCreateWithPriority(out, 0, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) {
  return cudaStreamCreateWithPriority(out, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return result(cudaSuccess); }

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  *priority = stream_of(stream).priority();
  return result(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return result(stream_of(stream).is_idle() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ++waits;
  stream_of(stream).synchronize();
  return result(cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::shared_ptr<Record> record = last_record(event);
  if (record != nullptr) stream_of(stream).push([record] { record->await(); });
  return result(cudaSuccess);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  stream_of(stream).push([=] { function(data); });
  return result(cudaSuccess);
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data,
                                  unsigned) {
  stream_of(stream).push([=] { function(stream, cudaSuccess, data); });
  return result(cudaSuccess);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return result(cudaSuccess);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, std::size_t*) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) *id = 0;
  return result(cudaSuccess);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return result(cudaSuccess);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
  *out = reinterpret_cast<cudaEvent_t>(new Event);
  return result(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t* out) { return cudaEventCreateWithFlags(out, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Event*>(event);
  return result(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  Event& event = *reinterpret_cast<Event*>(handle);
  const auto record = std::make_shared<Record>();
  {
    const std::scoped_lock lock(event.mutex);
    event.last = record;
  }
  stream_of(stream).push([record] { record->note_done(); });
  return result(cudaSuccess);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::shared_ptr<Record> record = last_record(event);
  return result(record == nullptr || record->done_at() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ++waits;
  if (const std::shared_ptr<Record> record = last_record(event)) record->await();
  return result(cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  const std::shared_ptr<Record> first = last_record(from), second = last_record(to);
  if (first == nullptr || second == nullptr) return result(cudaErrorInvalidValue);
  const auto begun = first->done_at(), ended = second->done_at();
  if (!begun || !ended) return result(cudaErrorNotReady);
  *ms = std::chrono::duration<float, std::milli>(*ended - *begun).count();
  return result(cudaSuccess);
}

// ---- kernels: the calls that compilers make for <<<…>>>

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}

void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}

void __cudaRegisterFunction(void**, const char* kernel, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  kernel_names()[kernel] = name;
}

void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
char __cudaInitModule(void**) { return 1; }

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes,
                                     struct CUstream_st* stream) {
  launch_configuration = {
      .grid = grid, .block = block, .shared_bytes = shared_bytes, .stream = stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes,
                                       void* stream) {
  *grid = launch_configuration.grid;
  *block = launch_configuration.block;
  *shared_bytes = launch_configuration.shared_bytes;
  *static_cast<void**>(stream) = launch_configuration.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* out, const void* kernel) {
  *out = reinterpret_cast<cudaKernel_t>(const_cast<void*>(kernel));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return refuse_kernel(kernel);
}

cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return refuse_kernel(kernel);
}

cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3, dim3, void**, std::size_t,
                                        cudaStream_t) {
  return refuse_kernel(kernel);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* kernel, void**) {
  return refuse_kernel(kernel);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  return result(cudaSuccess);
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return result(cudaSuccess);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks_out, const void*, int,
                                                          std::size_t) {
  *blocks_out = 1;
  return result(cudaSuccess);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks_out, const void*,
                                                                   int, std::size_t, unsigned) {
  *blocks_out = 1;
  return result(cudaSuccess);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *function = nullptr;
  if (found != nullptr) *found = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // extern "C"
