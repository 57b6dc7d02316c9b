// The profiler plugin for NCCL as NCCL uses it: loaded as a library, called through the structures that it
// exports, in the order in which NCCL calls.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/common/worker_abi/collective_record.h"
#include "worker_lib/nccl_profiler/profiler_interface.h"

namespace ddprun::nccl {
namespace {

using record::Operation;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The agent's side: the record of this process.
const record::Memory* the_record() {
  static const record::Memory* const memory = [] {
    const int fd = ::memfd_create("record", 0);
    const record::Header header{.worker_pid = ::getpid()};
    EXPECT_EQ(::ftruncate(fd, record::kBytes), 0);
    EXPECT_EQ(::pwrite(fd, &header, sizeof header, 0), ssize_t{sizeof header});
    ::setenv(record::kVariable, std::to_string(fd).c_str(), 1);
    ::setenv("WORLD_SIZE", "4", 1);
    return static_cast<const record::Memory*>(
        ::mmap(nullptr, record::kBytes, PROT_READ, MAP_SHARED, fd, 0));
  }();
  return memory;
}

template <typename Profiler>
const Profiler& plugin(const char* symbol) {
  the_record();
  static void* const library = ::dlopen(DDPRUN_NCCL_PROFILER, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr) << ::dlerror();
  return *static_cast<const Profiler*>(::dlsym(library, symbol));
}
const ProfilerV5& v5() { return plugin<ProfilerV5>("ncclProfiler_v5"); }
const ProfilerV4& v4() { return plugin<ProfilerV4>("ncclProfiler_v4"); }

Event all_reduce(std::size_t count, int channels) {
  Event event{};
  event.type_word = kCollective;
  event.collective = {.number = 0,
                      .function = "AllReduce",
                      .sent = nullptr,
                      .received = nullptr,
                      .count = count,
                      .root = 0,
                      .type = "ncclFloat32",
                      .channels = static_cast<std::uint8_t>(channels),
                      .warps = 8,
                      .algorithm = "RING",
                      .protocol = "LL"};
  return event;
}

class NcclProfiler : public ::testing::Test {
 protected:
  NcclProfiler() {
    int mask = 0;
    EXPECT_EQ(v5().init(&context_, 0xabcdef12, &mask, "default_pg", 1, 4, 2, nullptr), kSuccess);
    EXPECT_EQ(static_cast<std::uint64_t>(mask), kCollective | kMessage | kKernelChannel);
  }
  ~NcclProfiler() override { EXPECT_EQ(v5().finalize(context_), kSuccess); }

  void* start(Event event) {
    void* handle = nullptr;
    EXPECT_EQ(v5().start_event(context_, &handle, &event), kSuccess);
    return handle;
  }
  void* start_channel(void* parent) {
    Event event{};
    event.type_word = kKernelChannel;
    event.parent = parent;
    return start(event);
  }
  static void stop(void* handle) { EXPECT_EQ(v5().stop_event(handle), kSuccess); }
  static record::RecordedGroup group() {
    auto groups = record::read(*the_record());
    EXPECT_THAT(groups, SizeIs(1));
    return groups.empty() ? record::RecordedGroup{} : groups[0];
  }

