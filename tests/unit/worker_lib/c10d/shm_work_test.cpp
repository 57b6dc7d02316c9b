// The Work that c10d gets over shared memory.
#include "worker_lib/c10d/shm_work.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/worker_lib/shm/shm_node.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;

// For the queue's thread, which takes a while between the end of the job and that of its future.
class SlowlyEnding : public ShmJob {
 public:
  SlowlyEnding() : ShmJob({}) {}
  void begin() override {}
  void finish(std::chrono::nanoseconds) override {}
  bool is_quick() const override { return false; }
  bool can_finish(std::chrono::nanoseconds) override { return true; }
  void ended() noexcept override {
    std::this_thread::sleep_for(5ms);
    ShmJob::ended();
  }
};

TEST(ShmWork, TheFutureHasItsValueWhenTheWorkIsOver) {
  shm::test::on_threads(1, 4096, [](shm::NodeGroup& group) {
    const std::shared_ptr<shm::NodeGroup> node(&group, [](auto*) {});
    const auto started = [&] {
      return post_job(std::make_shared<SlowlyEnding>(), c10d::OpType::BARRIER, 0, 1, node, nullptr);
    };
    const auto asked_before = started();
    const auto future = asked_before->getFuture();
    asked_before->wait(20s);
    EXPECT_TRUE(future->completed());

    const auto asked_after = started();
    asked_after->wait(20s);
    EXPECT_TRUE(asked_after->getFuture()->completed());

    const auto looked_at = started();
    const auto its_future = looked_at->getFuture();
    while (!looked_at->isCompleted()) std::this_thread::yield();
    EXPECT_TRUE(its_future->completed());
  });
}

}  // namespace
}  // namespace ddprun
