// The node's memory for snapshots of the training, where it outlives its agent (--keep-memory): the keeper
// holds it for the next agent of the job. The socket is in the folder of the control sockets
// (agent/query/control_folder.h); the agent makes it before the keeper, which answers there from then on, so
// that nobody who comes right after the agent's death comes too early. The other end is
// agent/query/kept_memory.h. The keeper begins; a line of JSON, then words of one line:
//
//   keeper   {"job":"fashion", …, "in_use":true}     the agent lives; the connection ends
//   keeper   {"job":"fashion", …, "in_use":false, "bytes":N, "ended_unix_s":N, "left_ms":N}
//   client   take       keeper   memory, with its descriptor       client   taken
//   client   forget     keeper   ends the connection when memory and socket are gone
//
// A client that has the memory and ends without "taken" leaves it with the keeper. One client at a time, with a
// limit of half a second until it takes or forgets. Clients of other users hear nothing.
//
// What follows runs in the keeper: system calls only.
#pragma once

#include <chrono>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

namespace memory_words {
inline constexpr std::string_view kTake = "take\n";
inline constexpr std::string_view kMemory = "memory\n";
inline constexpr std::string_view kTaken = "taken\n";
inline constexpr std::string_view kForget = "forget\n";
}  // namespace memory_words

// Made by the agent; the keeper has a copy of it.
struct MemoryOffer {
  rdzv::UniqueFd memory;
  rdzv::UniqueFd folder;
  std::string name;         // of the socket in the folder
  rdzv::UniqueFd listener;  // the socket, which listens and does not block
  std::string about;        // the first members of the line, without braces
  std::chrono::milliseconds time{};
};

// What the agent writes into its keeper's pipe.
namespace keeper_words {
inline constexpr char kDrop = 'd';  // nothing is to be kept
inline constexpr char kEnd = 'e';   // as if the pipe were closed, where that is refused
}  // namespace keeper_words

// Waits for the end of the agent, which holds the other end of the pipe. True: it has told to drop the memory.
// None: the pipe cannot be read; errno says why. `offer`: null if there is none.
std::optional<bool> await_end_of_agent(int pipe, const MemoryOffer* offer);

// Holds the memory of an agent that has ended, and whose workers have: until it is taken, forgotten, over, or
// SIGTERM comes, which is blocked here. Not at all if nothing was written into it, or `is_dropped`.
class MemoryHolder {
 public:
  // `offer`: null if there is none.
  MemoryHolder(const MemoryOffer* offer, bool is_dropped, std::time_t ended);

  // Lets this time pass, in which a client may come; longer if it takes the memory, until it has confirmed that.
  void pause(std::chrono::milliseconds time);
  // Returns when memory and socket are gone.
  void hold();

 private:
  using Clock = std::chrono::steady_clock;  // read by a system call only

  bool wait_for(int fd, Clock::time_point until);
  bool serve(int client);
  void serve_next();

  const MemoryOffer* offer_;  // null: nothing is held any more
  std::time_t ended_;
  Clock::time_point until_;
  int signals_ = -1;
};

}  // namespace ddprun::agent
