#include "ddprun/collectives.h"

#include <algorithm>
#include <exception>
#include <numeric>

#include "ddprun/log.h"
#include "worker_lib/c10d/gloo_types.h"
#include "worker_lib/c10d/words.h"
#include "worker_lib/group/membership.h"
#include "worker_lib/process/agent_link.h"

namespace ddprun {
namespace {

using detail::Membership;
using detail::Operation;
using Tensor = torch::Tensor;
using Tensors = std::vector<torch::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

template <typename... Parts>
[[noreturn]] void refuse(const char* name, const Parts&... parts) {
  std::ostringstream sentence;
  sentence << name << ": ";
  (sentence << ... << parts);
  throw Failure(ErrorCode::kInvalidArgument, sentence.str());
}

void check_is_dense(const char* name, const Tensor& tensor) {
  if (!tensor.defined()) refuse(name, "the tensor is not defined");
  if (tensor.layout() == torch::kStrided) return;
  refuse(name,
         "the tensor is sparse, which all_reduce alone takes (with coordinates); give its "
         "to_dense()");
}

// What is written in place: c10d takes the memory as it lies.
Tensor in_place(const char* name, const Tensor& tensor) {
  check_is_dense(name, tensor);
  if (!tensor.is_non_overlapping_and_dense()) {
    refuse(name, "a tensor of sizes ", tensor.sizes(), " and strides ", tensor.strides(),
           " cannot be written in place; give its contiguous() copy and use that");
  }
  if (tensor.is_conj() || tensor.is_neg()) {
    refuse(name, "a conjugated view cannot be written in place; give its resolve_conj() copy");
  }
  return tensor.detach();
}

Tensor dense(const char* name, const Tensor& tensor) {
  check_is_dense(name, tensor);
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

// A dense tensor's elements in the order of its memory, in one dimension.
Tensor flat(const Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

// NCCL refuses a transposed tensor, though it is dense.
Tensor for_reduction(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : flat(tensor);
}

// What is only moved needs no type that the backend can calculate with.
Tensor as_bytes(const Tensor& tensor, at::IntArrayRef shape = {}) {
  const Tensor bytes = flat(tensor).view(torch::kUInt8);
  return shape.empty() ? bytes : bytes.view(shape);
}

// Alone, or between nodes.
bool is_gloo(const Membership& membership, const Tensor& tensor) {
  return membership.group->getBackend(tensor.device().type())->getBackendName().starts_with("gloo");
}

// Whether the memory must be the CPU's: Gloo hands a message to a socket as it is.
bool goes_through_cpu(const Membership& membership, const Tensor& tensor) {
  return !tensor.is_cpu() && is_gloo(membership, tensor);
}

// Of a message: over Gloo its own limit is the one that the group was connected within.
std::chrono::milliseconds limit_of_message(const Membership& membership, const Tensor& tensor) {
  return is_gloo(membership, tensor) ? membership.maker->timeout() : kNoTimeout;
}

// Gloo knows no average: the sum is divided afterwards.
struct Division {
  ReduceOp op;  // to ask for
  bool is_needed = false;
};
Division divided(const char* name, const Membership& membership, const Tensor& tensor,
                 const ReduceOp& op) {
  if (op == ReduceOp::AVG && tensor.scalar_type() == torch::kBool) {
    refuse(name, "there is no average of bools; give a number type, or ask for MIN or MAX");
  }
  if (op == ReduceOp::AVG && is_gloo(membership, tensor)) return {ReduceOp::SUM, true};
  return {op, false};
}
void divide(Tensor tensor, int by) {
  if (tensor.is_complex() && !tensor.is_sparse()) tensor = torch::view_as_real(tensor);
  if (tensor.is_floating_point() || tensor.is_complex()) {
    tensor.div_(by);
  } else {
    tensor.div_(by, "trunc");
  }
}

// The tensor itself, or a copy of a type that the backend can reduce.
Tensor to_reduce(const Membership& membership, const Tensor& tensor) {
  return is_gloo(membership, tensor) ? widened_for_gloo(tensor) : tensor;
}

// A world of one knows every type, whatever its backend does: what is reduced is there already. Over
// NCCL it goes the way of all others.
bool is_reduced_already(const Membership& membership, const Tensor& tensor, const ReduceOp& op) {
  return membership.size() == 1 && op != ReduceOp::PREMUL_SUM && is_gloo(membership, tensor);
}

std::string_view name_of(ReduceOp::RedOpType op) {
  switch (op) {
    case ReduceOp::SUM:
      return "SUM";
    case ReduceOp::AVG:
      return "AVG";
    case ReduceOp::PRODUCT:
      return "PRODUCT";
    case ReduceOp::MIN:
      return "MIN";
    case ReduceOp::MAX:
      return "MAX";
    case ReduceOp::BAND:
      return "BAND";
    case ReduceOp::BOR:
      return "BOR";
    case ReduceOp::BXOR:
      return "BXOR";
    default:
      return "a scaled sum";
  }
}

// A tensor's type and sizes as numbers, for comparison between ranks. The first dimension comes
// last, apart from the others.
constexpr std::int64_t kMostDimensions = 16;
constexpr std::int64_t kHeaderNumbers = 2 + kMostDimensions;

Tensor header_of(const char* name, const Tensor& tensor) {
  check_is_dense(name, tensor);
  if (tensor.dim() < 1 || tensor.dim() > kMostDimensions) {
    refuse(name, "a tensor of ", tensor.dim(), " dimensions; it must have 1 to ", kMostDimensions);
  }
  Tensor header = torch::zeros({kHeaderNumbers}, torch::kInt64);
  auto* numbers = header.mutable_data_ptr<std::int64_t>();
  numbers[0] = static_cast<std::int64_t>(tensor.scalar_type());
  numbers[1] = tensor.dim();
  for (std::int64_t i = 1; i < tensor.dim(); ++i) numbers[1 + i] = tensor.size(i);
  numbers[kHeaderNumbers - 1] = tensor.size(0);
  return header;
}

std::string text_of_header(const std::int64_t* numbers) {
  std::ostringstream text;
  text << c10::toString(static_cast<torch::ScalarType>(numbers[0])) << "[*";
  for (std::int64_t i = 1; i < numbers[1]; ++i) text << ", " << numbers[1 + i];
  text << "]";
  return text.str();
}

// All ranks see the same headers, so all throw or none does.
void check_headers(const char* name, const Membership& membership, const Tensors& headers) {
  const auto* first = headers[0].const_data_ptr<std::int64_t>();
  for (std::size_t rank = 1; rank < headers.size(); ++rank) {
    const auto* other = headers[rank].const_data_ptr<std::int64_t>();
    if (std::equal(first, first + kHeaderNumbers - 1, other)) continue;
    refuse(name, "rank ", membership.global_ranks[0], " brings ", text_of_header(first),
           " and rank ", membership.global_ranks[rank], " brings ", text_of_header(other),
           "; only the first dimension may differ");
  }
}

std::int64_t rows(const Tensor& header) {
  return header.const_data_ptr<std::int64_t>()[kHeaderNumbers - 1];
}

std::vector<std::int64_t> with_rows(const Tensor& tensor, std::int64_t count) {
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes[0] = count;
  return sizes;
}

std::int64_t row_numbers(const Tensor& tensor) {
  std::int64_t count = 1;
  for (std::int64_t i = 1; i < tensor.dim(); ++i) count *= tensor.size(i);
  return count;
}

}  // namespace

namespace detail {

Operation::Operation(std::shared_ptr<Membership> membership, const char* name, Tensors kept,
                     const Begin& begin, std::function<void()> finish)
    : membership_(std::move(membership)),
      name_(name),
      number_(membership_->calls),
      kept_(std::move(kept)),
      finish_(std::move(finish)) {
  if (!membership_->group) refuse(name_, "this rank has left the group");
  try {
    work_ = begin();
  } catch (...) {
    enter();
    fail();
  }
}

void Operation::enter() {
  if (!membership_->roll_call) return;
  membership_->roll_call->enter(name_, membership_->name, number_,
                                kept_.empty() ? nullptr : &kept_[0]);
}

void Operation::wait() {
  if (!work_) return;
  enter();
  try {
    const PhaseGuard phase(membership_->link, WorkerPhase::kCollective);
    work_->wait(limit_);
  } catch (...) {
    fail();
  }
  if (membership_->roll_call) membership_->roll_call->exit();
  if (finish_) finish_();
  finish_ = nullptr;
  kept_.clear();
  work_.reset();
}

// In a handler. What c10d refuses is this rank's own mistake; all else is the connections'.
void Operation::fail() {
  const auto explain = [&](const std::exception& error) {
    if (!membership_->roll_call) throw Failure(ErrorCode::kUnavailable, words_of(error));
    Failure failure = membership_->roll_call->explain(membership_->global_ranks, error);
    membership_->roll_call->exit();
    throw failure;
  };
  try {
    throw;
  } catch (const c10::DistError& error) {
    explain(error);
  } catch (const c10::Error& error) {
    if (membership_->roll_call) membership_->roll_call->exit();
    refuse(name_, words_of(error));
  } catch (const std::exception& error) {
    explain(error);
  }
  throw;
}

}  // namespace detail

Group::Group(std::shared_ptr<Membership> membership) : is_ours_to_end_(true) {
  open(std::move(membership));
}

// While an exception is on its way nobody waits for the others any more.
Group::~Group() {
  if (!is_ours_to_end_ || !membership_->group || std::uncaught_exceptions() > 0) return;
  try {
    shut_down(*membership_->group);
  } catch (const std::exception& error) {
    log::warning("the group ", membership_->name, " did not end well: ", words_of(error));
  }
}

void Group::open(std::shared_ptr<Membership> membership) { membership_ = std::move(membership); }

int Group::rank() const { return membership_->rank; }
int Group::size() const { return membership_->size(); }
torch::Device Group::device() const { return membership_->device; }
const c10::intrusive_ptr<c10d::ProcessGroup>& Group::process_group() const {
  return membership_->group;
}

int Group::global_rank(int rank) const {
  check_rank("global_rank", rank);
  return membership_->global_ranks[static_cast<std::size_t>(rank)];
}

std::unique_ptr<Group> Group::new_group(const std::vector<int>& ranks) {
  std::vector<int> members = ranks;
  std::sort(members.begin(), members.end());
  std::string wrong;
  if (members.empty()) wrong = "the list of ranks is empty";
  if (std::adjacent_find(members.begin(), members.end()) != members.end()) {
    wrong = "a rank is twice in the list";
  }
  if (!members.empty() && (members.front() < 0 || members.back() >= size())) {
    wrong = "ranks count from 0 to " + std::to_string(size() - 1);
  }
  // One rank with another list would wait for a group that the others do not make.
  const auto lists = all_gather_object(members);
  if (!wrong.empty()) refuse("new_group", wrong);
  for (std::size_t other = 0; other < lists.size(); ++other) {
    if (lists[other] != members) {
      refuse("new_group", "rank ", membership_->global_ranks[other],
             " was given other ranks than rank ",
             membership_->global_ranks[static_cast<std::size_t>(rank())]);
    }
  }

  auto membership = std::make_shared<Membership>();
  membership->name = membership_->name + "/" + std::to_string(membership_->groups_made++);
  membership->maker = membership_->maker;
  membership->link = membership_->link;
  membership->roll_call = membership_->roll_call;
  membership->compares_calls = membership_->compares_calls;
  for (const int member : members) membership->global_ranks.push_back(global_rank(member));
  const auto self = std::find(members.begin(), members.end(), rank());
  if (self == members.end()) return nullptr;
  membership->rank = static_cast<int>(self - members.begin());
  membership->is_whole_job = membership_->is_whole_job && members.size() == lists.size();
  membership->device = membership_->device;
  membership->group =
      membership->maker->make(membership->name, membership->rank, membership->global_ranks);
  return std::unique_ptr<Group>(new Group(std::move(membership)));
}

void Group::check_rank(const char* name, int rank) const {
  if (rank >= 0 && rank < size()) return;
  refuse(name, "there is no rank ", rank, " in a group of ", size());
}

// What the ranks must agree on, besides the tensor that a call is about.
struct Group::Call {
  const char* name;
  int root = -1;
  std::optional<ReduceOp> op = {};
  bool has_equal_rows = true;  // the first dimension must agree too

  std::string to_string(const Membership& membership, const Tensors& tensors) const {
    std::ostringstream text;
    text << name;
    if (op) text << " " << name_of(*op);
    if (!tensors.empty()) {
      text << " of " << tensors[0].scalar_type();
      const auto sizes = tensors[0].sizes();
      text << (has_equal_rows ? sizes : sizes.slice(1));
    }
    if (root >= 0)
      text << " with the root " << membership.global_ranks[static_cast<std::size_t>(root)];
    return text.str();
  }
};

Operation Group::start(const Call& call, Tensors kept, const Operation::Begin& begin,
                       std::function<void()> finish) {
  Membership& membership = *membership_;
  if (membership.compares_calls) compare_calls(call.to_string(membership, kept));
  if (membership.link != nullptr && membership.is_whole_job) {
    membership.link->collective_begins();
  }
  ++membership.calls;
  return Operation(membership_, call.name, std::move(kept), begin, std::move(finish));
}

// All learn of a difference, and all throw.
void Group::compare_calls(const std::string& call) {
  Membership& membership = *membership_;
  if (membership.is_comparing || size() == 1) return;
  membership.is_comparing = true;
  std::vector<std::string> calls;
  try {
    calls = all_gather_bytes(call);
  } catch (...) {
    membership.is_comparing = false;
    throw;
  }
  membership.is_comparing = false;
  for (std::size_t other = 1; other < calls.size(); ++other) {
    if (calls[other] == calls[0]) continue;
    refuse("the ranks make different calls", "rank ", membership.global_ranks[0], " makes ",
           calls[0], ", rank ", membership.global_ranks[other], " makes ", calls[other]);
  }
}

Work<> Group::broadcast_async(Tensor tensor, int root) {
  check_rank("broadcast", root);
  tensor = in_place("broadcast", tensor);
  if (tensor.numel() == 0) return Work<>(Operation());
  Tensors moved{as_bytes(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  return Work<>(start({.name = "broadcast", .root = root}, {tensor},
                      [&] { return membership_->group->broadcast(moved, options); }));
}

Work<> Group::all_reduce_async(Tensor tensor, ReduceOp op) {
  const char* const name = "all_reduce";
  const bool is_sparse = tensor.defined() && tensor.layout() == torch::kSparse;
  const Tensor original = tensor;
  tensor = is_sparse ? tensor.detach() : in_place(name, tensor);
  const auto [asked, is_divided] = divided(name, *membership_, tensor, op);
  const Tensor lies = is_sparse ? tensor : for_reduction(tensor);
  const Tensor sent = is_sparse ? tensor : to_reduce(*membership_, lies);
  Tensors tensors{sent};
  c10d::AllreduceOptions options;
  options.reduceOp = asked;
  const bool is_there = is_reduced_already(*membership_, tensor, op);
  std::function<void()> finish;
  if (is_divided || is_sparse || !sent.is_same(lies)) {
    finish = [=, by = is_divided ? size() : 1] {
      const torch::NoGradGuard no_grad;
      if (by > 1) divide(sent, by);
      if (!sent.is_same(lies)) Tensor(lies).copy_(sent);
      // A sparse tensor gets other values and other places for them: those of the one that was sent.
      if (is_sparse) Tensor(original).copy_(sent);
    };
  }
  return Work<>(start(
      {.name = name, .op = op}, {tensor, sent},
      [&] { return is_there ? WorkPtr() : membership_->group->allreduce(tensors, options); },
      std::move(finish)));
}

Work<> Group::reduce_async(Tensor tensor, int root, ReduceOp op) {
  check_rank("reduce", root);
  tensor = in_place("reduce", tensor);
  const auto [asked, is_divided] = divided("reduce", *membership_, tensor, op);
  const bool is_there = is_reduced_already(*membership_, tensor, op);
  const Tensor lies = for_reduction(tensor);
  const Tensor sent = to_reduce(*membership_, lies);
  Tensors tensors{sent};
  c10d::ReduceOptions options;
  options.reduceOp = asked;
  options.rootRank = root;
  std::function<void()> finish;
  if (rank() == root) {
    finish = [=, by = is_divided ? size() : 1] {
      if (by > 1) divide(sent, by);
      if (!sent.is_same(lies)) Tensor(lies).copy_(sent);
    };
  }
  return Work<>(start(
      {.name = "reduce", .root = root, .op = op}, {tensor, sent},
      [&] { return is_there ? WorkPtr() : membership_->group->reduce(tensors, options); },
      std::move(finish)));
}

Work<Tensors> Group::gather_async(const Tensor& tensor, int root) {
  check_rank("gather", root);
  const Tensor own = dense("gather", tensor);
  Tensors result;
  std::vector<Tensors> outputs;
  if (rank() == root) {
    outputs.emplace_back();
    for (int other = 0; other < size(); ++other) {
      result.push_back(torch::empty_like(own));
      outputs[0].push_back(as_bytes(result.back()));
    }
  }
  if (own.numel() == 0) return {Operation(), std::move(result)};
  Tensors inputs{as_bytes(own)};
  c10d::GatherOptions options;
  options.rootRank = root;
  Tensors kept{own};
  kept.insert(kept.end(), result.begin(), result.end());
  return {start({.name = "gather", .root = root}, std::move(kept),
                [&] { return membership_->group->gather(outputs, inputs, options); }),
          std::move(result)};
}

Work<Tensors> Group::all_gather_async(const Tensor& tensor) {
  Tensor own = dense("all_gather", tensor);
  std::vector<std::int64_t> sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), size());
  Tensor all = torch::empty(sizes, own.options());
  Tensors result = all.unbind(0);
  if (own.numel() == 0) return {Operation(), std::move(result)};
  Tensor input = as_bytes(own);
  Tensor output = as_bytes(all);
  return {start({.name = "all_gather"}, {own, all},
                [&] { return membership_->group->_allgather_base(output, input); }),
          std::move(result)};
}

Tensors Group::all_gather_uneven(const Tensor& tensor) {
  const char* const name = "all_gather_uneven";
  const Tensor own = dense(name, tensor);
  const Tensors headers = all_gather(header_of(name, own));
  check_headers(name, *membership_, headers);
  std::int64_t most = 0;
  for (const Tensor& header : headers) most = std::max(most, rows(header));
  Tensor padded = own;
  if (own.size(0) < most) {
    padded = torch::empty(with_rows(own, most), own.options());
    padded.narrow(0, 0, own.size(0)).copy_(own);
    padded.narrow(0, own.size(0), most - own.size(0)).zero_();
  }
  Tensors parts = all_gather(padded);
  for (std::size_t other = 0; other < parts.size(); ++other) {
    parts[other] = parts[other].narrow(0, 0, rows(headers[other]));
  }
  return parts;
}

Work<> Group::scatter_async(Tensor into, const Tensors& parts, int root) {
  check_rank("scatter", root);
  into = in_place("scatter", into);
  if (!into.is_contiguous()) refuse("scatter", "the tensor to write must be contiguous");
  const bool is_root = rank() == root;
  if (parts.size() != (is_root ? static_cast<std::size_t>(size()) : 0)) {
    refuse("scatter", is_root ? "the root must give one part per rank, " : "only the root gives ",
           is_root ? std::to_string(size()) + ", not " : "parts, not this rank, which has ",
           parts.size());
  }
  Tensors kept{into};
  std::vector<Tensors> inputs;
  if (is_root) {
    inputs.emplace_back();
    for (const Tensor& part : parts) {
      kept.push_back(dense("scatter", part));
      if (part.sizes() != into.sizes() || part.scalar_type() != into.scalar_type()) {
        refuse("scatter", "the part for rank ", kept.size() - 2, " is a ", part.scalar_type(),
               part.sizes(), ", the tensor to write a ", into.scalar_type(), into.sizes());
      }
      inputs[0].push_back(as_bytes(kept.back()));
    }
  }
  if (into.numel() == 0) return Work<>(Operation());
  Tensors outputs{as_bytes(into)};
  c10d::ScatterOptions options;
  options.rootRank = root;
  return Work<>(start({.name = "scatter", .root = root}, std::move(kept),
                      [&] { return membership_->group->scatter(outputs, inputs, options); }));
}

Work<Tensor> Group::reduce_scatter_async(const Tensor& tensor, ReduceOp op) {
  Tensor own = dense("reduce_scatter", tensor);
  if (own.dim() < 1 || own.size(0) % size() != 0) {
    refuse("reduce_scatter", "a tensor of sizes ", own.sizes(),
           " cannot be cut along its first dimension into ", size(), " equal parts");
  }
  Tensor result = torch::empty(with_rows(own, own.size(0) / size()), own.options());
  if (own.numel() == 0) return {Operation(), std::move(result)};
  const auto [asked, is_divided] = divided("reduce_scatter", *membership_, own, op);
  const bool is_there = is_reduced_already(*membership_, own, op);
  if (is_there) result.copy_(own);
  c10d::ReduceScatterOptions options;
  options.reduceOp = asked;
  Tensor input = to_reduce(*membership_, own.view(-1));
  const Tensor flat_result = result.view(-1);
  Tensor output = input.scalar_type() == own.scalar_type()
                      ? flat_result
                      : torch::empty(flat_result.sizes(), input.options());
  const auto finish = [flat_result, output, by = is_divided ? size() : 1] {
    if (by > 1) divide(output, by);
    if (!output.is_same(flat_result)) Tensor(flat_result).copy_(output);
  };
  return {start(
              {.name = "reduce_scatter", .op = op}, {own, result, input, output},
              [&] {
                return is_there ? WorkPtr()
                                : membership_->group->_reduce_scatter_base(output, input, options);
              },
              finish),
          result};
}

Work<Tensor> Group::all_to_all_async(const Tensor& tensor, std::vector<std::int64_t> sent,
                                     std::vector<std::int64_t> received) {
  const char* const name = "all_to_all";
  Tensor own = dense(name, tensor);
  if (own.dim() < 1) refuse(name, "a number has no first dimension to cut");
  const auto ranks = static_cast<std::size_t>(size());
  if (sent.empty() && received.empty()) {
    if (own.size(0) % size() != 0) {
      refuse(name, "a tensor of sizes ", own.sizes(),
             " cannot be cut along its first dimension into ", size(), " equal parts");
    }
    sent.assign(ranks, own.size(0) / size());
    received = sent;
  }
  const auto sum = [](const std::vector<std::int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  };
  const auto is_negative = [](std::int64_t count) { return count < 0; };
  if (sent.size() != ranks || received.size() != ranks ||
      std::any_of(sent.begin(), sent.end(), is_negative) ||
      std::any_of(received.begin(), received.end(), is_negative) || sum(sent) != own.size(0)) {
    refuse(name, "the lengths must be ", size(), " of each kind, and those sent add up to ",
           own.size(0), ", the tensor's first dimension");
  }
  Tensor result = torch::empty(with_rows(own, sum(received)), own.options());
  const std::int64_t row_bytes = row_numbers(own) * static_cast<std::int64_t>(own.element_size());
  if (row_bytes == 0) return {Operation(), std::move(result)};
  Tensor input = as_bytes(own, {own.size(0), row_bytes});
  Tensor output = as_bytes(result, {result.size(0), row_bytes});
  return {start({.name = name, .has_equal_rows = false}, {own, result},
                [&] { return membership_->group->alltoall_base(output, input, received, sent); }),
          result};
}

Tensors Group::all_to_all(const Tensors& parts) {
  const char* const name = "all_to_all";
  if (parts.size() != static_cast<std::size_t>(size())) {
    refuse(name, parts.size(), " parts for ", size(), " ranks");
  }
  // What everybody sends to everybody: all then decide alike whether it fits.
  Tensor lengths = torch::empty({size()}, torch::kInt64);
  Tensor header = header_of(name, parts[0]);
  for (std::size_t to = 0; to < parts.size(); ++to) {
    const Tensor other = header_of(name, parts[to]);
    if (!torch::equal(other.narrow(0, 0, kHeaderNumbers - 1),
                      header.narrow(0, 0, kHeaderNumbers - 1))) {
      refuse(name, "the parts for rank 0 and rank ", to,
             " differ in type or in another dimension than the first");
    }
    lengths[static_cast<std::int64_t>(to)] = parts[to].size(0);
  }
  Tensors headers = all_gather(torch::cat({header, lengths}));
  check_headers(name, *membership_, headers);
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;
  for (int other = 0; other < size(); ++other) {
    sent.push_back(parts[static_cast<std::size_t>(other)].size(0));
    received.push_back(headers[static_cast<std::size_t>(other)]
                           .const_data_ptr<std::int64_t>()[kHeaderNumbers + rank()]);
  }
  Tensor all = all_to_all_async(torch::cat(parts), sent, received).wait();
  return all.split_with_sizes(received);
}

Work<> Group::barrier_async() {
  // Past ProcessGroup's own, which keeps a tensor in a static variable: threads tear it.
  c10d::BarrierOptions options;
  if (device().is_cuda()) options.device_ids = {device().index()};
  return Work<>(start({.name = "barrier"}, {},
                      [&] { return membership_->group->getDefaultBackend()->barrier(options); }));
}

namespace {

// Where a message for `into` comes in, and what is left to do then.
struct Arrival {
  Arrival(const Membership& membership, const Tensor& into) : buffer(into) {
    if (!goes_through_cpu(membership, into)) return;
    buffer = torch::empty_like(into, torch::kCPU);
    finish = [into, buffer = buffer] { into.copy_(buffer); };
  }
  Tensor buffer;
  std::function<void()> finish;
};

}  // namespace

Work<> Group::send_async(const Tensor& tensor, int to, int tag) {
  check_rank("send", to);
  if (to == rank()) refuse("send", "a rank cannot send to itself");
  Tensor own = dense("send", tensor);
  if (own.numel() == 0) return Work<>(Operation());
  if (goes_through_cpu(*membership_, own)) own = own.cpu();
  Tensors moved{as_bytes(own)};
  const auto limit = limit_of_message(*membership_, own);
  return Work<>(Operation(
                    membership_, "send", {own},
                    [&] { return membership_->group->send(moved, to, tag); }, nullptr)
                    .within(limit));
}

Work<> Group::recv_async(Tensor into, int from, int tag) {
  check_rank("recv", from);
  if (from == rank()) refuse("recv", "a rank cannot receive from itself");
  into = in_place("recv", into);
  if (into.numel() == 0) return Work<>(Operation());
  const Arrival arrival(*membership_, into);
  Tensors moved{as_bytes(arrival.buffer)};
  const auto limit = limit_of_message(*membership_, into);
  return Work<>(Operation(
                    membership_, "recv", {into},
                    [&] { return membership_->group->recv(moved, from, tag); }, arrival.finish)
                    .within(limit));
}

int Group::recv_from_any(Tensor into, int tag) {
  into = in_place("recv_from_any", into);
  if (into.numel() == 0) refuse("recv_from_any", "an empty tensor receives nothing");
  const Arrival arrival(*membership_, into);
  Tensors moved{as_bytes(arrival.buffer)};
  WorkPtr work;
  Operation(
      membership_, "recv_from_any", {into},
      [&] { return work = membership_->group->recvAnysource(moved, tag); }, arrival.finish)
      .within(limit_of_message(*membership_, into))
      .wait();
  return work->sourceRank();
}

void Group::broadcast_bytes(void* bytes, std::size_t size, int root) {
  broadcast(torch::from_blob(bytes, {static_cast<std::int64_t>(size)}, torch::kUInt8), root);
}

std::string Group::broadcast(std::string text, int root) {
  text.resize(static_cast<std::size_t>(broadcast(static_cast<std::int64_t>(text.size()), root)));
  broadcast_bytes(text.data(), text.size(), root);
  return text;
}

namespace {

// The bytes of `text`, padded to `size`.
Tensor padded(const std::string& text, std::int64_t size) {
  Tensor bytes = torch::zeros({size}, torch::kUInt8);
  std::copy(text.begin(), text.end(), reinterpret_cast<char*>(bytes.mutable_data_ptr()));
  return bytes;
}

std::vector<std::string> texts_of(const Tensors& all, const Tensors& sizes) {
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    texts.emplace_back(static_cast<const char*>(all[rank].const_data_ptr()),
                       static_cast<std::size_t>(sizes[rank].item<std::int64_t>()));
  }
  return texts;
}

std::int64_t greatest(const Tensors& sizes) {
  std::int64_t most = 0;
  for (const Tensor& size : sizes) most = std::max(most, size.item<std::int64_t>());
  return most;
}

Tensor size_of(const std::string& text) {
  return torch::tensor(static_cast<std::int64_t>(text.size()), torch::kInt64);
}

}  // namespace

std::vector<std::string> Group::all_gather_bytes(const std::string& bytes) {
  const Tensors sizes = all_gather(size_of(bytes));
  return texts_of(all_gather(padded(bytes, greatest(sizes))), sizes);
}

std::vector<std::string> Group::gather_bytes(const std::string& bytes, int root) {
  check_rank("gather", root);
  const Tensors sizes = all_gather(size_of(bytes));
  return texts_of(gather(padded(bytes, greatest(sizes)), root), sizes);
}

std::int64_t Group::all_reduce_integer(std::int64_t value, const ReduceOp& op) {
  Tensor number = torch::tensor({value}, torch::kInt64);
  all_reduce(number, op);
  return number.item<std::int64_t>();
}

double Group::all_reduce_double(double value, const ReduceOp& op) {
  Tensor number = torch::tensor({value}, torch::kFloat64);
  all_reduce(number, op);
  return number.item<double>();
}

void Group::throw_together(std::exception_ptr mine, const std::string& doing) {
  constexpr char kNone = '-';
  constexpr char kUsage = 'u';
  constexpr char kOther = 'o';
  std::string report(1, kNone);
  if (mine) {
    try {
      std::rethrow_exception(mine);
    } catch (const UsageError& error) {
      report = kUsage + message_of(error);
    } catch (...) {
      report = kOther + message_of(mine);
    }
  }
  const std::vector<std::string> reports =
      size() == 1 ? std::vector{report} : all_gather_bytes(report);
  if (mine) std::rethrow_exception(mine);
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].starts_with(kNone)) continue;
    const std::string message = doing + " failed on rank " +
                                std::to_string(membership_->global_ranks[rank]) + ": " +
                                reports[rank].substr(1);
    if (reports[rank].starts_with(kUsage)) throw UsageError(message);
    throw Failure(ErrorCode::kUnavailable, message);
  }
}

