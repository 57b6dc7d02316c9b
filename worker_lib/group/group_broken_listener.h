// GroupBrokenListener: a thread that hears from the agent when another worker is gone, and reports it to
// the FailureDiagnosis, which aborts the calls that would wait for that one for ever. Owned by the Context;
// ends with the thread.
#pragma once

#include <memory>
#include <thread>

#include "rendezvous/common/unique_fd.h"

namespace ddprun {

class AgentLink;
class FailureDiagnosis;

class GroupBrokenListener {
 public:
  // `link` outlives this.
  GroupBrokenListener(AgentLink& link, std::shared_ptr<FailureDiagnosis> diagnosis);
  ~GroupBrokenListener();
  GroupBrokenListener(const GroupBrokenListener&) = delete;
  GroupBrokenListener& operator=(const GroupBrokenListener&) = delete;

 private:
  rdzv::UniqueFd stop_;  // readable at the end
  std::thread thread_;
};

}  // namespace ddprun
