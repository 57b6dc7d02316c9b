#include "worker_lib/nccl_profiler/communicator.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string_view>
#include <utility>

namespace ddprun::nccl {
namespace {

using record::Operation;

// More than the record has entries: of older ones nobody reads.
constexpr std::size_t kCallsKept = 2048;

constexpr std::pair<std::string_view, Operation> kOperations[] = {
    {"AllReduce", Operation::kAllReduce},
    {"Broadcast", Operation::kBroadcast},
    {"Reduce", Operation::kReduce},
    {"AllGather", Operation::kAllGather},
    {"Gather", Operation::kGather},
    {"Scatter", Operation::kScatter},
    {"ReduceScatter", Operation::kReduceScatter},
    {"AlltoAll", Operation::kAllToAll},
    {"AllToAll", Operation::kAllToAll}};

// c10::ScalarType's numbers.
constexpr std::pair<std::string_view, std::uint8_t> kTypes[] = {
    {"ncclUint8", std::uint8_t{0}},       {"ncclInt8", std::uint8_t{1}},
    {"ncclInt32", std::uint8_t{3}},       {"ncclInt64", std::uint8_t{4}},
    {"ncclFloat16", std::uint8_t{5}},     {"ncclFloat32", std::uint8_t{6}},
    {"ncclFloat64", std::uint8_t{7}},     {"ncclBfloat16", std::uint8_t{15}},
    {"ncclFloat8e5m2", std::uint8_t{23}}, {"ncclFloat8e4m3", std::uint8_t{24}},
    {"ncclUint32", std::uint8_t{28}},     {"ncclUint64", std::uint8_t{29}}};

// `name` may be null.
template <typename Value, std::size_t count>
Value value_of(const std::pair<std::string_view, Value> (&table)[count], const char* name,
               Value otherwise) {
  const auto* const found = std::ranges::find(table, std::string_view(name == nullptr ? "" : name),
                                              &std::pair<std::string_view, Value>::first);
  return found == std::end(table) ? otherwise : found->second;
}

record::Call with_size(record::Call call, const char* type, std::size_t count) {
  call.type = value_of(kTypes, type, record::kNoType);
  call.elements = count;
  call.signature = record::mixed(record::kHashSeed, count);
  return call;
}

}  // namespace

record::Call call_of(const Event& event) {
  record::Call call;
  call.operation = value_of(kOperations, event.collective.function, Operation::kOther);
  const bool has_root =
      call.operation == Operation::kBroadcast || call.operation == Operation::kReduce ||
      call.operation == Operation::kGather || call.operation == Operation::kScatter;
  if (has_root) call.root = event.collective.root;
  return with_size(call, event.collective.type, event.collective.count);
}

record::Call message_of(const Event& event) {
  return with_size({.operation = Operation::kSendReceive}, event.message.type, event.message.count);
}

std::string name_of(const char* communicator, std::uint64_t id) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016lx", static_cast<unsigned long>(id));
  std::string name = "nccl ";
  for (const char* at = communicator; at != nullptr && *at != '\0' && name.size() < 23; ++at) {
    name += *at >= ' ' && *at < '\x7f' ? *at : '?';
  }
  return name + " " + std::string(digits + 8);
}

std::uint64_t Communicator::start_collective(const Event& event) {
  const std::scoped_lock lock(mutex_);
  return start({.ticket = group_.enter(call_of(event), record::kNotBegun),
                .channels = event.collective.channels});
}

std::uint64_t Communicator::start_message(const Event& event) {
  const std::string_view function = event.message.function == nullptr ? "" : event.message.function;
  const auto end = function == "Send" ? GroupRecord::End::kSender : GroupRecord::End::kReceiver;
  const std::scoped_lock lock(mutex_);
  return start({.ticket = group_.enter_message(end, event.message.peer, 0, message_of(event)),
                .is_message = true,
                .channels = event.message.channels});
}

std::uint64_t Communicator::start(const Call& call) {
  if (calls_.size() == kCallsKept) {
    calls_.pop_front();
    ++first_;
  }
  calls_.push_back(call);
  return first_ + calls_.size() - 1;
}

Communicator::Call* Communicator::find(std::uint64_t number) {
  if (number < first_ || number - first_ >= calls_.size()) return nullptr;
  return &calls_[number - first_];
}

void Communicator::host_is_done(std::uint64_t number) {
  const std::scoped_lock lock(mutex_);
  if (Call* const call = find(number)) call->is_with_host = false;
  leave_if_over(number);
}

void Communicator::channel_began(std::uint64_t number) {
  const std::scoped_lock lock(mutex_);
  Call* const call = find(number);
  if (call == nullptr || std::exchange(call->has_begun, true)) return;
  group_.begin(call->ticket);
}

void Communicator::channel_ended(std::uint64_t number) {
  const std::scoped_lock lock(mutex_);
  if (Call* const call = find(number); call != nullptr && call->channels > 0) --call->channels;
  leave_if_over(number);
}

// The kernels of a communicator run one after the other: with a collective all those before it are over,
// of which NCCL may not have told everything.
void Communicator::leave_if_over(std::uint64_t number) {
  Call* const call = find(number);
  if (call == nullptr || call->is_with_host || call->channels > 0 || call->is_left) return;
  const auto leave = [this](Call& each) {
    if (!std::exchange(each.is_left, true)) group_.leave(each.ticket);
  };
  leave(*call);
  for (std::uint64_t before = first_; !call->is_message && before < number; ++before) {
    if (Call& each = *find(before); !each.is_message) leave(each);
  }
  while (!calls_.empty() && calls_.front().is_left) {
    calls_.pop_front();
    ++first_;
  }
}

}  // namespace ddprun::nccl
