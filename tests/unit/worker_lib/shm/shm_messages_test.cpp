// Messages between ranks through shared memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <random>

#include "tests/unit/worker_lib/shm/shm_node.h"

namespace ddprun::shm::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kTiny = 1;

Bytes bytes_of(int rank, int tag, std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::uint8_t>(i * 7 + static_cast<std::size_t>(rank * 31 + tag));
  }
  return bytes;
}

struct Pending {
  Bytes bytes;
  std::promise<int> promise;  // the other rank
  std::future<int> done = promise.get_future();

  Messages::Message message(int peer, int tag, Clock::time_point until = Clock::now() + 30s) {
    return {.peer = peer,
            .tag = tag,
            .type = Type::kUInt8,
            .data = bytes.data(),
            .bytes = bytes.size(),
            .until = until,
            .ended = [this](std::exception_ptr error, int other) {
              if (error) {
                promise.set_exception(error);
              } else {
                promise.set_value(other);
              }
            }};
  }
};

std::unique_ptr<Pending> send(NodeGroup& node, int to, int tag, std::size_t size) {
  auto pending = std::make_unique<Pending>();
  pending->bytes = bytes_of(node.exchange().rank(), tag, size);
  node.messages().send(pending->message(to, tag));
  return pending;
}

std::unique_ptr<Pending> receive(NodeGroup& node, int from, int tag, std::size_t size,
                                 Clock::time_point until = Clock::now() + 30s) {
  auto pending = std::make_unique<Pending>();
  pending->bytes.resize(size);
  node.messages().receive(pending->message(from, tag, until));
  return pending;
}

std::string error_of(Pending& pending) {
  try {
    pending.done.get();
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "nothing was thrown";
}

// Small ones, and some that the ring does not hold by far.
const std::vector<std::size_t> kSizes = {0, 1, 100, 4000, 100000};

TEST(ShmMessages, MessagesBothWaysAtOnceArriveWhateverTheirSize) {
  on_threads(3, kTiny, [](NodeGroup& node) {
    const int rank = node.exchange().rank();
    std::vector<std::unique_ptr<Pending>> sent;
    std::vector<std::unique_ptr<Pending>> received;
    for (const std::size_t size : kSizes) {
      for (int other = 0; other < 3; ++other) {
        if (other == rank) continue;
        sent.push_back(send(node, other, static_cast<int>(size), size));
        received.push_back(receive(node, other, static_cast<int>(size), size));
      }
    }
    for (const auto& one : sent) one->done.get();
    for (const auto& one : received) {
      const int from = one->done.get();
      EXPECT_EQ(one->bytes, bytes_of(from, static_cast<int>(one->bytes.size()), one->bytes.size()));
    }
    run<Barrier>(node);
  });
}

TEST(ShmMessages, TagsMayBeTakenInAnotherOrderThanTheyCame) {
  on_threads(2, kTiny, [](NodeGroup& node) {
    constexpr int kMessages = 40;
    std::vector<std::unique_ptr<Pending>> all;
    for (int i = 0; i < kMessages; ++i) {
      if (node.exchange().rank() == 0) {
        all.push_back(send(node, 1, i, 3000));
      } else {
        all.push_back(receive(node, 0, kMessages - 1 - i, 3000));
      }
    }
    for (int i = 0; i < kMessages; ++i) {
      all[static_cast<std::size_t>(i)]->done.get();
      if (node.exchange().rank() == 1) {
        EXPECT_EQ(all[static_cast<std::size_t>(i)]->bytes, bytes_of(0, kMessages - 1 - i, 3000));
      }
    }
    run<Barrier>(node);
  });
}

TEST(ShmMessages, WithEqualTagsTheOrderIsKept) {
  on_threads(2, kTiny, [](NodeGroup& node) {
    std::vector<std::unique_ptr<Pending>> all;
    for (std::size_t size = 1; size <= 50; ++size) {
      all.push_back(node.exchange().rank() == 0 ? send(node, 1, 9, size)
                                                : receive(node, 0, 9, size));
    }
    for (const auto& one : all) one->done.get();  // a message of another size would throw
    run<Barrier>(node);
  });
}

TEST(ShmMessages, FromAnyTakesWhatComesAndSaysFromWhom) {
  on_threads(4, kTiny, [](NodeGroup& node) {
    if (node.exchange().rank() != 0) {
      send(node, 0, 1, 5000)->done.get();
    } else {
      std::vector<int> senders;
      for (int i = 0; i < 3; ++i) {
        const auto one = receive(node, Messages::kAny, 1, 5000);
        senders.push_back(one->done.get());
        EXPECT_EQ(one->bytes, bytes_of(senders.back(), 1, 5000));
      }
      EXPECT_THAT(senders, testing::UnorderedElementsAre(1, 2, 3));
    }
    run<Barrier>(node);
  });
}

TEST(ShmMessages, AnotherSizeIsNamedAndWhatFollowsStillArrives) {
  on_threads(2, kTiny, [](NodeGroup& node) {
    if (node.exchange().rank() == 0) {
      send(node, 1, 1, 9000)->done.get();
      send(node, 1, 1, 10)->done.get();
    } else {
      EXPECT_THAT(error_of(*receive(node, 0, 1, 8000)),
                  HasSubstr("rank 0 sends 9000 bytes of uint8 where rank 1 receives 8000"));
      EXPECT_EQ(receive(node, 0, 1, 10)->done.get(), 0);
    }
    run<Barrier>(node);
  });
}

TEST(ShmMessages, ALateSenderAndOneThatLeavesAreNamed) {
  on_threads(2, kTiny, [](NodeGroup& node) {
    if (node.exchange().rank() == 1) {
      run<Barrier>(node);
      return;  // and leaves
    }
    EXPECT_THAT(error_of(*receive(node, 1, 1, 8, Clock::now() + 20ms)),
                HasSubstr("receive timed out: rank 1 did not come in time"));
    const auto pending = receive(node, 1, 1, 8);
    run<Barrier>(node);
    EXPECT_THAT(error_of(*pending), HasSubstr("rank 1 has left the group"));
    EXPECT_THAT(error_of(*send(node, 1, 1, 1000000)), HasSubstr("rank 1 has left the group"));
  });
}

TEST(ShmMessages, ClosingEndsWhatIsUnderWayHere) {
  on_threads(2, kTiny, [](NodeGroup& node) {
    run<Barrier>(node);
    if (node.exchange().rank() == 1) {
      while (!node.exchange().is_lost(0)) std::this_thread::sleep_for(1ms);
      return;
    }
    const auto received = receive(node, 1, 1, 8);
    const auto sent = send(node, 1, 1, 1000000);
    node.close();
    EXPECT_THAT(error_of(*received), HasSubstr("rank 0 has left the group"));
    EXPECT_THAT(error_of(*sent), HasSubstr("rank 0 has left the group"));
  });
}

TEST(ShmMessages, AReceiverHearsWithinMomentsThatTheSenderWasKilled) {
  Children children(2, kTiny, [](NodeGroup& node) {
    if (node.exchange().rank() == 1) ::kill(::getpid(), SIGKILL);
    const std::string text = error_of(*receive(node, 1, 1, 8));
    if (text.find("rank 1 (process") == std::string::npos) throw std::runtime_error(text);
  });
  EXPECT_EQ(children.wait(0), 0);
}

}  // namespace
}  // namespace ddprun::shm::test