void Codec<torch::Tensor>::write(ByteWriter& writer, const torch::Tensor& tensor) {
  Codec<bool>::write(writer, tensor.defined());
  if (!tensor.defined()) return;
  const Tensor strided = tensor.layout() == torch::kStrided ? tensor : tensor.to_dense();
  const Tensor dense_one = strided.detach().cpu().resolve_conj().resolve_neg().contiguous();
  Codec<std::int8_t>::write(writer, static_cast<std::int8_t>(dense_one.scalar_type()));
  Codec<std::vector<std::int64_t>>::write(writer, dense_one.sizes().vec());
  writer.count(dense_one.nbytes());
  writer.bytes(dense_one.const_data_ptr(), dense_one.nbytes());
}

torch::Tensor Codec<torch::Tensor>::read(ByteReader& reader) {
  if (!Codec<bool>::read(reader)) return {};
  const auto type = Codec<std::int8_t>::read(reader);
  const auto sizes = Codec<std::vector<std::int64_t>>::read(reader);
  const std::string_view bytes = reader.view(reader.count());
  constexpr auto kTypes = static_cast<std::int8_t>(torch::ScalarType::NumOptions);
  const bool is_known = type >= 0 && type < kTypes &&
                        static_cast<torch::ScalarType>(type) != torch::ScalarType::Undefined;
  const bool is_empty = std::ranges::find(sizes, 0) != sizes.end();
  std::uint64_t needed = is_known ? c10::elementSize(static_cast<torch::ScalarType>(type)) : 0;
  bool fits = is_known;
  for (const std::int64_t size : sizes) {
    fits = fits && size >= 0 &&
           (is_empty || !__builtin_mul_overflow(needed, static_cast<std::uint64_t>(size), &needed));
  }
  if (!fits || (is_empty ? 0 : needed) != bytes.size()) {
    throw Failure(ErrorCode::kProtocol, "the bytes of a tensor do not fit its sizes");
  }
  Tensor tensor = torch::empty(sizes, static_cast<torch::ScalarType>(type));
  if (!bytes.empty())
    std::copy(bytes.begin(), bytes.end(), static_cast<char*>(tensor.mutable_data_ptr()));
  return tensor;
}

}  // namespace ddprun
