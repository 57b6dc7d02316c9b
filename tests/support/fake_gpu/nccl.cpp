// libnccl.so.2 for the fake GPU (README.md): a collective is work of a stream, which meets the other ranks in shared memory.
// If a rank is gone, it waits without an end, as a kernel of NCCL does; only ncclCommAbort or ncclCommRevoke ends it, and
// leaves 0xff in its output, which is NaN for floats. Sums are made in the order of a ring, so their bits depend on where in
// a buffer an element lies.
#include <arpa/inet.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <nccl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "worker_lib/nccl_profiler/profiler_interface.h"

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kRanksMax = 8;
constexpr std::size_t kSliceBytes = 1 << 20;
constexpr std::size_t kMessageBytes = 64 << 10;
// So long abort and revoke took on an H200: NCCL joins two threads that poll.
constexpr int kAbortMs = 1000;

int setting(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

void wait_ms(int ms) {
  if (ms > 0) std::this_thread::sleep_for(milliseconds(ms));
}

// What the ranks of a communicator share; zero at first. The slices of the ranks follow it.
struct Meeting {
  struct Rank {
    std::atomic<int> pid;
    std::atomic<std::uint64_t> entered, left;  // turns
  };
  // A message on its way between two ranks.
  struct Box {
    std::atomic<std::uint64_t> sent, received;  // pieces
    char piece[kMessageBytes];
  };
  Rank ranks[kRanksMax];
  // An ended kernel of NCCL tells its neighbours that their data is there: theirs end with what is there.
  std::atomic<bool> has_ended;
  Box boxes[kRanksMax][kRanksMax];  // [from][to]
};

}  // namespace

struct ncclComm {
  int rank = 0, size = 0, device = 0;
  Meeting* meeting = nullptr;
  char* slices = nullptr;
  std::uint64_t turn = 0;                    // the stream's thread counts it
  std::atomic<bool> is_ended = false;        // its kernels end
  std::atomic<bool> refuses_calls = false;   // revoked or aborted
  std::atomic<bool> has_no_proxies = false;  // their threads are joined once
  std::atomic<int> kernels = 0;              // queued or running
  // Kernels of a communicator run one after the other, also those on several streams.
  std::atomic<std::uint64_t> queued = 0, run = 0;
  std::atomic<int> async_error = ncclSuccess;
  std::thread making;        // makes a communicator that does not block
  void* profiled = nullptr;  // the profiler's context; null: there is no profiler

  // False if the communicator is ended meanwhile.
  template <typename Condition>
  bool await(Condition condition) {
    for (int tries = 0; !condition(); ++tries) {
      if (is_ended) return false;
      if (tries > 200) std::this_thread::sleep_for(microseconds(20));
    }
    return true;
  }

  bool await_all(std::atomic<std::uint64_t> Meeting::Rank::*turns, std::uint64_t least) {
    return await([&] {
      return meeting->has_ended ||
             std::all_of(meeting->ranks, meeting->ranks + size, [&](const Meeting::Rank& each) {
               return (each.*turns).load(std::memory_order_acquire) >= least;
             });
    });
  }

  const char* slice_of(int rank_of_slice) const {
    return slices + static_cast<std::size_t>(rank_of_slice) * kSliceBytes;
  }

  // Each rank shows `bytes` of `own` (nullptr: nothing), slice by slice; `look` sees the slices of all ranks.
  bool exchange(const char* own, std::size_t bytes,
                const std::function<void(std::size_t at, std::size_t size)>& look) {
    for (std::size_t at = 0; at < bytes; at += kSliceBytes) {
      const std::size_t part = std::min(kSliceBytes, bytes - at);
      ++turn;
      if (!await_all(&Meeting::Rank::left, turn - 1)) return false;
      if (own != nullptr)
        std::memcpy(slices + static_cast<std::size_t>(rank) * kSliceBytes, own + at, part);
      meeting->ranks[rank].entered.store(turn, std::memory_order_release);
      if (!await_all(&Meeting::Rank::entered, turn)) return false;
      look(at, part);
      meeting->ranks[rank].left.store(turn, std::memory_order_release);
    }
    return true;
  }
};

