// Whose connections lead to a port, from tables as the kernel writes them, and of this process.
#include "agent/process/socket_owners.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temporary_tree.h"

namespace ddprun::agent {
namespace {

using Owners = std::map<std::uint16_t, pid_t>;

TEST(SocketOwnersTest, FindsTheConnectionsOfTheseProcesses) {
  const TemporaryTree proc;
  const std::string head =
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
      "inode\n";
  const auto line = [](const std::string& ends, const std::string& inode) {
    return "   0: " + ends + " 01 00000000:00000000 00:00000000 00000000  1000        0 " + inode +
           " 1 0000000000000000 20 4 30 10 -1\n";
  };
  const std::string host = "0100007F", host_6 = "00000000000000000000000001000000";
  proc.write("net/tcp", head + line(host + ":1F90 " + host + ":7350", "11") +
                            line(host + ":1F91 " + host + ":7350", "12") +
                            line(host + ":7350 " + host + ":1F90", "13") +
                            line(host + ":1F92 " + host + ":0016", "14"));
  proc.write("net/tcp6", head + line(host_6 + ":1F93 " + host_6 + ":7350", "15"));
  const auto opens = [&](const std::string& pid, const std::string& number,
                         const std::string& inode) {
    std::filesystem::create_directories(proc / (pid + "/fd"));
    std::filesystem::create_symlink("socket:[" + inode + "]", proc / (pid + "/fd/" + number));
  };
  opens("1", "3", "11");
  opens("1", "4", "14");
  opens("2", "3", "15");
  opens("3", "3", "12");
  EXPECT_EQ(connections_to(0x7350, {1, 2, 9}, proc.path()), (Owners{{0x1F90, 1}, {0x1F93, 2}}));
  EXPECT_EQ(connections_to(80, {1, 2}, proc.path()), Owners());
}

}  // namespace
}  // namespace ddprun::agent
