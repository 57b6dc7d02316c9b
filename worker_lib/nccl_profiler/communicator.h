// The calls of one communicator of NCCL, in the record of collectives. A call is entered when the host
// starts it, begun when the first channel of its kernel begins, and left when all channels have ended; NCCL notices what the
// GPU does on a thread of its own.
// Any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "worker_lib/nccl_profiler/profiler_interface.h"
#include "worker_lib/process/collective_record.h"

namespace ddprun::nccl {

// What NCCL says of a collective, or of a message, as the record has it.
record::Call call_of(const Event& event);
record::Call message_of(const Event& event);
// Equal on all members of the communicator.
std::string name_of(const char* communicator, std::uint64_t id);

class Communicator {
 public:
  Communicator(std::shared_ptr<CollectiveRecord> record, const char* name, std::uint64_t id,
               int rank, int size)
      : group_(std::move(record), name_of(name, id), rank, size) {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Calls have numbers, from 0 on. Of one that is not known (any more) nothing is written.
  std::uint64_t start_collective(const Event& event);
  std::uint64_t start_message(const Event& event);
  void host_is_done(std::uint64_t number);  // what remains is the GPU's
  void channel_began(std::uint64_t number);
  void channel_ended(std::uint64_t number);

 private:
  struct Call {
    record::Ticket ticket = 0;
    bool is_message = false;
    bool is_with_host = true;
    int channels = 0;  // that have not ended
    bool has_begun = false;
    bool is_left = false;
  };

  std::uint64_t start(const Call& call);
  Call* find(std::uint64_t number);
  void leave_if_over(std::uint64_t number);

  GroupRecord group_;
  std::mutex mutex_;        // guards the rest
  std::deque<Call> calls_;  // those from first_ on
  std::uint64_t first_ = 0;
};

}  // namespace ddprun::nccl
