#include "worker_lib/process/collective_record.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "rendezvous/common/unique_fd.h"

namespace ddprun {
namespace {

std::int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace

std::shared_ptr<CollectiveRecord> CollectiveRecord::open(int fd) {
  record::Header header;
  if (!is_own_file(fd, header) || header.version != record::kVersion || !take_descriptor(fd)) {
    return nullptr;
  }
  const rdzv::UniqueFd taken(fd);
  OwnerMark mark = OwnerMark::make();
  Mapping mapping(taken.get(), record::kBytes);
  if (!mark.is_set() || !mapping) return nullptr;
  std::shared_ptr<CollectiveRecord> made(new CollectiveRecord(std::move(mapping), std::move(mark)));
  // The hooks for Python may have counted before.
  made->memory_->threads = made->memory_->threads_in_wait = 0;
  return made;
}

// Looked for once: the variable of a process does not change, and the descriptor is closed afterwards.
std::shared_ptr<CollectiveRecord> CollectiveRecord::of_this_process() {
  static const std::shared_ptr<CollectiveRecord> opened = [] {
    const char* const text = std::getenv(record::kVariable);
    return text == nullptr ? nullptr : open(std::atoi(text));
  }();
  return opened;
}

CollectiveRecord::CollectiveRecord(Mapping mapping, OwnerMark mark)
    : mapping_(std::move(mapping)),
      memory_(reinterpret_cast<record::Memory*>(mapping_.data())),
      mark_(std::move(mark)) {}

void CollectiveRecord::count_this_thread(const std::shared_ptr<CollectiveRecord>& record) {
  struct Counted {
    explicit Counted(std::shared_ptr<CollectiveRecord> in) : record(std::move(in)) {
      record->memory_->threads.fetch_add(1, std::memory_order_relaxed);
    }
    ~Counted() {
      if (record->mark_.is_set()) {
        record->memory_->threads.fetch_sub(1, std::memory_order_relaxed);
      }
    }
    const std::shared_ptr<CollectiveRecord> record;
  };
  thread_local const Counted counted(record);
}

namespace {

// Of a process: groups have the other places.
constexpr std::size_t kChannelsMax = 16;

bool is_size_of_job(int size) {
  const char* const text = std::getenv("WORLD_SIZE");
  return text != nullptr && std::atoi(text) == size;
}

}  // namespace

GroupRecord::GroupRecord(std::shared_ptr<CollectiveRecord> record, std::string_view name, int rank,
                         int size, std::function<void()> before_call)
    : record_(std::move(record)),
      before_call_(std::move(before_call)),
      name_(name),
      rank_(rank),
      has_ranks_of_job_(is_size_of_job(size)) {
  if (!record_ || !record_->mark_.is_set()) return;
  const std::scoped_lock lock(record_->mutex_);
  place_ = record::add_group(*record_->memory_, name, static_cast<std::uint32_t>(rank),
                             static_cast<std::uint32_t>(size), ++record_->groups_made_);
}

GroupRecord::~GroupRecord() {
  if (!record_ || !record_->mark_.is_set()) return;
  const std::scoped_lock lock(record_->mutex_);
  record::remove_group(*record_->memory_, place_);
  for (const ChannelPlace& each : channels_) {
    record::remove_group(*record_->memory_, each.place);
  }
  record_->channels_ -= channels_.size();
}

record::Ticket GroupRecord::enter_message(End end, int peer, int tag, const record::Call& call) {
  if (!record_ || !record_->mark_.is_set() || peer < 0) return 0;
  const bool is_sender = end == End::kSender;
  record::Channel channel{.from = static_cast<std::uint32_t>(is_sender ? rank_ : peer),
                          .to = static_cast<std::uint32_t>(is_sender ? peer : rank_),
                          .tag = tag};
  if (has_ranks_of_job_) channel.job_peer = static_cast<std::uint32_t>(peer);
  CollectiveRecord::count_this_thread(record_);
  record::Call message = call;
  message.operation = record::Operation::kSendReceive;
  return record::enter(*record_->memory_, place_of(channel, is_sender), message, now_ns());
}

// Nothing is written where there are too many.
record::GroupPlace GroupRecord::place_of(const record::Channel& channel, bool is_sender) {
  const std::scoped_lock lock(record_->mutex_);
  const auto known = std::ranges::find(channels_, channel, &ChannelPlace::channel);
  if (known != channels_.end()) return known->place;
  if (record_->channels_ == kChannelsMax) return {};
  ++record_->channels_;
  channels_.push_back({channel, record::add_channel(*record_->memory_, name_, channel, is_sender,
                                                    ++record_->groups_made_)});
  return channels_.back().place;
}

record::Ticket GroupRecord::enter(const record::Call& call, std::uint32_t begun) {
  if (before_call_) before_call_();
  if (!record_ || !record_->mark_.is_set()) return 0;
  CollectiveRecord::count_this_thread(record_);
  return record::enter(*record_->memory_, place_, call, now_ns(), begun);
}

void GroupRecord::begin(record::Ticket ticket) {
  if (ticket != 0 && record_->mark_.is_set()) record::begin(*record_->memory_, ticket, now_ns());
}

void GroupRecord::leave(record::Ticket ticket) {
  if (ticket != 0 && record_->mark_.is_set()) record::leave(*record_->memory_, ticket, now_ns());
}

GroupRecord::Waiting::Waiting(const std::shared_ptr<GroupRecord>& record, record::Ticket ticket)
    : record_(ticket != 0 && record->record_->mark_.is_set() ? record->record_.get() : nullptr) {
  if (record_ == nullptr) return;
  CollectiveRecord::count_this_thread(record->record_);
  record_->memory_->threads_in_wait.fetch_add(1, std::memory_order_relaxed);
}

GroupRecord::Waiting::~Waiting() {
  if (record_ != nullptr) record_->memory_->threads_in_wait.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace ddprun
