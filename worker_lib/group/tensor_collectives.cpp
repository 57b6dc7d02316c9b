#include <c10/util/accumulate.h>

#include <algorithm>

#include "ddprun/collectives.h"
#include "worker_lib/c10d/process_group.h"
#include "worker_lib/c10d/torch_compat.h"
#include "worker_lib/group/call_tensors.h"
#include "worker_lib/group/membership.h"
#include "worker_lib/group/recovery.h"

namespace ddprun {
namespace {

using namespace detail;
using Tensor = torch::Tensor;
using Tensors = std::vector<torch::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// NCCL refuses a transposed tensor, though it is dense.
Tensor for_reduction(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : flat(tensor);
}

// How a reduction is asked for.
struct Reduction {
  ReduceOp op;
  int divisor = 1;  // of what comes out: Gloo knows no average
  // A world of one knows every type, whatever its backend does: what is reduced is there already. Over
  // NCCL it goes the way of all others.
  bool is_done = false;
};
Reduction reduction_for(const char* name, const Membership& membership, const Tensor& tensor,
                        const ReduceOp& op) {
  if (op == ReduceOp::AVG && tensor.scalar_type() == torch::kBool) {
    refuse(name, "there is no average of bools; give a number type, or ask for MIN or MAX");
  }
  if (!is_gloo(membership, tensor)) return {op};
  Reduction asked{op, 1, membership.size() == 1 && op != ReduceOp::PREMUL_SUM};
  if (op == ReduceOp::AVG) asked = {ReduceOp::SUM, membership.size(), asked.is_done};
  return asked;
}

// The tensor itself, or a copy of a type that the backend can reduce.
Tensor to_reduce(const Membership& membership, const Tensor& tensor) {
  return is_gloo(membership, tensor) ? widened_for_gloo(tensor) : tensor;
}

// What was reduced, divided and put where it belongs.
void conclude(Tensor sent, int divisor, Tensor into) {
  if (divisor > 1) {
    Tensor parts = sent.is_complex() && !sent.is_sparse() ? torch::view_as_real(sent) : sent;
    if (parts.is_floating_point() || parts.is_complex()) {
      parts.div_(divisor);
    } else {
      parts.div_(divisor, "trunc");
    }
  }
  if (!sent.is_same(into)) into.copy_(sent);
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

}  // namespace

Work<> Group::broadcast_async(Tensor tensor, int src, Mode mode) {
  check_rank("broadcast", src);
  tensor = in_place("broadcast", tensor);
  if (tensor.numel() == 0) return Work<>(Operation());
  Tensors moved{as_bytes(tensor)};
  const c10d::BroadcastOptions options{.rootRank = src, .asyncOp = mode == Mode::kAsync};
  return Work<>(start({.name = "broadcast",
                       .root = src,
                       .mode = mode,
                       .results = {tensor},
                       .is_equal_everywhere = true},
                      {tensor}, [&] { return membership_->group->broadcast(moved, options); }));
}

Work<> Group::all_reduce_async(Tensor tensor, ReduceOp op, Mode mode) {
  const char* const name = "all_reduce";
  const bool is_sparse = tensor.defined() && tensor.layout() == torch::kSparse;
  const Tensor original = tensor;
  tensor = is_sparse ? tensor.detach() : in_place(name, tensor);
  const Reduction asked = reduction_for(name, *membership_, tensor, op);
  const Tensor lies = is_sparse ? tensor : for_reduction(tensor);
  const Tensor sent = is_sparse ? tensor : to_reduce(*membership_, lies);
  Tensors tensors{sent};
  const c10d::AllreduceOptions options{.reduceOp = asked.op, .asyncOp = mode == Mode::kAsync};
  std::function<void()> finish;
  if (!asked.is_done && (asked.divisor > 1 || is_sparse || !sent.is_same(lies))) {
    finish = [=, divisor = asked.divisor] {
      const torch::NoGradGuard no_grad;
      // A sparse tensor gets other values and other places for them: those of the one that was sent.
      conclude(sent, divisor, is_sparse ? original : lies);
    };
  }
  return Work<>(start(
      {.name = name, .op = op, .mode = mode, .results = {sent}, .is_equal_everywhere = !is_sparse},
      {tensor, sent},
      [&] { return asked.is_done ? WorkPtr() : membership_->group->allreduce(tensors, options); },
      std::move(finish)));
}

Work<> Group::reduce_async(Tensor tensor, int dst, ReduceOp op, Mode mode) {
  check_rank("reduce", dst);
  tensor = in_place("reduce", tensor);
  const Reduction asked = reduction_for("reduce", *membership_, tensor, op);
  const Tensor lies = for_reduction(tensor);
  const Tensor sent = to_reduce(*membership_, lies);
  Tensors tensors{sent};
  const c10d::ReduceOptions options{
      .reduceOp = asked.op, .rootRank = dst, .asyncOp = mode == Mode::kAsync};
  std::function<void()> finish;
  if (!asked.is_done && rank() == dst)
    finish = [=, by = asked.divisor] { conclude(sent, by, lies); };
  return Work<>(start(
      {.name = "reduce", .root = dst, .op = op, .mode = mode, .results = {sent}}, {tensor, sent},
      [&] { return asked.is_done ? WorkPtr() : membership_->group->reduce(tensors, options); },
      std::move(finish)));
}

Work<Tensors> Group::gather_async(const Tensor& tensor, int dst, Mode mode) {
  check_rank("gather", dst);
  const Tensor own = dense("gather", tensor);
  if (membership_->recovery && membership_->recovery->is_between_steps()) {
    // So that every rank can tell one that takes another's place what came to rank dst.
    Tensors all = all_gather(own);
    if (rank() != dst) all.clear();
    return {Operation(), std::move(all)};
  }
  Tensors result;
  std::vector<Tensors> outputs;
  if (rank() == dst) {
    outputs.emplace_back();
    for (int other = 0; other < size(); ++other) {
      result.push_back(torch::empty_like(own));
      outputs[0].push_back(as_bytes(result.back()));
    }
  }
  if (own.numel() == 0) return {Operation(), std::move(result)};
  Tensors inputs{as_bytes(own)};
  const c10d::GatherOptions options{.rootRank = dst, .asyncOp = mode == Mode::kAsync};
  Tensors kept{own};
  kept.insert(kept.end(), result.begin(), result.end());
  return {start({.name = "gather", .root = dst, .mode = mode, .results = result}, std::move(kept),
                [&] { return membership_->group->gather(outputs, inputs, options); }),
          std::move(result)};
}

Work<Tensors> Group::all_gather_async(const Tensor& tensor, Mode mode) {
  Tensor own = dense("all_gather", tensor);
  std::vector<std::int64_t> sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), size());
  Tensor all = torch::empty(sizes, own.options());
  Tensors result = all.unbind(0);
  if (own.numel() == 0) return {Operation(), std::move(result)};
  Tensor input = as_bytes(own);
  Tensor output = as_bytes(all);
  const c10d::AllgatherOptions options{.asyncOp = mode == Mode::kAsync};
  return {
      start({.name = "all_gather", .mode = mode, .results = {all}, .is_equal_everywhere = true},
            {own, all},
            [&] { return compat::all_gather_single(*membership_->group, output, input, options); }),
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

Work<> Group::scatter_async(Tensor into, const Tensors& parts, int src, Mode mode) {
  check_rank("scatter", src);
  into = in_place("scatter", into);
  if (!into.is_contiguous()) refuse("scatter", "the tensor to write must be contiguous");
  const bool is_root = rank() == src;
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
  const c10d::ScatterOptions options{.rootRank = src, .asyncOp = mode == Mode::kAsync};
  return Work<>(start({.name = "scatter", .root = src, .mode = mode, .results = {into}},
                      std::move(kept),
                      [&] { return membership_->group->scatter(outputs, inputs, options); }));
}

Work<Tensor> Group::reduce_scatter_async(const Tensor& tensor, ReduceOp op, Mode mode) {
  Tensor own = dense("reduce_scatter", tensor);
  if (own.dim() < 1 || own.size(0) % size() != 0) {
    refuse("reduce_scatter", "a tensor of sizes ", own.sizes(),
           " cannot be cut along its first dimension into ", size(), " equal parts");
  }
  Tensor result = torch::empty(with_rows(own, own.size(0) / size()), own.options());
  if (own.numel() == 0) return {Operation(), std::move(result)};
  const Reduction asked = reduction_for("reduce_scatter", *membership_, own, op);
  if (asked.is_done) result.copy_(own);
  const c10d::ReduceScatterOptions options{.reduceOp = asked.op, .asyncOp = mode == Mode::kAsync};
  Tensor input = to_reduce(*membership_, own.view(-1));
  const Tensor flat_result = result.view(-1);
  Tensor output = input.scalar_type() == own.scalar_type()
                      ? flat_result
                      : torch::empty(flat_result.sizes(), input.options());
  return {start(
              {.name = "reduce_scatter", .op = op, .mode = mode, .results = {output}},
              {own, result, input, output},
              [&] {
                return asked.is_done ? WorkPtr()
                                     : compat::reduce_scatter_single(*membership_->group, output,
                                                                     input, options);
              },
              [=] {
                if (!asked.is_done) conclude(output, asked.divisor, flat_result);
              }),
          result};
}

Work<Tensor> Group::all_to_all_async(const Tensor& tensor, std::vector<std::int64_t> sent,
                                     std::vector<std::int64_t> received, Mode mode) {
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
  const auto is_negative = [](std::int64_t count) { return count < 0; };
  if (sent.size() != ranks || received.size() != ranks ||
      std::any_of(sent.begin(), sent.end(), is_negative) ||
      std::any_of(received.begin(), received.end(), is_negative) ||
      c10::sum_integers(sent) != own.size(0)) {
    refuse(name, "the lengths must be ", size(), " of each kind, and those sent add up to ",
           own.size(0), ", the tensor's first dimension");
  }
  Tensor result = torch::empty(with_rows(own, c10::sum_integers(received)), own.options());
  const std::int64_t row_bytes =
      c10::multiply_integers(own.sizes().slice(1)) * static_cast<std::int64_t>(own.element_size());
  if (row_bytes == 0) return {Operation(), std::move(result)};
  Tensor input = as_bytes(own, {own.size(0), row_bytes});
  Tensor output = as_bytes(result, {result.size(0), row_bytes});
  const c10d::AllToAllOptions options{.asyncOp = mode == Mode::kAsync};
  return {start({.name = name, .mode = mode, .has_equal_rows = false, .results = {result}},
                {own, result},
                [&] {
                  return compat::all_to_all_single(*membership_->group, output, input, received,
                                                   sent, options);
                }),
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
  Tensor all = all_to_all_async(torch::cat(parts), sent, received, Mode::kBlocking).wait();
  return all.split_with_sizes(received);
}

Work<> Group::barrier_async(Mode mode) {
  // Past ProcessGroup's own, which keeps a tensor in a static variable: threads tear it.
  c10d::BarrierOptions options;
  options.asyncOp = mode == Mode::kAsync;
  if (device().is_cuda()) options.device_ids = {device().index()};
  return Work<>(start({.name = "barrier", .mode = mode, .is_equal_everywhere = true}, {},
                      [&] { return membership_->group->getDefaultBackend()->barrier(options); }));
}

}  // namespace ddprun
