// A message with descriptors over a Unix socket: for sendmsg() and recvmsg(), which take `header`. One thread.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "rendezvous/common/unique_fd.h"

namespace ddprun::rdzv {

// With room for `most` descriptors.
template <std::size_t most>
struct DescriptorMessage {
  // `parts` are the bytes: to be sent, or where they are to be put. They stay the caller's.
  explicit DescriptorMessage(std::span<iovec> parts) {
    header.msg_iov = parts.data();
    header.msg_iovlen = parts.size();
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  // Before it is sent, even without any: `most` at most, which stay the caller's.
  void give(std::span<const int> descriptors) {
    header.msg_controllen = descriptors.empty() ? 0 : CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const first = CMSG_FIRSTHDR(&header);
    if (first == nullptr) return;
    first->cmsg_level = SOL_SOCKET;
    first->cmsg_type = SCM_RIGHTS;
    first->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(first), descriptors.data(), descriptors.size_bytes());
  }

  // All that came with it; once. There may be more than `most`: the kernel fills what the alignment leaves.
  std::vector<UniqueFd> taken() {
    std::vector<UniqueFd> descriptors;
    for (cmsghdr* each = CMSG_FIRSTHDR(&header); each; each = CMSG_NXTHDR(&header, each)) {
      if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
      for (std::size_t at = CMSG_LEN(0); at + sizeof(int) <= each->cmsg_len; at += sizeof(int)) {
        int descriptor = -1;
        std::memcpy(&descriptor, reinterpret_cast<const char*>(each) + at, sizeof descriptor);
        descriptors.emplace_back(descriptor);
      }
    }
    return descriptors;
  }

  msghdr header{};
  alignas(cmsghdr) char control[CMSG_SPACE(most * sizeof(int))] = {};
};

}  // namespace ddprun::rdzv
