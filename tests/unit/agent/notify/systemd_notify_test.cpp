#include "agent/notify/systemd_notify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace ddprun::agent {
namespace {

using std::chrono::microseconds;
using ::testing::HasSubstr;

std::string name_in(const NotifySocket& socket) {
  return {socket.address.sun_path, socket.length - offsetof(sockaddr_un, sun_path)};
}

TEST(NotifySocket, IsAPathWithItsEndOrAnAbstractNameWithout) {
  const auto path = parse_notify_socket("/run/systemd/notify");
  ASSERT_TRUE(path);
  EXPECT_EQ(name_in(*path), std::string("/run/systemd/notify") + '\0');
  const auto abstract = parse_notify_socket("@/org/example");
  ASSERT_TRUE(abstract);
  EXPECT_EQ(name_in(*abstract), '\0' + std::string("/org/example"));
}

TEST(NotifySocket, IsRefusedWhereNoSocketCanHaveTheName) {
  for (const std::string& text :
       {std::string(), std::string("@"), std::string("/"), std::string("relative/socket"),
        std::string("vsock:2:1234"), "/" + std::string(107, 'x'), "@" + std::string(108, 'x')}) {
    EXPECT_FALSE(parse_notify_socket(text)) << text;
  }
  EXPECT_TRUE(parse_notify_socket("/" + std::string(106, 'x')));
  EXPECT_TRUE(parse_notify_socket("@" + std::string(107, 'x')));
}

TEST(Watchdog, IsToldTwiceAsOftenAsItAllows) {
  const auto interval = watchdog_interval({{"WATCHDOG_USEC", "3000000"}}, 7);
  ASSERT_TRUE(interval);
  EXPECT_EQ(*interval, microseconds(1'500'000));
  EXPECT_EQ(*watchdog_interval({{"WATCHDOG_USEC", "20000"}, {"WATCHDOG_PID", "7"}}, 7),
            microseconds(10'000));
  EXPECT_EQ(*watchdog_interval({{"WATCHDOG_USEC", "1"}}, 7), microseconds(1000));
}

TEST(Watchdog, OfAnotherProcessIsNotOurs) {
  EXPECT_EQ(*watchdog_interval({{"WATCHDOG_USEC", "20"}, {"WATCHDOG_PID", "8"}}, 7), std::nullopt);
  EXPECT_EQ(*watchdog_interval({{"WATCHDOG_PID", "7"}}, 7), std::nullopt);
  EXPECT_EQ(*watchdog_interval({}, 7), std::nullopt);
}

TEST(Watchdog, SaysWhichVariableIsWrong) {
  for (const std::string text : {"soon", "0", "-5", "3s", "99999999999999999999999"}) {
    const auto interval = watchdog_interval({{"WATCHDOG_USEC", text}}, 7);
    ASSERT_FALSE(interval) << text;
    EXPECT_THAT(interval.error().to_string(), HasSubstr("WATCHDOG_USEC=" + text));
  }
  const auto interval = watchdog_interval({{"WATCHDOG_USEC", "20"}, {"WATCHDOG_PID", "me"}}, 7);
  ASSERT_FALSE(interval);
  EXPECT_THAT(interval.error().to_string(), HasSubstr("WATCHDOG_PID=me"));
}

TEST(StoredFiles, AreThoseThatTheManagerPassesToThisProcess) {
  const auto files =
      stored_files({{"LISTEN_PID", "7"}, {"LISTEN_FDS", "3"}, {"LISTEN_FDNAMES", "a::c"}}, 7);
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[0].fd, 3);
  EXPECT_EQ(files[0].name, "a");
  EXPECT_EQ(files[1].name, "");
  EXPECT_EQ(files[2].fd, 5);
  EXPECT_EQ(files[2].name, "c");
  EXPECT_EQ(stored_files({{"LISTEN_PID", "7"}, {"LISTEN_FDS", "2"}}, 7).size(), 2U);
  EXPECT_TRUE(stored_files({{"LISTEN_PID", "8"}, {"LISTEN_FDS", "2"}}, 7).empty());
  EXPECT_TRUE(stored_files({{"LISTEN_FDS", "2"}}, 7).empty());
  for (const std::string text : {"", "x", "0", "-1", "99999999"}) {
    EXPECT_TRUE(stored_files({{"LISTEN_PID", "7"}, {"LISTEN_FDS", text}}, 7).empty()) << text;
  }
}

}  // namespace
}  // namespace ddprun::agent
