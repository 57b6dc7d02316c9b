// How the ranks of a node meet, and how they give each other memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <functional>
#include <thread>
#include <vector>

#include "ddprun/error.h"
#include "tests/unit/worker_lib/outcome.h"
#include "worker_lib/shm/shm_handshake.h"

namespace ddprun::shm {
namespace {

using namespace std::chrono_literals;
using testing::Each;
using testing::HasSubstr;

Deadline soon() { return std::chrono::steady_clock::now() + 20s; }

// The error of a call that fails.
template <typename Call>
Error error_of(const Call& call) {
  const auto result = test::outcome(call);
  return result ? Error{ErrorCode::kIo, "it did not fail", {}} : result.error();
}

// Each index a thread.
void in_handshake(int size, const std::function<void(int index, Handshake& handshake)>& body) {
  const Listener listener;
  std::vector<std::thread> threads;
  for (int index = 0; index < size; ++index) {
    threads.emplace_back([&, index] {
      auto handshake = index == 0 ? Handshake::accept(listener, size, soon())
                                  : Handshake::connect(listener.address(), index, soon());
      body(index, handshake);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

ino_t file_of(const rdzv::UniqueFd& fd) {
  struct stat found {};
  EXPECT_EQ(::fstat(fd.get(), &found), 0);
  return found.st_ino;
}

TEST(ShmHandshake, GivesOneMemoryToAll) {
  const rdzv::UniqueFd memory(::memfd_create("test", MFD_CLOEXEC));
  in_handshake(3, [&](int index, Handshake& handshake) {
    if (index == 0) {
      handshake.send_memory(memory);
    } else {
      EXPECT_EQ(file_of(handshake.receive_memory()), file_of(memory));
    }
  });
}

TEST(ShmHandshake, TellsThatThereIsNoMemory) {
  in_handshake(2, [](int index, Handshake& handshake) {
    if (index == 0) {
      handshake.send_memory({});
    } else {
      EXPECT_THAT(error_of([&] { return handshake.receive_memory(); }).message,
                  HasSubstr("gave out no shared memory"));
    }
  });
}

TEST(ShmHandshake, AllHearOfTheFirstTrouble) {
  std::vector<std::string> heard(4);
  in_handshake(4, [&](int index, Handshake& handshake) {
    for (const std::string trouble : {"", index >= 2 ? "trouble of " : "", ""}) {
      const std::string own = trouble.empty() ? "" : trouble + std::to_string(index);
      heard[static_cast<std::size_t>(index)] += handshake.agree(own) + "|";
    }
  });
  EXPECT_THAT(heard, Each("|trouble of 2||"));
}

TEST(ShmHandshake, ATextIsCutRatherThanLost) {
  const std::string text(3 * Handshake::kMostText, 'x');
  for (const int troubled : {0, 1}) {
    in_handshake(2, [&](int index, Handshake& handshake) {
      EXPECT_EQ(handshake.agree(index == troubled ? text : ""),
                text.substr(0, Handshake::kMostText));
    });
  }
}

TEST(ShmHandshake, WhoLeavesIsMissedAtOnce) {
  for (const int leaver : {0, 1}) {
    const Listener listener;
    std::vector<ErrorCode> codes;
    {
      std::thread peer([&] {
        auto handshake = Handshake::connect(listener.address(), 1, soon());
        if (leaver != 1) codes.push_back(error_of([&] { return handshake.agree(""); }).code);
      });
      auto handshake = std::make_unique<Handshake>(Handshake::accept(listener, 2, soon()));
      if (leaver == 0) {
        handshake.reset();
      } else {
        codes.push_back(error_of([&] { return handshake->agree(""); }).code);
      }
      peer.join();
    }
    EXPECT_THAT(codes, testing::ElementsAre(ErrorCode::kClosed)) << "index " << leaver;
  }
}

TEST(ShmHandshake, ClosesConnectionsWithoutTheCookie) {
  const Listener listener;
  std::thread visitors([&] {
    std::string wrong = listener.address();
    wrong.back() = wrong.back() == '0' ? '1' : '0';
    auto stranger = Handshake::connect(wrong, 1, soon());
    EXPECT_THAT(error_of([&] { return stranger.receive_memory(); }).message,
                HasSubstr("gave out no shared memory"));
    auto beyond = Handshake::connect(listener.address(), 3, soon());
    EXPECT_FALSE(test::outcome([&] { return beyond.agree(""); }));
    auto one = Handshake::connect(listener.address(), 1, soon());
    auto again = Handshake::connect(listener.address(), 1, soon());
    EXPECT_FALSE(test::outcome([&] { return again.agree(""); })) << "an index is taken once";
    auto two = Handshake::connect(listener.address(), 2, soon());
    std::thread other([&] { EXPECT_EQ(one.agree(""), ""); });
    EXPECT_EQ(two.agree(""), "");
    other.join();
  });
  auto handshake = Handshake::accept(listener, 3, soon());
  EXPECT_EQ(handshake.agree(""), "");
  visitors.join();
}

TEST(ShmHandshake, WaitsForConnectionsOnlySoLong) {
  const Listener listener;
  const Error error = error_of(
      [&] { return Handshake::accept(listener, 2, std::chrono::steady_clock::now() + 20ms); });
  EXPECT_EQ(error.code, ErrorCode::kTimeout);
  EXPECT_THAT(error.message, HasSubstr("only 0 of 1 ranks of this node came"));
}

TEST(ShmHandshake, WaitsForATextOnlySoLong) {
  const Listener listener;
  const auto silent = Handshake::connect(listener.address(), 1, soon());
  auto host = Handshake::accept(listener, 2, std::chrono::steady_clock::now() + 20ms);
  EXPECT_EQ(error_of([&] { return host.agree(""); }).code, ErrorCode::kTimeout);
}

TEST(ShmHandshake, IsFoundByItsOwnProcessOnly) {
  std::string address;
  {
    const Listener listener;
    address = listener.address();
  }
  const auto connect = [](const std::string& to) { return Handshake::connect(to, 1, soon()); };
  EXPECT_FALSE(test::outcome([&] { return connect(address); })) << "after it is closed";
  const Listener listener;
  std::string other = listener.address();
  const std::size_t colon = other.find(':');
  other.insert(colon + 1, "1");
  EXPECT_THAT(error_of([&] { return connect(other); }).message,
              HasSubstr("answers where process 1"));
  EXPECT_THAT(error_of([&] { return connect("nonsense"); }).message, HasSubstr("is no address"));
}

}  // namespace
}  // namespace ddprun::shm
