// The agent's end of one worker's link (rendezvous/common/worker_abi/worker_link.h). The caller
// makes it before it starts the worker, lets the worker inherit the three descriptors (ProcessSpec),
// calls started() afterwards, and keeps the link as long as the worker. Event loop only. Do not trust
// what a worker sends: one that breaks the protocol loses its link and runs on.
#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/common/ids.h"
#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/common/worker_abi/collective_record.h"
#include "rendezvous/common/worker_abi/worker_link.h"

namespace ddprun::agent {

class WorkerLink : public std::enable_shared_from_this<WorkerLink> {
 public:
  // The owner may let go of the link in them; then no other one follows.
  struct Hooks {
    // Called once, with a sentence, when the worker broke the protocol and the link was closed.
    std::function<void(std::string_view)> misuse;
    std::function<void(const StepMarks&)> stepped;  // there are new marks
    // Two ranks differ in what is equal on all ranks; with a sentence.
    std::function<void(std::int64_t step, int rank, int other, std::string what)> replicas_differ =
        [](std::int64_t, int, int, std::string) {};
    // A reported value has become NaN or infinite.
    std::function<void(std::int64_t step, NamedValue value)> not_finite = [](std::int64_t,
                                                                             NamedValue) {};
    // What follows is of replacement in place. A hello has come: can_recover(), is_prepared().
    std::function<void()> hello = [] {};
    std::function<void(std::string why, bool nor_later)> cannot_recover = [](std::string, bool) {};
    std::function<void(std::uint32_t generation)> regrouped = [](std::uint32_t) {};
    std::function<void(std::uint32_t generation)> committed = [](std::uint32_t) {};
    std::function<void()> parked = [] {};  // is_parked()
  };

  static Result<std::shared_ptr<WorkerLink>> make(const boost::asio::any_io_executor& executor);

  // The descriptors that the worker inherits.
  int worker_socket() const { return worker_socket_.get(); }  // -1 after started()
  int worker_page() const { return page_.get(); }
  int worker_record() const { return record_.get(); }
  void started(pid_t pid, Hooks hooks);
  // The worker has ended: what it sent last is heard now, as its end says more with it. Not in a hook.
  void ended();
  // For a link that has another owner now. Not in a hook.
  void listen(Hooks hooks) { hooks_ = std::move(hooks); }

  // False: use a signal instead; the request is kept, and sent if the worker opens its link later.
  bool ask_to_leave();
  bool asks_at_boundaries() const;  // whether it is to leave, so that it is told by set()
  // It was asked to leave, and leaves because of that; also valid after its end.
  bool has_left() const;

  // What all workers of the round are told of their step boundaries (link::Boundaries).
  struct Boundaries {
    link::BoundaryState state = link::BoundaryState::kGoOn;
    std::int64_t leave_at = 0;
  };
  void set(const Boundaries& boundaries);
  std::int64_t boundary_passed() const;  // the last one; a worker may write anything there

  // The steps that it has reported, if it can be stopped between two of them; else 0. It may write anything there.
  std::int64_t steps() const;
  std::optional<std::chrono::nanoseconds> last_step() const;  // how long it took
  bool is_parked() const;

  // The worker has said that its program can be a zygote, and may have closed its link since.
  bool can_be_zygote() const { return (taken_ & link::kCanBeZygote) != 0; }

  // The worker with that rank is gone. This one need not listen.
  void tell_group_broken(Round round, int rank);

  // ---- replacement in place

  // It has said that it cannot be replaced in place: its end is no news of the step that it was in.
  bool has_refused() const { return has_refused_; }
  // It takes part in the replacement of others, and can be replaced: it has sent its mirror.
  bool can_recover() const { return (taken_ & link::kCanRecover) != 0 && mirror_; }
  bool is_prepared() const { return (taken_ & link::kIsPrepared) != 0; }
  // Of this worker, or of the one whose place it has taken; -1: none. The agent never looks into it.
  int mirror() const { return mirror_.get(); }
  // False: the message could not be sent.
  bool tell_regroup(int rank, std::uint32_t generation);
  // From here on this prepared standby is the worker of that rank, in the place of one with that link.
  bool tell_take_place(int rank, std::uint32_t generation, int stdout_fd, int stderr_fd,
                       WorkerLink& before);
  // Steps that it has committed, and the generation in which its groups were made last. A worker may
  // write anything there; valid after its end.
  struct Recovered {
    std::int64_t committed = 0;
    std::uint32_t generation = 0;
  };
  Recovered recovered() const;
  // Likewise: what it takes of a GPU.
  link::GpuUse gpu() const;

  // The progress that the worker reported; none if it reported none. Also valid after its end.
  std::optional<WorkerProgress> progress() const;
  StepMarks marks() const;  // likewise
  // The groups that the worker is in, with the calls that its record has; likewise.
  std::vector<record::RecordedGroup> groups() const;
  record::RecordedThreads threads() const;
  // The latest calls of each group that need all members, at most so many.
  std::vector<record::GroupArrivals> arrivals(std::size_t most) const;

 private:
  WorkerLink(const boost::asio::any_io_executor& executor, rdzv::UniqueFd socket,
             rdzv::UniqueFd worker_socket, rdzv::UniqueFd page, rdzv::UniqueFd record);

  void await_message();
  void read_messages(int most);
  struct Packet;
  static Packet receive(int socket);
  bool on_message(Packet& packet);  // false: it breaks the protocol
  void send_leave();
  void close();

  boost::asio::posix::stream_descriptor socket_;
  rdzv::UniqueFd worker_socket_;
  rdzv::UniqueFd page_;
  rdzv::UniqueFd record_;
  pid_t pid_ = -1;
  Hooks hooks_;
  std::uint32_t taken_ = 0;  // requests that the worker accepts, from its last hello
  bool has_refused_ = false;
  bool must_leave_ = false;
  bool was_told_ = false;              // kLeave was sent
  bool notes_that_it_leaves_ = false;  // on the page; programs of earlier releases do not
  rdzv::UniqueFd mirror_;
  const Lifetime lifetime_;
};

}  // namespace ddprun::agent
