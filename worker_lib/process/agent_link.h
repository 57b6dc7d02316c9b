// The worker's end of its link (rendezvous/common/worker_abi/worker_link.h): notes how far this process is, and
// hears what the agent asks for. Owned by the Context; one thread at a time, and beside it another one
// in await_group_broken(). Without LibTorch and without anything else of worker_lib, so that other
// programs can take it as it is.
//
// There is no link, and open() returns nothing, unless this very process is a worker that an agent
// started: variables and descriptors that were inherited from a parent which is one, or through a
// launcher in between, are left alone. A child that is forked later has a copy of this object that
// does nothing. Whatever breaks, the program runs on as without a link.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "rendezvous/common/unique_fd.h"
#include "rendezvous/common/worker_abi/worker_link.h"
#include "worker_lib/process/owner_mark.h"

namespace ddprun {

class AgentLink {
 public:
  // The descriptors as the variables give them. From here on they are this object's and closed at
  // an exec; a second open() in this process finds nothing.
  static std::unique_ptr<AgentLink> open(int socket_fd, int page_fd);
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  // Some ten nanoseconds each, no system call, except for the steps that the agent is told of: the
  // first one, and Header::wanted_step.
  // No values: those of before stay. What is beyond link::kValuesMax is not noted.
  void step_done(std::int64_t step, std::int64_t total_steps,
                 std::span<const link::Value> values = {});
  void collective_begins();
  void enter(WorkerPhase phase);
  WorkerPhase phase() const { return note_.phase; }

  // Says that this program leaves when it is asked to. Before that, and without a link, a
  // preemption comes as a signal (USR1, USR2); from here on that is ignored, unless the program
  // handles it itself. Only the first call does anything.
  void take_leave_requests();
  bool is_told_to_leave();  // stays true

  // Says that this program can be a zygote (worker_lib/process/zygote.h).
  void offer_zygote();

  // Waits until the agent says that a worker of the round is gone. Nothing when `stop` (a descriptor)
  // can be read, or the link is closed.
  std::optional<link::GroupBroken> await_group_broken(int stop);

 private:
  AgentLink(rdzv::UniqueFd socket, link::Page* page, OwnerMark mark);

  void publish();
  bool support(std::uint32_t request);
  void receive();
  void close();
  void mark_step();

  const rdzv::UniqueFd socket_;
  link::Page* page_;
  const OwnerMark mark_;
  link::Note note_;
  std::int64_t told_from_ = INT64_MIN;  // the agent is told of the next step from this one on
  bool takes_leave_ = false;

  std::mutex mutex_;  // guards the rest
  bool is_open_ = true;
  bool is_told_to_leave_ = false;
  std::uint32_t supported_ = 0;  // bits of link::Message::requests
  std::optional<link::GroupBroken> broken_;
};

// The phase of a part of the program: the one before is back at its end.
class PhaseGuard {
 public:
  PhaseGuard(AgentLink* link, WorkerPhase phase) : link_(link) {
    if (link_ == nullptr) return;
    before_ = link_->phase();
    link_->enter(phase);
  }
  ~PhaseGuard() {
    if (link_ != nullptr) link_->enter(before_);
  }
  PhaseGuard(const PhaseGuard&) = delete;
  PhaseGuard& operator=(const PhaseGuard&) = delete;

 private:
  AgentLink* link_;
  WorkerPhase before_ = WorkerPhase::kUnknown;
};

}  // namespace ddprun