  void* context_ = nullptr;
};

TEST_F(NcclProfiler, ACollectiveLastsUntilTheLastChannelOfItsKernelHasEnded) {
  void* const call = start(all_reduce(12, 2));
  ASSERT_TRUE(group().open);
  EXPECT_EQ(group().name, "nccl default_pg abcdef12");
  EXPECT_EQ(group().rank, 2U);
  EXPECT_EQ(group().size, 4U);
  EXPECT_EQ(group().open->number, 1U);
  EXPECT_EQ(group().open->call.operation, Operation::kAllReduce);
  EXPECT_EQ(group().open->call.type, 6);
  EXPECT_EQ(group().open->call.elements, 12U);
  EXPECT_EQ(group().open->call.root, -1);
  stop(call);  // the host has enqueued it
  EXPECT_TRUE(group().open);
  void* const first = start_channel(call);
  void* const second = start_channel(call);
  stop(first);
  EXPECT_TRUE(group().open);
  stop(second);
  EXPECT_FALSE(group().open);
  EXPECT_EQ(group().calls, 1U);
}

TEST_F(NcclProfiler, TheFirstOfSeveralThatAreEnqueuedIsWhereItWaits) {
  std::vector<void*> calls;
  for (std::size_t i = 1; i <= 5; ++i) calls.push_back(start(all_reduce(i, 1)));
  for (void* const call : calls) stop(call);
  EXPECT_EQ(group().open->number, 1U);
  EXPECT_EQ(group().calls, 5U);
  stop(start_channel(calls[0]));
  EXPECT_EQ(group().open->number, 2U);
  // NCCL may not tell of a channel; the kernels run one after the other.
  stop(start_channel(calls[3]));
  EXPECT_EQ(group().open->number, 5U);
}

TEST_F(NcclProfiler, ACollectiveWithoutChannelsIsOverWithTheHostsPart) {
  void* const call = start(all_reduce(12, 0));
  EXPECT_TRUE(group().open);
  stop(call);
  EXPECT_FALSE(group().open);
}

TEST_F(NcclProfiler, AMessageIsACallOfTheTwoRanksAlone) {
  Event event{};
  event.type_word = kMessage;
  event.message = {.function = "Send",
                   .buffer = nullptr,
                   .type = "ncclBfloat16",
                   .count = 7,
                   .peer = 3,
                   .channels = 1};
  void* const call = start(event);
  auto groups = record::read(*the_record());
  ASSERT_THAT(groups, SizeIs(2));
  EXPECT_EQ(groups[0].calls, 0U);
  EXPECT_EQ(groups[1].name, "nccl default_pg abcdef12 2->3");
  EXPECT_EQ(groups[1].peer, 3U);
  ASSERT_TRUE(groups[1].open);
  EXPECT_EQ(groups[1].open->call.type, 15);
  stop(call);
  stop(start_channel(call));
  EXPECT_FALSE(record::read(*the_record())[1].open);
}

TEST_F(NcclProfiler, WhatNcclDoesNotSayIsLeftOpen) {
  Event event = all_reduce(3, 1);
  event.collective.function = nullptr;
  event.collective.type = "ncclSomethingNew";
  stop(start(event));
  EXPECT_EQ(group().open->call.operation, Operation::kOther);
  EXPECT_EQ(group().open->call.type, record::kNoType);
  event = all_reduce(3, 1);
  event.collective.function = "Broadcast";
  event.collective.root = 1;
  start(event);
  EXPECT_EQ(group().last->call.root, 1);
}

TEST_F(NcclProfiler, HandlesThatAreNoneAreOfNoEffect) {
  stop(nullptr);
  stop(reinterpret_cast<void*>(~std::uintptr_t{0}));
  EXPECT_EQ(start_channel(nullptr), nullptr);
  Event other{};
  other.type_word = 1U << 3;  // of a proxy
  EXPECT_EQ(start(other), nullptr);
  EXPECT_EQ(v5().record_event_state(nullptr, 3, nullptr), kSuccess);
  void* const call = start(all_reduce(1, 1));
  stop(call);
  for (int i = 0; i < 10'000; ++i) stop(start(all_reduce(1, 0)));
  stop(start_channel(call));  // of a call that is long forgotten
  EXPECT_EQ(group().calls, 10'001U);
}

TEST_F(NcclProfiler, ChannelsEndOnAThreadOfNccls) {
  constexpr int kCalls = 500;
  std::vector<void*> calls;
  for (int i = 0; i < kCalls; ++i) calls.push_back(start(all_reduce(1, 2)));
  std::thread proxy([&] {
    for (void* const call : calls) {
      stop(start_channel(call));
      stop(start_channel(call));
    }
  });
  for (void* const call : calls) stop(call);
  proxy.join();
  EXPECT_FALSE(group().open);
  EXPECT_EQ(group().calls, std::uint64_t{kCalls});
}

TEST(NcclProfilerV4, HasItsArgumentsInAnotherOrderAndOneByteForTheKind) {
  void* context = nullptr;
  int mask = 0;
  ASSERT_EQ(v4().init(&context, &mask, "tp", 1, 1, 2, 0, nullptr), kSuccess);
  ASSERT_NE(mask, 0);
  Event event = all_reduce(2, 1);
  event.type_word |= 0xdeadbeef00;  // what stands behind the byte means nothing
  void* call = nullptr;
  ASSERT_EQ(v4().start_event(context, &call, &event), kSuccess);
  ASSERT_THAT(record::read(*the_record()), SizeIs(1));
  EXPECT_EQ(record::read(*the_record())[0].name, "nccl tp 00000001");
  EXPECT_TRUE(record::read(*the_record())[0].open);
  EXPECT_EQ(v4().finalize(context), kSuccess);
  EXPECT_THAT(record::read(*the_record()), IsEmpty());
  EXPECT_EQ(v4().stop_event(call), kSuccess) << "NCCL's threads may be late";
}

TEST(NcclProfilerAlone, ACommunicatorOfOneRankIsNotLookedAt) {
  void* context = nullptr;
  int mask = -1;
  ASSERT_EQ(v5().init(&context, 1, &mask, nullptr, 1, 1, 0, nullptr), kSuccess);
  EXPECT_EQ(mask, 0);
  EXPECT_EQ(context, nullptr);
  EXPECT_EQ(v5().finalize(context), kSuccess);
}

}  // namespace
}  // namespace ddprun::nccl
