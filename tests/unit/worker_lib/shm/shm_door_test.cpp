// How the ranks of a node meet, and how they give each other memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <functional>
#include <thread>
#include <vector>

#include "ddprun/error.h"
#include "worker_lib/shm/shm_door.h"

namespace ddprun::shm {
namespace {

using namespace std::chrono_literals;
using testing::Each;
using testing::HasSubstr;

Deadline soon() { return std::chrono::steady_clock::now() + 20s; }

Door make_door() { return value_or_throw(Door::open()); }

// Each place a thread.
void in_circle(int size, const std::function<void(int place, Circle& circle)>& body) {
  const Door door = make_door();
  std::vector<std::thread> threads;
  for (int place = 0; place < size; ++place) {
    threads.emplace_back([&, place] {
      auto circle = place == 0 ? Circle::host(door, size, soon())
                               : Circle::visit(door.address(), place, soon());
      ASSERT_TRUE(circle) << circle.error().message;
      body(place, *circle);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

ino_t file_of(const rdzv::UniqueFd& fd) {
  struct stat found {};
  EXPECT_EQ(::fstat(fd.get(), &found), 0);
  return found.st_ino;
}

TEST(ShmDoor, GivesOneMemoryToAll) {
  const rdzv::UniqueFd memory(::memfd_create("test", MFD_CLOEXEC));
  in_circle(3, [&](int place, Circle& circle) {
    if (place == 0) {
      EXPECT_TRUE(circle.give(memory));
    } else {
      const auto taken = circle.take();
      ASSERT_TRUE(taken) << taken.error().message;
      EXPECT_EQ(file_of(*taken), file_of(memory));
    }
  });
}

TEST(ShmDoor, TellsThatThereIsNoMemory) {
  in_circle(2, [](int place, Circle& circle) {
    if (place == 0) {
      EXPECT_TRUE(circle.give({}));
    } else {
      EXPECT_THAT(circle.take().error().message, HasSubstr("gave out no shared memory"));
    }
  });
}

TEST(ShmDoor, AllHearOfTheFirstTrouble) {
  std::vector<std::string> heard(4);
  in_circle(4, [&](int place, Circle& circle) {
    for (const std::string trouble : {"", place >= 2 ? "trouble of " : "", ""}) {
      const std::string own = trouble.empty() ? "" : trouble + std::to_string(place);
      heard[static_cast<std::size_t>(place)] += value_or_throw(circle.agree(own)) + "|";
    }
  });
  EXPECT_THAT(heard, Each("|trouble of 2||"));
}

TEST(ShmDoor, WordsAreCutRatherThanLost) {
  const std::string words(3 * Circle::kMostWords, 'x');
  for (const int troubled : {0, 1}) {
    in_circle(2, [&](int place, Circle& circle) {
      EXPECT_EQ(value_or_throw(circle.agree(place == troubled ? words : "")),
                words.substr(0, Circle::kMostWords));
    });
  }
}

TEST(ShmDoor, WhoLeavesIsMissedAtOnce) {
  for (const int leaver : {0, 1}) {
    const Door door = make_door();
    std::vector<ErrorCode> codes;
    {
      std::thread visitor([&] {
        auto circle = value_or_throw(Circle::visit(door.address(), 1, soon()));
        if (leaver != 1) codes.push_back(circle.agree("").error().code);
      });
      auto circle = std::make_unique<Circle>(value_or_throw(Circle::host(door, 2, soon())));
      if (leaver == 0) {
        circle.reset();
      } else {
        codes.push_back(circle->agree("").error().code);
      }
      visitor.join();
    }
    EXPECT_THAT(codes, testing::ElementsAre(ErrorCode::kClosed)) << "place " << leaver;
  }
}

TEST(ShmDoor, SendsStrangersAway) {
  const Door door = make_door();
  std::thread visitors([&] {
    std::string wrong = door.address();
    wrong.back() = wrong.back() == '0' ? '1' : '0';
    auto stranger = value_or_throw(Circle::visit(wrong, 1, soon()));
    EXPECT_THAT(stranger.take().error().message, HasSubstr("gave out no shared memory"));
    auto beyond = value_or_throw(Circle::visit(door.address(), 3, soon()));
    EXPECT_FALSE(beyond.agree(""));
    auto one = value_or_throw(Circle::visit(door.address(), 1, soon()));
    auto again = value_or_throw(Circle::visit(door.address(), 1, soon()));
    EXPECT_FALSE(again.agree("")) << "a place is taken once";
    auto two = value_or_throw(Circle::visit(door.address(), 2, soon()));
    std::thread other([&] { EXPECT_TRUE(one.agree("")); });
    EXPECT_TRUE(two.agree(""));
    other.join();
  });
  auto circle = value_or_throw(Circle::host(door, 3, soon()));
  EXPECT_TRUE(circle.agree(""));
  visitors.join();
}

TEST(ShmDoor, WaitsForVisitorsOnlySoLong) {
  const Door door = make_door();
  const auto circle = Circle::host(door, 2, std::chrono::steady_clock::now() + 20ms);
  ASSERT_FALSE(circle);
  EXPECT_EQ(circle.error().code, ErrorCode::kTimeout);
  EXPECT_THAT(circle.error().message, HasSubstr("only 0 of 1 ranks of this node came"));
}

TEST(ShmDoor, WaitsForWordsOnlySoLong) {
  const Door door = make_door();
  const auto silent = value_or_throw(Circle::visit(door.address(), 1, soon()));
  auto host = value_or_throw(Circle::host(door, 2, std::chrono::steady_clock::now() + 20ms));
  EXPECT_EQ(host.agree("").error().code, ErrorCode::kTimeout);
}

TEST(ShmDoor, IsFoundByItsOwnProcessOnly) {
  std::string address;
  {
    const Door door = make_door();
    address = door.address();
  }
  EXPECT_FALSE(Circle::visit(address, 1, soon())) << "after it is closed";
  const Door door = make_door();
  std::string other = door.address();
  const std::size_t colon = other.find(':');
  other.insert(colon + 1, "1");
  EXPECT_THAT(Circle::visit(other, 1, soon()).error().message,
              HasSubstr("answers where process 1"));
  EXPECT_THAT(Circle::visit("nonsense", 1, soon()).error().message, HasSubstr("is no address"));
}

}  // namespace
}  // namespace ddprun::shm