namespace {

// ---- sums

struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
    std::uint32_t all = 0;
    std::memcpy(&all, &value, sizeof all);
    bits = static_cast<std::uint16_t>((all + 0x7fff + ((all >> 16) & 1)) >> 16);
  }
  explicit BFloat16(int value) : BFloat16(static_cast<float>(value)) {}
  operator float() const {
    const std::uint32_t all = std::uint32_t{bits} << 16;
    float value = 0;
    std::memcpy(&value, &all, sizeof value);
    return value;
  }
};

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

template <typename T>
T combined(T one, T other, ncclRedOp_t operation) {
  switch (operation) {
    case ncclMax:
      return std::max(one, other);
    case ncclMin:
      return std::min(one, other);
    case ncclProd:
      return static_cast<T>(one * other);
    default:
      return static_cast<T>(one + other);
  }
}

struct Reduction {
  std::size_t count;  // elements in the whole buffer
  ncclDataType_t type;
  ncclRedOp_t operation;
};

// Elements [at, at + size) in bytes. A chunk's sum begins at the rank behind the one that owns the chunk.
template <typename T>
void reduce_as(const ncclComm& communicator, char* output, std::size_t at, std::size_t size,
               const Reduction& reduction) {
  const auto ranks = static_cast<std::size_t>(communicator.size);
  for (std::size_t i = 0; i < size / sizeof(T); ++i) {
    const std::size_t chunk = (at / sizeof(T) + i) * ranks / reduction.count;
    T value{};
    for (std::size_t k = 0; k < ranks; ++k) {
      const int from = static_cast<int>((chunk + 1 + k) % ranks);
      const T theirs = reinterpret_cast<const T*>(communicator.slice_of(from))[i];
      value = k == 0 ? theirs : combined(value, theirs, reduction.operation);
    }
    if (reduction.operation == ncclAvg) {
      value = static_cast<T>(value / static_cast<T>(communicator.size));
    }
    reinterpret_cast<T*>(output + at)[i] = value;
  }
}

void reduce(const ncclComm& communicator, char* output, std::size_t at, std::size_t size,
            const Reduction& reduction) {
  switch (reduction.type) {
    case ncclFloat32:
      return reduce_as<float>(communicator, output, at, size, reduction);
    case ncclFloat64:
      return reduce_as<double>(communicator, output, at, size, reduction);
    case ncclInt32:
      return reduce_as<std::int32_t>(communicator, output, at, size, reduction);
    case ncclUint32:
      return reduce_as<std::uint32_t>(communicator, output, at, size, reduction);
    case ncclInt64:
      return reduce_as<std::int64_t>(communicator, output, at, size, reduction);
    case ncclUint64:
      return reduce_as<std::uint64_t>(communicator, output, at, size, reduction);
    case ncclInt8:
      return reduce_as<std::int8_t>(communicator, output, at, size, reduction);
    case ncclUint8:
      return reduce_as<std::uint8_t>(communicator, output, at, size, reduction);
    case ncclFloat16:
      return reduce_as<_Float16>(communicator, output, at, size, reduction);
    case ncclBfloat16:
      return reduce_as<BFloat16>(communicator, output, at, size, reduction);
    default:
      std::fprintf(stderr, "fake_gpu: NCCL's type %d is not emulated\n",
                   static_cast<int>(reduction.type));
      std::abort();
  }
}

// ---- groups of calls, and kernels

struct Message {
  bool is_send;
  char* data;
  std::size_t bytes;
  int peer;
  std::size_t done = 0;
};

struct Messages {
  ncclComm* communicator;
  cudaStream_t stream;
  std::vector<Message> all;
};

// Between ncclGroupStart() and ncclGroupEnd() of this thread.
thread_local int group_depth = 0;
thread_local std::vector<std::function<void()>> grouped_calls;
thread_local std::vector<Messages> grouped_messages;

