// How the ranks of a node meet without the store that told them of each other: at the door of the
// first of them, a Unix socket with a name that the kernel chose in the abstract name space, so that
// nothing is left in any file system. Who knocks must be of the same user and say the word that the
// ranks have told each other in private; whose door it is is checked likewise. Blocking; one thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::shm {

using Deadline = std::chrono::steady_clock::time_point;

class Door {
 public:
  static Result<Door> open();

  // What the others need in order to find it: a name, a process and the word, printable.
  const std::string& address() const { return address_; }

 private:
  friend class Circle;
  Door(rdzv::UniqueFd listener, std::string word, std::string address);

  rdzv::UniqueFd listener_;
  std::string word_;
  std::string address_;
};

// The ranks of a node around the first of them: each has a place, 0 … size - 1, and a connection
// between it and place 0. Who leaves or dies is noticed at once: the others' calls fail.
class Circle {
 public:
  // Place 0's, when all others have come. kTimeout: some did not. Strangers, who do not know the
  // word, are sent away.
  static Result<Circle> host(const Door& door, int size, Deadline until);
  // The others'. kPermissionDenied: another user or process answers at `address`.
  static Result<Circle> visit(const std::string& address, int place, Deadline until);

  // From place 0 to all others: a descriptor. An invalid one tells them that there is none.
  Result<void> give(const rdzv::UniqueFd& memory);
  Result<rdzv::UniqueFd> take();

  // What trouble each has, "" for none. Returns that of the first place that has any: the same
  // everywhere. At most kMostWords characters of it.
  Result<std::string> agree(const std::string& trouble);
  static constexpr std::size_t kMostWords = 2000;

 private:
  struct Member {
    rdzv::UniqueFd connection;
    pid_t pid = 0;
  };

  Circle(std::vector<Member> others, bool is_host, Deadline until);
  static Result<void> say(const Member& member, const std::string& words);
  Result<std::string> hear(const Member& member) const;

  std::vector<Member> others_;  // place 0 has all others, by place; they have place 0
  bool is_host_ = false;
  Deadline until_;
};

}  // namespace ddprun::shm
