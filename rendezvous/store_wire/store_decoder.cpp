#include "rendezvous/store_wire/store_decoder.h"

#include <algorithm>
#include <array>
#include <utility>

namespace ddprun::rdzv::wire {
namespace {

// The layout of each request after its first byte: 'k' a key, 'v' a value, '4' and '8' plain
// integers, 'n' the count of a list whose entries have the layout after ':'.
constexpr std::array<const char*, 19> kLayouts = {
    "4",     // VALIDATE
    "kv",    // SET
    "kvv",   // COMPARE_SET
    "k",     // GET
    "k8",    // ADD
    "n:k",   // CHECK
    "n:k",   // WAIT
    "",      // GETNUMKEYS
    "k",     // DELETE_KEY
    "kv",    // APPEND
    "n:k",   // MULTI_GET
    "n:kv",  // MULTI_SET
    "",      // CANCEL_WAIT
    "4",     // PING
    "kv",    // QUEUE_PUSH
    "k",     // QUEUE_POP
    "k",     // QUEUE_LEN
    "",      // LIST_KEYS
    "k8",    // BARRIER
};

const char* layout_of(char query) { return kLayouts[static_cast<unsigned char>(query)]; }

}  // namespace

RequestDecoder::Step RequestDecoder::broken(const char* fault) {
  fault_ = fault;
  return Step::kBroken;
}

RequestDecoder::Step RequestDecoder::start(Scan& scan, char query) {
  if (!is_validated_ && query != 0) return broken("does not speak the store protocol");
  if (is_validated_ && query == 0) return broken("sent VALIDATE a second time");
  if (static_cast<unsigned char>(query) >= kLayouts.size())
    return broken("sent an unknown request");
  scan.query = query;
  scan.fields = layout_of(query);
  scan.position = 1;
  scan.total = 1;
  return Step::kMore;
}

// Continues `scan` over the bytes that have arrived. On kMore, `wanted` is the total number of
// bytes that another call needs.
RequestDecoder::Step RequestDecoder::advance(Scan& scan, std::string_view flat) {
  if (scan.fields == nullptr) {
    if (flat.empty()) return Step::kMore;
    if (start(scan, flat.front()) == Step::kBroken) return Step::kBroken;
  }
  for (;;) {
    if (scan.total > limits::kMaxRequestBytes) return broken("sent a request that is too long");
    scan.wanted = scan.position;
    const char field = *scan.fields;
    if (field == ':' || field == '\0') {  // the end of the head, or of a list entry
      if (scan.items_left > 0) {
        --scan.items_left;
        scan.fields = layout_of(scan.query) + 2;
        continue;
      }
      return flat.size() >= scan.position ? Step::kDone : Step::kMore;
    }
    if (field == '4' || field == '8') {
      const std::uint64_t size = field == '4' ? 4 : 8;
      scan.position += size;
      scan.total += size;
      ++scan.fields;
      continue;
    }
    scan.wanted = scan.position + 8;
    if (flat.size() < scan.wanted) return Step::kMore;
    const auto number = load<std::uint64_t>(flat.data() + scan.position);
    scan.position += 8;
    scan.total += 8;
    ++scan.fields;
    if (field == 'n') {
      if (number > limits::kMaxListItems) return broken("sent a list that is too long");
      scan.items_left = number;
    } else if (field == 'k') {
      if (number > limits::kMaxKeyBytes) return broken("sent a key that is too long");
      scan.position += number;
      scan.total += number;
    } else {
      if (number > limits::kMaxValueBytes) return broken("sent a value that is too long");
      scan.total += number;
      if (number >= limits::kDetachedValueBytes) {
        scan.detached = number;
        return Step::kDetach;
      }
      scan.position += number;
    }
  }
}

RequestDecoder::Status RequestDecoder::next(std::string_view& input, Request& request) {
  for (;;) {
    forget_delivered();
    if (blob_left_ > 0) receive_detached(input);
    const bool is_in_place = pending_.empty();
    if (blob_left_ > 0 || (is_in_place && input.empty())) return Status::kNeedMore;
    const Step step = advance(scan_, is_in_place ? input : pending_);
    if (step == Step::kBroken) return Status::kBroken;
    if (step == Step::kDone) {
      is_delivered_ = true;
      const std::string_view flat = is_in_place ? input.substr(0, scan_.position) : pending_;
      if (is_in_place) input.remove_prefix(flat.size());
      const Status status = deliver(flat, request);
      if (status == Status::kBroken || request.query != Query::kValidate) return status;
      continue;
    }
    // It is incomplete, or a large value follows: from now on its bytes are kept in pending_.
    const std::uint64_t wanted = step == Step::kDetach ? scan_.position : scan_.wanted;
    const std::size_t taken = std::min<std::uint64_t>(wanted - pending_.size(), input.size());
    if (step == Step::kMore && taken == 0) return Status::kNeedMore;
    pending_.append(input.substr(0, taken));
    input.remove_prefix(taken);
    if (step == Step::kDetach) begin_detached();
  }
}

// Takes what has arrived of a large value.
void RequestDecoder::receive_detached(std::string_view& input) {
  while (blob_left_ > 0 && !input.empty()) {  // space() grows step by step, as in direct reception
    const auto space = direct_space();
    const std::size_t part = std::min(space.size(), input.size());
    std::copy_n(input.data(), part, space.data());
    input.remove_prefix(part);
    commit_direct(part);
  }
}

void RequestDecoder::begin_detached() {
  blobs_.emplace_back();
  blob_bytes_ += sizeof(Blob);
  blob_left_ = scan_.detached;
  scan_.detached = 0;
}

std::span<char> RequestDecoder::direct_space() {
  if (blob_left_ == 0) return {};
  Blob& blob = blobs_.back();
  const std::size_t before = blob.capacity();
  const auto space = blob.space(blob_left_, blob_bytes_ - before);
  blob_bytes_ += blob.capacity() - before;
  return space;
}

void RequestDecoder::commit_direct(std::size_t written) {
  blobs_.back().commit(written);
  blob_left_ -= written;
}

// Turns the bytes of a complete request into a Request; checks a VALIDATE.
RequestDecoder::Status RequestDecoder::deliver(std::string_view flat, Request& request) {
  request = Request{};
  request.query = static_cast<Query>(flat.front());
  FieldReader fields(flat.data() + 1, blobs_);
  for (const char* field = layout_of(flat.front()); *field != '\0'; ++field) {
    switch (*field) {
      case 'k':
        request.key = fields.key();
        break;
      case 'v':  // of two, the first is the expected one
        request.expected = std::exchange(request.value, fields.value());
        break;
      case '4':
        request.nonce = fields.number<std::uint32_t>();
        break;
      case '8':
        request.number = fields.number<std::int64_t>();
        break;
      default:
        request.items = ItemReader(fields);
        return Status::kRequest;
    }
  }
  if (request.query != Query::kValidate) return Status::kRequest;
  is_validated_ = request.nonce == kValidateMagic;
  if (!is_validated_) broken("does not speak the store protocol");
  return is_validated_ ? Status::kRequest : Status::kBroken;
}

void RequestDecoder::forget_delivered() {
  if (!is_delivered_) return;
  is_delivered_ = false;
  // Freed, not cleared: an idle connection must not keep the memory of its largest request.
  std::string().swap(pending_);
  std::vector<Blob>().swap(blobs_);
  scan_ = Scan{};
  blob_bytes_ = 0;
}

}  // namespace ddprun::rdzv::wire
