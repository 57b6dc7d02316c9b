// Which TCP sockets of a process are shut down.
#include "worker_lib/process/tcp_sockets.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "rendezvous/common/unique_fd.h"

namespace ddprun {
namespace {

rdzv::UniqueFd listener() {
  rdzv::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(socket.get(), 1), 0);
  return socket;
}

// Nothing comes: EAGAIN as long as it listens.
int error_of_accept(const rdzv::UniqueFd& socket) {
  return ::accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC) < 0 ? errno : 0;
}

TEST(TcpSockets, NewOnesAreShutDownAndOthersStay) {
  const rdzv::UniqueFd before = listener();
  int pair[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const rdzv::UniqueFd one(pair[0]);
  const rdzv::UniqueFd other(pair[1]);
  const auto known = tcp_sockets();
  EXPECT_GE(known.size(), 1U);
  const rdzv::UniqueFd after = listener();
  EXPECT_EQ(tcp_sockets().size(), known.size() + 1);
  shut_down_tcp_sockets_except(known);
  EXPECT_EQ(error_of_accept(before), EAGAIN);
  EXPECT_EQ(error_of_accept(after), EINVAL);
  EXPECT_EQ(::send(one.get(), "x", 1, MSG_NOSIGNAL), 1) << "it is no TCP socket";
}

}  // namespace
}  // namespace ddprun
