// The order in which calls over NCCL are ended.
#include "worker_lib/c10d/nccl_ending.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "worker_lib/c10d/nccl_module.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;

// It notes what is done to it.
class NotingBackend final : public c10d::Backend, public NcclCommunicator {
 public:
  explicit NotingBackend(std::shared_ptr<std::atomic<int>> ended,
                         std::shared_ptr<std::atomic<int>> freed)
      : Backend(0, 1), ended_(std::move(ended)), freed_(std::move(freed)) {}
  void end_kernels() override { ++*ended_; }
  void abort() override {
    may_free.wait(false);
    ++*freed_;
  }

  static inline std::atomic<bool> may_free = true;

 private:
  const std::shared_ptr<std::atomic<int>> ended_, freed_;
};

class Ending : public ::testing::Test {
 protected:
  Ending() {
    for (int i = 0; i < 2; ++i) {
      const auto group = c10::make_intrusive<c10d::ProcessGroup>(
          c10::make_intrusive<c10d::HashStore>(), /*rank=*/0, /*size=*/1);
      group->setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::CUSTOM,
                        c10::make_intrusive<NotingBackend>(ended_, freed_));
      groups_.push_back(group);
    }
  }
  static void wait_for(const std::atomic<int>& count, int value) {
    for (int i = 0; i < 2000 && count < value; ++i) std::this_thread::sleep_for(5ms);
    EXPECT_GE(count, value);
  }

  const std::shared_ptr<std::atomic<int>> ended_ = std::make_shared<std::atomic<int>>(0);
  const std::shared_ptr<std::atomic<int>> freed_ = std::make_shared<std::atomic<int>>(0);
  NcclEnding::Groups groups_;
  std::atomic<int> asked_ = 0;
  std::atomic<bool> do_all_know_ = false;
};

TEST_F(Ending, ComesWhenAllKnowAndFreesWhenAllAreIdle) {
  NcclEnding ending(groups_, [this](std::chrono::milliseconds) {
    ++asked_;
    return do_all_know_.load();
  });
  wait_for(asked_, 2);
  EXPECT_EQ(*ended_, 0);
  do_all_know_ = true;
  wait_for(*ended_, 2);
  ending.note_idle();
  EXPECT_EQ(*freed_, 0);
  ending.free();
  EXPECT_EQ(*freed_, 2);
}

TEST_F(Ending, MayFreeLater) {
  NotingBackend::may_free = false;
  {
    NcclEnding ending(groups_, [](std::chrono::milliseconds) { return true; });
    ending.note_idle();
    ending.free_later();
    EXPECT_FALSE(ending.is_freed());
    EXPECT_EQ(*freed_, 0);
    NotingBackend::may_free = true;
    NotingBackend::may_free.notify_all();
  }
  EXPECT_EQ(*freed_, 2) << "it awaits its thread";
}

TEST_F(Ending, IsGivenUpWhileNotAllKnow) {
  {
    const NcclEnding ending(groups_, [this](std::chrono::milliseconds) {
      ++asked_;
      return false;
    });
    wait_for(asked_, 1);
  }
  EXPECT_EQ(*ended_, 0);
  EXPECT_EQ(*freed_, 0);
}

}  // namespace
}  // namespace ddprun
