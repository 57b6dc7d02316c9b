// How a rank hands the descriptor of the memory that it made (shm_segment.h) to the other ranks of
// its node: over Unix sockets with a name that the kernel chose in the abstract name space, so that
// nothing is left in any file system. Who knocks must be of the same user and say the word that the
// ranks have told each other in private; whose door it is is checked likewise. Blocking; one thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

#include "rendezvous/base/result.h"
#include "rendezvous/base/unique_fd.h"

namespace ddprun::shm {

using Deadline = std::chrono::steady_clock::time_point;

class Door {
 public:
  static Result<Door> open();

  // What the others need in order to find it: a name, a process and the word, printable.
  const std::string& address() const { return address_; }
  // Gives `memory` to so many visitors. kTimeout: fewer came. Others, who do not know the word, are
  // sent away and not counted.
  Result<void> hand_out(const rdzv::UniqueFd& memory, int visitors, Deadline until);

 private:
  Door(rdzv::UniqueFd listener, std::string word, std::string address);

  rdzv::UniqueFd listener_;
  std::string word_;
  std::string address_;
};

// The other side: what is handed out at `address`. kPermissionDenied: another user or process
// answers there.
Result<rdzv::UniqueFd> knock(const std::string& address, Deadline until);

}  // namespace ddprun::shm
