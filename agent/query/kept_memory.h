// The memory for snapshots that keepers hold for the next agent of a job (--keep-memory): for that agent, which
// takes it, and for ddpctl, which shows it and ends it. What is said over a keeper's socket is in
// agent/process/memory_offer.h. Any thread; every call has a time limit.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/query/control_folder.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

// Whose memory it is. A new agent takes only its own job's, of the same program and version.
struct MemoryOwner {
  // Counts what a new agent relies on: these fields, and what the keeper has done before it gives the memory.
  static constexpr int kVersion = 1;

  int version = kVersion;
  std::string job;
  std::string program;             // absolute path of program or script, or a module's name
  std::string ddprun;              // its version, for messages
  std::optional<int> node_rank{};  // that the agent was to have
  bool operator==(const MemoryOwner&) const = default;
};
std::string to_json(const MemoryOwner& owner);

struct KeptMemory {
  std::string folder{};  // where its socket is
  std::string socket{};
  pid_t agent = 0;         // that has ended, or uses it
  bool is_silent = false;  // nobody has answered in time; nothing else is known
  MemoryOwner owner{};
  bool is_in_use = false;
  std::uint64_t bytes = 0;
  std::chrono::system_clock::time_point ended{};  // the agent
  std::chrono::milliseconds left{};
};
// The first line of a keeper. Nothing: it is none.
std::optional<KeptMemory> kept_memory_from(std::string_view line);
// "24 MiB are kept for another 512 s"
std::string describe(const KeptMemory& memory);

// Those of this user in all control folders, also those in use, of jobs whose names begin as this one's
// (empty: of all). Removes sockets that keepers which were killed have left.
std::vector<KeptMemory> find_memories(const Environment& environment, uid_t user,
                                      std::string_view run_id, std::chrono::milliseconds patience);

// Ends it. When this returns without an error, memory and socket are gone.
Result<void> forget_memory(const KeptMemory& memory, uid_t user,
                           std::chrono::milliseconds patience);

// Memory that is taken over. Until confirm() the keeper still holds it, too, and does so if this process dies.
class TakenMemory {
 public:
  static Result<TakenMemory> take(const KeptMemory& memory, uid_t user,
                                  std::chrono::milliseconds patience);

  rdzv::UniqueFd& memory() { return memory_; }
  void confirm();

 private:
  TakenMemory(rdzv::UniqueFd memory, rdzv::UniqueFd connection)
      : memory_(std::move(memory)), connection_(std::move(connection)) {}

  rdzv::UniqueFd memory_;
  rdzv::UniqueFd connection_;
};

// Which of them an agent takes, the best first: its own job's, program's and version's; its own node's before
// others, later ones before earlier ones. `refused`: a sentence for each that is of its job and does not fit. Pure.
struct MemoryChoice {
  std::vector<KeptMemory> fitting;
  std::vector<std::string> refused;
};
MemoryChoice choose_memory(std::vector<KeptMemory> memories, const MemoryOwner& own);

}  // namespace ddprun::agent
