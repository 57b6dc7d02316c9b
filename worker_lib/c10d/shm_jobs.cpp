#include "worker_lib/c10d/shm_jobs.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "worker_lib/c10d/error_text.h"
#include "worker_lib/c10d/recorded_call.h"

namespace ddprun {

const at::Tensor& only(const char* name, const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "shm: ", name, " takes one tensor, not ", tensors.size());
  TORCH_CHECK_VALUE(tensors[0].is_cpu(), "shm: ", name, " takes tensors on the CPU, not on ",
                    tensors[0].device());
  return tensors[0];
}

void scale(at::Tensor tensor, const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return;
  const auto& factor = *static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (factor.tensor_factor.defined()) {
    tensor.mul_(factor.tensor_factor);
  } else {
    tensor.mul_(factor.double_factor);
  }
}

const at::Tensor& TensorJob::reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, int root) {
  scale(tensor, op);
  const at::Tensor& data = write(tensor);
  const shm::Type type = shm_type_of(data);
  set<shm::Reduction>(type, data.data_ptr(), static_cast<std::size_t>(data.numel()), type,
                      shm_op_of(op), root);
  return data;
}

void TensorJob::finish(std::chrono::nanoseconds spin) {
  if (first_) first_->finish(spin);
  try {
    if (step_) step_();
  } catch (const std::exception& error) {
    node_.exchange().give_up(Failure(code_of(error), error_line(error)));
  }
  if (second_) {
    second_->begin();
    second_->finish(spin);
  }
  for (auto& [original, copy] : copied_) original.copy_(copy);
}

// One place for each rank's tensor, all like this rank's.
std::vector<void*> TensorJob::places_for(const at::Tensor& own, Tensors& all) {
  std::vector<void*> places(static_cast<std::size_t>(node_.exchange().size()));
  for (void*& place : places) place = all.emplace_back(at::empty_like(own)).data_ptr();
  return places;
}

ShmJob::Tensors TensorJob::gather_padded(const at::Tensor& own, std::int64_t rows) {
  std::vector<std::int64_t> sizes = own.sizes().vec();
  sizes[0] = rows;
  const at::Tensor padded = at::zeros(sizes, own.options());
  padded.narrow(0, 0, own.size(0)).copy_(own);
  Tensors all;
  shm::Run run(node_.exchange(),
               std::make_unique<shm::Gather>(node_.exchange(), padded.data_ptr(), padded.nbytes(),
                                             places_for(padded, all)),
               until_);
  run.begin();
  run.finish(std::chrono::nanoseconds::zero());
  return all;
}

void TensorJob::sum_sparse(const at::Tensor& tensor) {
  constexpr std::int64_t kNumbers = 32;  // that describe it; the first differs between ranks
  const at::Tensor own = tensor.coalesce();
  TORCH_CHECK_VALUE(own.dim() <= kNumbers - 4, "shm: a sparse tensor of ", own.dim(),
                    " dimensions");
  const at::Tensor numbers = write(at::zeros({kNumbers}, at::kLong));
  auto* const first = numbers.mutable_data_ptr<std::int64_t>();
  first[0] = own._nnz();
  first[1] = own.sparse_dim();
  first[2] = own.dense_dim();
  first[3] = static_cast<std::int64_t>(own.scalar_type());
  std::copy(own.sizes().begin(), own.sizes().end(), first + 4);
  const auto all_numbers = std::make_shared<Tensors>();
  set<shm::Gather>(shm::Type::kInt64, numbers.data_ptr(), numbers.nbytes(),
                   places_for(numbers, *all_numbers));
  then([this, tensor, own, numbers, all_numbers] {
    std::int64_t most = 0;
    for (const at::Tensor& theirs : *all_numbers) {
      if (!at::equal(theirs.slice(0, 1), numbers.slice(0, 1))) {
        throw Failure(ErrorCode::kInvalidArgument,
                      "the ranks give all_reduce sparse tensors of different shapes or types");
      }
      most = std::max(most, theirs[0].item<std::int64_t>());
    }
    const Tensors indices = gather_padded(own.indices().t().contiguous(), most);
    const Tensors values = gather_padded(own.values().contiguous(), most);
    at::Tensor sum;
    for (std::size_t rank = 0; rank < indices.size(); ++rank) {
      const std::int64_t count = (*all_numbers)[rank][0].item<std::int64_t>();
      const at::Tensor part = at::sparse_coo_tensor(indices[rank].narrow(0, 0, count).t(),
                                                    values[rank].narrow(0, 0, count), own.sizes());
      sum = rank == 0 ? part : sum.add_(part);
    }
    tensor.copy_(sum.coalesce());
  });
}

shm::Messages::Message MessageWork::message(int peer, int tag, shm::Clock::time_point until) {
  // Kept until the end, whoever forgets it.
  auto self = c10::intrusive_ptr<MessageWork>::unsafe_reclaim_from_nonowning(this);
  return {.peer = peer,
          .tag = tag,
          .type = shm_type_of(moved_),
          .data = moved_.data_ptr(),
          .bytes = moved_.nbytes(),
          .until = until,
          .ended = [self = std::move(self)](std::exception_ptr error, int source) {
            self->end(error ? torch_error(error) : nullptr, source);
          }};
}

void MessageWork::enter(const std::shared_ptr<GroupRecord>& record, int peer, int tag) {
  if (!record) return;
  const auto end = retrieveOpType() == c10d::OpType::SEND ? GroupRecord::End::kSender
                                                          : GroupRecord::End::kReceiver;
  record_ = record;
  ticket_ = record->enter_message(end, peer, tag, equal_call(retrieveOpType(), tensor_));
}

void MessageWork::end(std::exception_ptr error, int source) {
  if (ticket_ != 0) record_->leave(ticket_);
  source_ = source;
  if (!error && retrieveOpType() != c10d::OpType::SEND && !moved_.is_same(tensor_)) {
    tensor_.copy_(moved_);
  }
  finish(std::move(error));
}

}  // namespace ddprun
