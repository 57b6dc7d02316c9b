// The node's memory for snapshots of the training, where it outlives this agent (--keep-memory): taken over from
// the agent before, or made; and what becomes of it at the end. The keeper holds it, or, in a service of systemd,
// whose processes end together, the service manager. Without the option nothing here does anything. No error
// ends the job. Owned by the Supervisor; event loop thread only.
#pragma once

#include <optional>
#include <string>

#include "agent/notify/systemd_notify.h"
#include "agent/process/memory_offer.h"
#include "agent/query/kept_memory.h"
#include "agent/supervisor/parts.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

class NodeMemory {
 public:
  NodeMemory(const AgentParts& parts, SystemdNotify& systemd);

  // Call it before the keeper is forked. Waits for an earlier keeper that is still cleaning up, three seconds at
  // most. What the new keeper is to hold, if there is something.
  std::optional<MemoryOffer> prepare();
  // Another descriptor of the memory, for the workers; none: it is not kept.
  rdzv::UniqueFd for_workers() const;
  // The memory that was taken over is safe now: the keeper before may end.
  void keeper_runs();

  void job_succeeded();
  // What the user is to know after a job that did not succeed: a whole line, or nothing.
  std::string remark() const;

 private:
  void take_over();
  void take_from_manager();
  Result<MemoryOffer> offer() const;

  const AgentParts parts_;
  SystemdNotify& systemd_;
  const MemoryOwner own_;
  const std::string stored_name_;  // in the manager's store
  rdzv::UniqueFd memory_;          // none: it is not kept
  std::optional<TakenMemory> taken_;
  bool is_over_ = false;
};

// The memory's name as memfd_create() has it, where a service manager keeps it: there is no keeper to tell whose it
// is. `program` is cut, from its begin, to what the kernel allows. Pure.
std::string name_of_stored(const std::string& program);
// What that name says of the program; nothing: it is no such memory, or another version's.
std::optional<std::string> program_of_stored(const std::string& name);

}  // namespace ddprun::agent