void when_group_ends(std::function<void()> call) {
  if (group_depth > 0) {
    grouped_calls.push_back(std::move(call));
  } else {
    call();
  }
}

// NCCL_PROFILER_PLUGIN, as NCCL finds it; null: there is none.
const ddprun::nccl::ProfilerV5* profiler() {
  static const auto* const found = [] {
    const char* const path = std::getenv("NCCL_PROFILER_PLUGIN");
    void* const library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return library == nullptr
               ? nullptr
               : static_cast<const ddprun::nccl::ProfilerV5*>(dlsym(library, "ncclProfiler_v5"));
  }();
  return found;
}

struct Output {
  void* data;
  std::size_t bytes;
};

struct Kernel {
  ncclComm* communicator;
  std::uint64_t number;       // queue() gives it
  std::function<bool()> run;  // false: it was ended
  std::vector<Output> outputs;
};

void queue(cudaStream_t stream, Kernel kernel) {
  kernel.number = kernel.communicator->queued++;
  cudaLaunchHostFunc(
      stream,
      [](void* data) {
        const std::unique_ptr<Kernel> its(static_cast<Kernel*>(data));
        ncclComm& communicator = *its->communicator;
        wait_ms(setting("FAKE_NCCL_SLOW_MS", 0));
        const bool is_next = communicator.await([&] { return communicator.run == its->number; });
        if (!is_next || communicator.is_ended || !its->run()) {
          communicator.meeting->has_ended = true;
          for (const Output& each : its->outputs) std::memset(each.data, 0xff, each.bytes);
        }
        ++communicator.run;
        --communicator.kernels;
      },
      new Kernel(std::move(kernel)));
}

// The host starts a collective of one channel, and has done its part.
void* profiled_collective(const ncclComm& communicator, const char* function) {
  if (communicator.profiled == nullptr) return nullptr;
  ddprun::nccl::Event event{};
  event.type_word = ddprun::nccl::kCollective;
  event.rank = communicator.rank;
  event.collective.function = function;
  event.collective.channels = 1;
  void* handle = nullptr;
  profiler()->start_event(communicator.profiled, &handle, &event);
  profiler()->stop_event(handle);
  return handle;
}

// The GPU begins it, as NCCL's thread tells that looks at its counters.
void* profiled_kernel(const ncclComm& communicator, void* collective) {
  if (collective == nullptr) return nullptr;
  ddprun::nccl::Event event{};
  event.type_word = ddprun::nccl::kKernelChannel;
  event.parent = collective;
  void* handle = nullptr;
  profiler()->start_event(communicator.profiled, &handle, &event);
  return handle;
}

ncclResult_t launch(ncclComm* communicator, const char* function, cudaStream_t stream,
                    const Output& output, std::function<bool()> run) {
  if (communicator == nullptr || communicator->refuses_calls) return ncclInvalidUsage;
  ++communicator->kernels;
  when_group_ends([=, run = std::move(run)]() mutable {
    void* const collective = profiled_collective(*communicator, function);
    queue(stream, {.communicator = communicator,
                   .number = 0,
                   .run =
                       [=, run = std::move(run)] {
                         void* const kernel = profiled_kernel(*communicator, collective);
                         const bool has_run = run();
                         if (kernel != nullptr) profiler()->stop_event(kernel);
                         return has_run;
                       },
                   .outputs = {output}});
  });
  return ncclSuccess;
}

// ---- messages between two ranks

// Moves one piece if there is one to move.
bool move_piece(const ncclComm& communicator, Message& message) {
  Meeting::Box& box = message.is_send
                          ? communicator.meeting->boxes[communicator.rank][message.peer]
                          : communicator.meeting->boxes[message.peer][communicator.rank];
  const std::uint64_t sent = box.sent.load(std::memory_order_acquire);
  const std::uint64_t received = box.received.load(std::memory_order_acquire);
  if ((sent > received) == message.is_send) return false;
  const std::size_t part = std::min(kMessageBytes, message.bytes - message.done);
  if (message.is_send) {
    std::memcpy(box.piece, message.data + message.done, part);
    box.sent.store(sent + 1, std::memory_order_release);
  } else {
    std::memcpy(message.data + message.done, box.piece, part);
    box.received.store(received + 1, std::memory_order_release);
  }
  message.done += part;
  return true;
}

