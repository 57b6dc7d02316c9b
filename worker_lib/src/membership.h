// What a Group knows of itself; shared with its operations in flight, which may outlive it. Private
// to worker_lib; one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "worker_lib/src/process_group.h"

namespace ddprun {

class AgentLink;

namespace detail {

struct Membership {
  std::string name;            // "ddprun", or of a smaller group "ddprun/<number>", unique
  std::vector<int> job_ranks;  // of its members, by their rank here
  int rank = 0;
  c10::intrusive_ptr<c10d::ProcessGroup> group;  // none after leaving
  std::shared_ptr<const GroupMaker> maker;       // makes the smaller ones
  AgentLink* link = nullptr;                     // the Context's
  std::int64_t collectives = 0;                  // started here
  int groups_made = 0;

  int size() const { return static_cast<int>(job_ranks.size()); }
  bool is_whole_job() const { return size() == maker->environment().world_size; }
};

}  // namespace detail
}  // namespace ddprun
