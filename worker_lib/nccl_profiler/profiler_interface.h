// NCCL's interface for profiler plugins, versions 4 (NCCL 2.27) and 5 (2.28 and newer), as far as it is used
// here: NCCL finds one of two structures of functions by its name, makes a context with each communicator,
// and tells what begins and ends in it. Declared by NCCL's documentation, because its wheels have no header
// for it. Do not change the layout.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ddprun::nccl {

using Result = int;  // ncclResult_t
inline constexpr Result kSuccess = 0;

// Kinds of events, bits of the mask that a plugin asks for.
inline constexpr std::uint64_t kCollective = 1U << 1;
inline constexpr std::uint64_t kMessage = 1U << 2;        // point to point
inline constexpr std::uint64_t kKernelChannel = 1U << 6;  // a GPU's part of one of these

// Version 4 has one byte at the beginning where version 5 has eight: the rest is at the same places.
struct Event {
  std::uint64_t type_word;  // of version 4 the lowest byte alone
  void* parent;             // of a kernel channel: what startEvent has returned for the collective
  int rank;
  union {
    struct {
      std::uint64_t number;
      const char* function;  // "AllReduce"
      const void* sent;
      void* received;
      std::size_t count;
      int root;
      const char* type;  // "ncclFloat32"
      std::uint8_t channels;
      std::uint8_t warps;
      const char* algorithm;
      const char* protocol;
    } collective;
    struct {
      const char* function;  // "Send", "Recv"
      void* buffer;
      const char* type;
      std::size_t count;
      int peer;
      std::uint8_t channels;
    } message;
  };
};
static_assert(offsetof(Event, parent) == 8 && offsetof(Event, rank) == 16 &&
              offsetof(Event, collective) == 24 && offsetof(Event, collective.channels) == 80 &&
              offsetof(Event, message.peer) == 56);

using Log = void (*)(int level, unsigned long flags, const char* file, int line, const char* format,
                     ...);

struct ProfilerV4 {
  const char* name;
  Result (*init)(void** context, int* mask, const char* communicator, std::uint64_t id, int nodes,
                 int ranks, int rank, Log log);
  Result (*start_event)(void* context, void** handle, Event* event);
  Result (*stop_event)(void* handle);
  Result (*record_event_state)(void* handle, int state, void* arguments);
  Result (*finalize)(void* context);
};

struct ProfilerV5 {
  const char* name;
  Result (*init)(void** context, std::uint64_t id, int* mask, const char* communicator, int nodes,
                 int ranks, int rank, Log log);
  Result (*start_event)(void* context, void** handle, Event* event);
  Result (*stop_event)(void* handle);
  Result (*record_event_state)(void* handle, int state, void* arguments);
  Result (*finalize)(void* context);
};

}  // namespace ddprun::nccl