// All messages of a group move at once; two of the same pair and direction, one after the other.
bool move_all(ncclComm& communicator, std::vector<Message>& messages) {
  const auto is_done = [](const Message& each) { return each.done == each.bytes; };
  return communicator.await([&] {
    bool has_moved = true;
    while (has_moved) {
      has_moved = false;
      std::vector<std::pair<bool, int>> begun;
      for (Message& each : messages) {
        const std::pair way(each.is_send, each.peer);
        if (is_done(each) || std::ranges::find(begun, way) != begun.end()) continue;
        begun.push_back(way);
        has_moved = move_piece(communicator, each) || has_moved;
      }
    }
    return std::ranges::all_of(messages, is_done);
  });
}

void queue_messages(Messages messages) {
  ++messages.communicator->kernels;
  std::vector<Output> outputs;
  for (const Message& each : messages.all) {
    if (!each.is_send) outputs.push_back({.data = each.data, .bytes = each.bytes});
  }
  ncclComm* const communicator = messages.communicator;
  queue(messages.stream,
        {.communicator = communicator,
         .number = 0,
         .run = [communicator,
                 all = std::move(messages.all)]() mutable { return move_all(*communicator, all); },
         .outputs = std::move(outputs)});
}

ncclResult_t add_message(ncclComm* communicator, cudaStream_t stream, const Message& message) {
  if (communicator == nullptr || communicator->refuses_calls) return ncclInvalidUsage;
  if (group_depth == 0) {
    queue_messages({.communicator = communicator, .stream = stream, .all = {message}});
    return ncclSuccess;
  }
  for (Messages& each : grouped_messages) {
    if (each.communicator == communicator && each.stream == stream) {
      each.all.push_back(message);
      return ncclSuccess;
    }
  }
  grouped_messages.push_back({.communicator = communicator, .stream = stream, .all = {message}});
  return ncclSuccess;
}

// ---- communicators

