// How the ranks of a node connect to the first of them: through its Listener, a Unix socket with a
// name that the kernel chose in the abstract name space, so that nothing is left in any file system.
// A rank that connects must be of the same user and send the cookie, which the ranks know from their
// store; the listener's process and user are checked likewise. Blocking; one thread. Throws Failure.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "rendezvous/common/unique_fd.h"

namespace ddprun::shm {

using Deadline = std::chrono::steady_clock::time_point;
// How long a rank waits for others. When `stop` can be read, a wait ends with kClosed.
struct Patience {
  Patience(Deadline its_until, int its_stop = -1) : until(its_until), stop(its_stop) {}
  Deadline until;
  int stop;  // -1: nothing
};

class Listener {
 public:
  Listener();

  // What the others connect to: a name, a process and the cookie, printable.
  const std::string& address() const { return address_; }

 private:
  friend class Handshake;

  rdzv::UniqueFd listener_;
  std::string cookie_;
  std::string address_;
};

// The ranks of a node, each with its index there, 0 … size - 1, and a connection between it and rank 0
// of the node. If a rank leaves or dies, the others' calls fail at once.
class Handshake {
 public:
  // Rank 0's, when all others have connected. kTimeout: some did not. Connections without the cookie
  // are closed.
  static Handshake accept(const Listener& listener, int size, Patience patience);
  // The others'. kPermissionDenied: another user or process answers at `address`.
  static Handshake connect(const std::string& address, int index, Patience patience);

  // From rank 0 to all others: a descriptor. An invalid one tells them that there is none.
  void send_memory(const rdzv::UniqueFd& memory);
  rdzv::UniqueFd receive_memory();

  // `error` is this rank's, "" for none. Returns, the same everywhere, that of the first rank that has
  // one; at most kMostText characters of it.
  std::string agree(const std::string& error);
  static constexpr std::size_t kMostText = 2000;

 private:
  struct Member {
    rdzv::UniqueFd connection;
    pid_t pid = 0;
  };

  Handshake(std::vector<Member> others, bool is_host, Patience patience);
  static void send_text(const Member& member, const std::string& text);
  std::string receive_text(const Member& member) const;

  std::vector<Member> others_;  // rank 0 has all others, by index; they have rank 0
  bool is_host_ = false;
  Patience patience_;
};

}  // namespace ddprun::shm
