// The worker's end of its link (rendezvous/common/worker_abi/worker_link.h): notes how far this process is, and
// hears what the agent asks for. Owned by the Context; one thread at a time, and beside it another one
// in await_group_news(). Without LibTorch, and with nothing else of worker_lib but owner_mark.h and what that
// includes, so that other programs can take it as it is.
//
// There is no link, and open() returns nothing, unless this very process is a worker that an agent
// started: variables and descriptors that were inherited from a parent which is one, or through a
// launcher in between, are left alone. A child that is forked later has a copy of this object that
// does nothing. Whatever breaks, the program runs on as without a link.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/common/unique_fd.h"
#include "rendezvous/common/worker_abi/worker_link.h"
#include "worker_lib/process/owner_mark.h"

namespace ddprun {

class AgentLink {
 public:
  // The descriptors as the variables give them. From here on they are this object's and closed at
  // an exec; a second open() in this process finds nothing.
  static std::unique_ptr<AgentLink> open(int socket_fd, int page_fd);
  // The link of this process that a library for another language has opened and keeps, with its page.
  static std::unique_ptr<AgentLink> adopt(int socket_fd, link::Page* page);
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  // Some ten nanoseconds each, no system call, except for the steps that the agent is told of: the
  // first one, and Header::wanted_step. step_done() may wait for the agent, and for the end of this process
  // (link::Boundaries).
  // No values: those of before stay. What is beyond link::kValuesMax is not noted.
  void step_done(std::int64_t step, std::int64_t total_steps,
                 std::span<const link::Value> values = {});
  // Where the program's ranks are stopped between two steps: called before this rank waits for its end. May throw: then it
  // does not wait.
  void before_parking(std::function<void()> await_devices) {
    await_devices_ = std::move(await_devices);
  }
  void collective_begins();
  void enter(WorkerPhase phase);
  WorkerPhase phase() const { return note_.phase; }

  // Says that this program leaves when it is asked to. Before that, and without a link, a
  // preemption comes as a signal (USR1, USR2); from here on that is ignored, unless the program
  // handles it itself. Only the first call does anything.
  void take_leave_requests();
  bool is_told_to_leave();  // stays true
  // From here on this process's end is no failure and no success, but because of the preemption.
  void note_leaving();

  // Says that this program can be a zygote (worker_lib/process/zygote.h).
  void offer_zygote() { support(link::kCanBeZygote); }

  // What the agent has said of the round's workers, the newest of each kind.
  struct GroupNews {
    std::optional<link::GroupBroken> broken;
    std::optional<link::Regroup> regroup;
  };
  // Waits until there is a newer generation than `known`, or a worker is gone and the group is broken for good.
  // Nothing when `stop` (a descriptor) can be read, or the link is closed, by the program perhaps.
  std::optional<GroupNews> await_group_news(int stop, std::uint32_t known);

  // ---- replacement in place; only with an agent that knows it (can_recover())

  bool can_recover() const { return page_->header.version >= link::kReplacementSince; }
  // From here on the main thread, which must call this, holds the lock that tells the agent of its death.
  void hold_death_lock();
  // False: the link is closed.
  bool offer_recovery(int mirror) { return send_mirror(mirror) && support(link::kCanRecover); }
  // False also for -1.
  bool send_mirror(int mirror) { return mirror >= 0 && send(link::Kind::kMirror, 0, mirror); }
  // `nor_later`: nor is any worker of this job replaced in place from here on.
  void refuse_recovery(const std::string& why, bool nor_later = false);
  // The loop of steps is over.
  void withdraw_recovery() { send(link::Kind::kHello, supported_ &= ~link::kCanRecover); }
  void offer_to_take_place() { support(link::kIsPrepared); }
  // Whether await_place() returns at once. Ends the process if the link is closed.
  bool is_placed() const;
  // Returns when it is; what the agent has said is left for place().
  void await_placed();
  // The GPU of the model, and what this process takes of it; 0: it is not known yet.
  void note_gpu(std::uint64_t id, std::uint32_t index, std::uint64_t free_bytes,
                std::uint64_t used_bytes);
  void regrouped(std::uint32_t generation);
  // The step is committed in this generation; the agent is told of the first one.
  void committed(std::int64_t steps, std::uint32_t generation);

  struct Place {
    std::uint32_t generation = 0;
    rdzv::UniqueFd out;
    rdzv::UniqueFd err;
    rdzv::UniqueFd mirror;
  };
  // Offers to take the place of its rank, unless the agent has given it already, and waits until it has; ends the process if
  // the link is closed before.
  Place await_place();
  // Likewise, without waiting. Nothing: it has not come.
  std::optional<Place> place();

 private:
  AgentLink(rdzv::UniqueFd socket, link::Page* page, OwnerMark mark);

  void publish();
  // The last hello counts, so each says all. False, here and below: there is no link any more.
  bool support(std::uint32_t request) { return send(link::Kind::kHello, supported_ |= request); }
  bool send(link::Kind kind, std::uint32_t requests = 0, int descriptor = -1);
  bool send(const void* message, std::size_t size, int descriptor = -1);
  bool wait_for_message(int stop);
  void receive();
  void close();
  void mark_step();
  void look_for_nan(std::span<const link::Value> values);
  void end_step();
  void wait_at_boundary();

  const OwnDescriptor socket_;
  link::Page* page_;
  const OwnerMark mark_;
  link::Note note_;
  std::int64_t told_from_ = INT64_MIN;  // the agent is told of the next step from this one on
  std::function<void()> await_devices_;
  std::int64_t steps_ = 0;          // that this process has reported
  std::int64_t step_ended_ns_ = 0;  // the last one
  // The agent was told of these, and they have not been finite since.
  std::vector<link::Value> not_finite_;
  std::int64_t told_since_ns_ = 0;  // it was told of so many within the second that began then
  std::size_t told_ = 0;
  bool takes_leave_ = false;
  std::uint32_t supported_ = 0;  // bits of link::Message::requests
  bool told_of_commit_ = true;   // the agent, in this generation

  std::mutex mutex_;  // guards the rest
  bool is_open_ = true;
  bool is_told_to_leave_ = false;
  bool is_heard_ = false;  // another thread receives
  std::optional<link::GroupBroken> broken_;
  std::optional<link::Regroup> regroup_;
  std::optional<Place> place_;
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