// Over a socket NCCL's ranks meet: if it is shut down, a communicator that is being made comes to an error.
class Listener {
 public:
  Listener() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    listen(socket_, 1);
  }
  ~Listener() { close(socket_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  bool is_shut_down() const {
    pollfd state{.fd = socket_, .events = POLLIN, .revents = 0};
    return poll(&state, 1, 0) > 0 && (state.revents & POLLHUP) != 0;
  }

 private:
  const int socket_;
};

void make(ncclComm& communicator, const std::string& id) {
  wait_ms(setting("FAKE_NCCL_INIT_MS", 0));
  const std::string name = "/fake-nccl-" + id;
  const auto size = static_cast<off_t>(sizeof(Meeting)) +
                    static_cast<off_t>(communicator.size) * static_cast<off_t>(kSliceBytes);
  const int memory = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
  if (memory < 0 || ftruncate(memory, size) != 0) {
    communicator.async_error = ncclSystemError;
    return;
  }
  void* const mapped =
      mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  close(memory);
  communicator.meeting = static_cast<Meeting*>(mapped);
  communicator.slices = static_cast<char*>(mapped) + sizeof(Meeting);
  communicator.meeting->ranks[communicator.rank].pid = getpid();
  Meeting::Rank* const ranks = communicator.meeting->ranks;
  const Listener listener;
  bool all_are_there = false;
  communicator.await([&] {
    all_are_there = std::all_of(ranks, ranks + communicator.size,
                                [](const Meeting::Rank& each) { return each.pid != 0; });
    return all_are_there || listener.is_shut_down();
  });
  shm_unlink(name.c_str());  // all have it, or it is of no use
  communicator.async_error = all_are_there ? ncclSuccess : ncclRemoteError;
}

ncclResult_t begin(ncclComm_t* out, int size, const ncclUniqueId& id, int rank,
                   const ncclConfig_t* config) {
  if (size > kRanksMax) return ncclInvalidArgument;
  auto* communicator = new ncclComm;  // lives on: PyTorch asks aborted communicators for errors
  communicator->rank = rank;
  communicator->size = size;
  cudaGetDevice(&communicator->device);
  communicator->async_error = ncclInProgress;
  if (profiler() != nullptr) {
    int mask = 0;
    profiler()->init(&communicator->profiled, std::hash<std::string>()(id.internal), &mask, "fake",
                     /*nodes=*/1, size, rank, nullptr);
  }
  *out = communicator;
  if (config == nullptr || config->blocking != 0) {
    make(*communicator, id.internal);
    return static_cast<ncclResult_t>(communicator->async_error.load());
  }
  communicator->making =
      std::thread([communicator, name = std::string(id.internal)] { make(*communicator, name); });
  return ncclInProgress;
}

void end_kernels(ncclComm& communicator) {
  communicator.refuses_calls = true;
  communicator.is_ended = true;
  if (communicator.making.joinable()) communicator.making.join();
}

void join_proxies(ncclComm& communicator) {
  if (!communicator.has_no_proxies.exchange(true)) wait_ms(setting("FAKE_NCCL_ABORT_MS", kAbortMs));
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = setting("FAKE_NCCL_VERSION", NCCL_VERSION_CODE);
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "a remote rank has failed (fake NCCL)"
                                   : "error of the fake NCCL";
}

const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  *id = {};
  std::snprintf(id->internal, sizeof id->internal, "%d-%08x%08x", getpid(), random(), random());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return begin(communicator, size, id, rank, config);
}

ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int size, ncclUniqueId id, int rank) {
  return begin(communicator, size, id, rank, nullptr);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* communicator, int size, int rank, int,
                                      ncclUniqueId* ids, ncclConfig_t* config) {
  return begin(communicator, size, ids[0], rank, config);
}

ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  while (communicator->kernels > 0) std::this_thread::sleep_for(milliseconds(1));
  return ncclSuccess;
}

// Kernels end at once; what follows takes the time. Within a group it takes that when the group ends.
ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  end_kernels(*communicator);
  when_group_ends([communicator] { join_proxies(*communicator); });
  return ncclSuccess;
}

// As NCCL's does, it lets kernels run again at its end: one that was queued behind others then waits until the communicator is
// aborted.
ncclResult_t ncclCommRevoke(ncclComm_t communicator, int) {
  end_kernels(*communicator);
  join_proxies(*communicator);
  communicator->is_ended = false;
  return ncclSuccess;
}

// Over sockets NCCL notices that a peer is gone, over NVLink and shared memory it does not.
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
  if (communicator->async_error == ncclSuccess && setting("FAKE_NCCL_NOTICES", 0) != 0) {
    for (int rank = 0; rank < communicator->size; ++rank) {
      if (kill(communicator->meeting->ranks[rank].pid, 0) != 0) {
        communicator->async_error = ncclRemoteError;
      }
    }
  }
  *error = static_cast<ncclResult_t>(communicator->async_error.load());
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t communicator, int* count) {
  *count = communicator->size;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t communicator, int* device) {
  *device = communicator->device;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int* rank) {
  *rank = communicator->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t, void*, std::size_t, void** handle) {
  *handle = nullptr;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }

ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes) {
  return cudaMalloc(memory, bytes) == cudaSuccess ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclMemFree(void* memory) {
  return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0) return ncclSuccess;
  for (Messages& each : std::exchange(grouped_messages, {})) queue_messages(std::move(each));
  for (const auto& call : std::exchange(grouped_calls, {})) call();
  return ncclSuccess;
}

// ---- collectives

ncclResult_t ncclAllReduce(const void* input, void* output, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = count * bytes_of(type);
  return launch(communicator, "AllReduce", stream, {.data = output, .bytes = bytes}, [=] {
    const Reduction reduction{.count = count, .type = type, .operation = operation};
    return communicator->exchange(
        static_cast<const char*>(input), bytes, [&](std::size_t at, std::size_t size) {
          reduce(*communicator, static_cast<char*>(output), at, size, reduction);
        });
  });
}

