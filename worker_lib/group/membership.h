// The data of a Group; shared with its operations in flight, which may outlive it. Private
// to worker_lib; one thread.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "worker_lib/c10d/process_group.h"
#include "worker_lib/group/failure_diagnosis.h"

namespace ddprun {

class AgentLink;
class Recovery;

namespace detail {

struct Membership {
  std::string name;               // "ddprun", or of a smaller group "ddprun/<number>", unique
  std::vector<int> global_ranks;  // of its members, by their rank here
  int rank = 0;
  bool is_whole_job = false;
  torch::Device device{torch::kCPU};
  c10::intrusive_ptr<c10d::ProcessGroup> group;  // none after leaving
  std::shared_ptr<const GroupMaker> maker;       // makes the smaller ones
  std::shared_ptr<FailureDiagnosis> diagnosis;   // none in a world of one
  AgentLink* link = nullptr;                     // the Context's
  std::shared_ptr<Recovery> recovery;            // the Context's; none: ranks are not replaced here
  bool compares_calls = false;                   // ContextOptions::check_collectives
  bool hangs = false;  // a call does not end when a member is gone: the diagnosis aborts it
  bool is_comparing = false;
  std::int64_t calls = 0;  // of collectives, here
  int groups_made = 0;

  int size() const { return static_cast<int>(global_ranks.size()); }
};

}  // namespace detail
}  // namespace ddprun
