// The worker's end of its record of collectives (rendezvous/common/worker_abi/collective_record.h): what
// the backends of c10d write, each for its group. Any thread. Without LibTorch. Where there is no record,
// as under an older agent or none, nothing happens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/common/worker_abi/collective_record.h"
#include "worker_lib/process/owner_mark.h"
#include "worker_lib/process/shared_memory.h"

namespace ddprun {

class CollectiveRecord {
 public:
  // The descriptor as the variable gives it, which is this object's from here on; nothing where it is
  // not the record of this very process, or somebody's already.
  static std::shared_ptr<CollectiveRecord> open(int fd);
  // That of this process, which all its groups share.
  static std::shared_ptr<CollectiveRecord> of_this_process();
  CollectiveRecord(const CollectiveRecord&) = delete;
  CollectiveRecord& operator=(const CollectiveRecord&) = delete;

 private:
  friend class GroupRecord;
  CollectiveRecord(Mapping mapping, OwnerMark mark);
  // Makes one of the threads that are counted of this thread, until it ends.
  static void count_this_thread(const std::shared_ptr<CollectiveRecord>& record);

  Mapping mapping_;
  record::Memory* memory_;  // in it
  OwnerMark mark_;
  std::mutex mutex_;  // guards the rest, and that groups come and go one at a time
  std::uint32_t groups_made_ = 0;
  std::size_t channels_ = 0;
};

// The calls of one group. Whoever finds a call done, on whichever thread, says that it was left.
class GroupRecord {
 public:
  // `name` is equal on all members and unlike that of every other group; `rank` is of the group.
  // `before_call` is called before each of them, on its thread.
  GroupRecord(std::shared_ptr<CollectiveRecord> record, std::string_view name, int rank, int size,
              std::function<void()> before_call = {});
  ~GroupRecord();
  GroupRecord(const GroupRecord&) = delete;
  GroupRecord& operator=(const GroupRecord&) = delete;

  // `begun`: record::kNotBegun for a call that a GPU makes, of which begin() is told later.
  record::Ticket enter(const record::Call& call, std::uint32_t begun = 0);
  void begin(record::Ticket ticket);
  // A message to or from that rank of the group. leave() is the same.
  enum class End { kSender, kReceiver };
  record::Ticket enter_message(End end, int peer, int tag, const record::Call& call);
  void leave(record::Ticket ticket);

  // This thread is inside of the wait for that call, which it or another thread has entered.
  class Waiting {
   public:
    Waiting(const std::shared_ptr<GroupRecord>& record, record::Ticket ticket);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    CollectiveRecord* const record_;  // null: the call is not recorded
  };

 private:
  struct ChannelPlace {
    record::Channel channel;
    record::GroupPlace place;
  };
  record::GroupPlace place_of(const record::Channel& channel, bool is_sender);

  std::shared_ptr<CollectiveRecord> record_;  // nothing: there is none
  const std::function<void()> before_call_;
  const std::string name_;
  const int rank_;
  const bool has_ranks_of_job_;  // it has as many members as the job has workers
  record::GroupPlace place_;
  std::vector<ChannelPlace> channels_;  // guarded by the record's mutex
};

}  // namespace ddprun