ncclResult_t ncclReduce(const void* input, void* output, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t operation, int root, ncclComm_t communicator,
                        cudaStream_t stream) {
  const std::size_t bytes = count * bytes_of(type);
  const bool is_root = communicator->rank == root;
  return launch(
      communicator, "Reduce", stream, {.data = output, .bytes = is_root ? bytes : 0}, [=] {
        const Reduction reduction{.count = count, .type = type, .operation = operation};
        return communicator->exchange(
            static_cast<const char*>(input), bytes, [&](std::size_t at, std::size_t size) {
              if (is_root) reduce(*communicator, static_cast<char*>(output), at, size, reduction);
            });
      });
}

ncclResult_t ncclBroadcast(const void* input, void* output, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = count * bytes_of(type);
  return launch(communicator, "Broadcast", stream, {.data = output, .bytes = bytes}, [=] {
    const char* const own = communicator->rank == root ? static_cast<const char*>(input) : nullptr;
    return communicator->exchange(own, bytes, [&](std::size_t at, std::size_t size) {
      std::memcpy(static_cast<char*>(output) + at, communicator->slice_of(root), size);
    });
  });
}

ncclResult_t ncclBcast(void* buffer, std::size_t count, ncclDataType_t type, int root,
                       ncclComm_t communicator, cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, communicator, stream);
}

ncclResult_t ncclAllGather(const void* input, void* output, std::size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = count * bytes_of(type);
  const auto ranks = static_cast<std::size_t>(communicator->size);
  return launch(communicator, "AllGather", stream, {.data = output, .bytes = bytes * ranks}, [=] {
    return communicator->exchange(
        static_cast<const char*>(input), bytes, [&](std::size_t at, std::size_t size) {
          for (std::size_t rank = 0; rank < ranks; ++rank) {
            std::memcpy(static_cast<char*>(output) + rank * bytes + at,
                        communicator->slice_of(static_cast<int>(rank)), size);
          }
        });
  });
}

ncclResult_t ncclReduceScatter(const void* input, void* output, std::size_t count,
                               ncclDataType_t type, ncclRedOp_t operation, ncclComm_t communicator,
                               cudaStream_t stream) {
  const std::size_t bytes = count * bytes_of(type);
  const auto ranks = static_cast<std::size_t>(communicator->size);
  return launch(communicator, "ReduceScatter", stream, {.data = output, .bytes = bytes}, [=] {
    const Reduction reduction{.count = count * ranks, .type = type, .operation = operation};
    std::vector<char> all(bytes * ranks);
    const bool is_done = communicator->exchange(
        static_cast<const char*>(input), all.size(), [&](std::size_t at, std::size_t size) {
          reduce(*communicator, all.data(), at, size, reduction);
        });
    if (!is_done) return false;
    std::memcpy(output, all.data() + static_cast<std::size_t>(communicator->rank) * bytes, bytes);
    return true;
  });
}

ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  auto* const bytes = static_cast<char*>(const_cast<void*>(data));
  return add_message(
      communicator, stream,
      {.is_send = true, .data = bytes, .bytes = count * bytes_of(type), .peer = peer});
}

ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
  return add_message(communicator, stream,
                     {.is_send = false,
                      .data = static_cast<char*>(data),
                      .bytes = count * bytes_of(type),
                      .peer = peer});
}

ncclResult_t ncclAlltoAll(const void* input, void* output, std::size_t count, ncclDataType_t type,
                          ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = count * bytes_of(type);
  ncclGroupStart();
  for (int peer = 0; peer < communicator->size; ++peer) {
    const std::size_t at = static_cast<std::size_t>(peer) * bytes;
    ncclSend(static_cast<const char*>(input) + at, count, type, peer, communicator, stream);
    ncclRecv(static_cast<char*>(output) + at, count, type, peer, communicator, stream);
  }
  return ncclGroupEnd();
}

}  // extern "C"
