#include "ddprun/comm_hooks.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "ddprun/error.h"

namespace ddprun {
namespace {

using torch::Tensor;

c10::intrusive_ptr<c10d::Work> sum_over_ranks(c10d::ProcessGroup& group, const Tensor& tensor) {
  std::vector<Tensor> tensors{tensor};
  return group.allreduce(tensors);
}

GradientFuture averaged(c10d::GradBucket& bucket, c10d::ProcessGroup& group) {
  Tensor& buffer = bucket.getBufferRef();
  buffer.div_(group.getSize());
  return sum_over_ranks(group, buffer)->getFuture();
}

CommHook compress_hook(torch::ScalarType type) {
  return [type](c10d::GradBucket& bucket, c10d::ProcessGroup& group) -> GradientFuture {
    const Tensor buffer = bucket.getBuffer();
    // Sparse ones are added up without arithmetic in half precision on the CPU.
    if (buffer.is_sparse() && type == torch::kHalf) return averaged(bucket, group);
    const Tensor small = buffer.to(type).div_(group.getSize());
    const auto sum = sum_over_ranks(group, small)->getFuture();
    return sum->then(
        [buffer, small](c10::ivalue::Future& done) {
          if (done.hasError()) std::rethrow_exception(done.exception_ptr());
          buffer.copy_(small);
          return c10::IValue(std::vector<Tensor>{buffer});
        },
        sum->elementType());
  };
}

// Gram-Schmidt for one or two columns, else QR, as Python does: QR is quicker for more.
void orthogonalize(Tensor& matrices, double epsilon) {
  const auto columns = matrices.size(2);
  const bool is_half =
      matrices.scalar_type() == torch::kHalf || matrices.scalar_type() == torch::kBFloat16;
  if (columns > 2 && !is_half) {
    Tensor upper = torch::empty({matrices.size(0), columns, columns}, matrices.options());
    at::linalg_qr_out(matrices, upper, matrices);
    return;
  }
  for (std::int64_t i = 0; i < columns; ++i) {
    Tensor column = matrices.narrow(2, i, 1);
    const Tensor length = at::linalg_vector_norm(column, 2, at::IntArrayRef{1}, /*keepdim=*/true);
    column.div_(epsilon == 0 ? length : length + epsilon);
    if (i + 1 == columns) continue;
    Tensor rest = matrices.narrow(2, i + 1, columns - i - 1);
    rest.sub_(torch::sum(column * rest, at::IntArrayRef{1}, /*keepdim=*/true) * column);
  }
}

// All of it is done by the thread that runs backward, and each sum awaited: Gloo tells collectives
// apart by the order in which they are begun, and that of callbacks differs between ranks as soon as
// there are two buckets.
class PowerSgd {
 public:
  explicit PowerSgd(const PowerSgdOptions& options)
      : options_(options), random_(options.random_seed) {}

  void average(c10d::GradBucket& bucket, c10d::ProcessGroup& group) {
    Tensor buffer = bucket.getBuffer();
    if (step_ < options_.start_power_sgd_iter || !shows_all_of(bucket, buffer)) {
      buffer.div_(group.getSize());
      sum_over_ranks(group, buffer)->wait();
    } else {
      compress(bucket, buffer, group);
    }
    if (bucket.isLast()) ++step_;
  }

 private:
  struct Memory {
    std::int64_t length = 0;  // of the bucket
    Tensor error, ps, qs;
  };
  // Matrices of equal shape that are multiplied at once, and views of their narrow ones.
  struct Batch {
    std::vector<Tensor> originals;
    Tensor matrices, p, q;
  };

  // Not of sparse gradients, nor of complex ones, whose buffer is of their parts.
  static bool shows_all_of(c10d::GradBucket& bucket, const Tensor& buffer) {
    if (buffer.is_sparse()) return false;
    std::int64_t shown = 0;
    for (const Tensor& gradient : bucket.getGradients()) shown += gradient.numel();
    return shown == buffer.numel();
  }

  std::int64_t rank_for(const Tensor& matrix) const {
    return std::min({matrix.size(0), matrix.size(1), options_.matrix_approximation_rank});
  }

  bool is_worth_it(const Tensor& matrix) const {
    const auto sent = (matrix.size(0) + matrix.size(1)) * rank_for(matrix);
    return static_cast<double>(sent) * options_.min_compression_rate <
           static_cast<double>(matrix.numel());
  }

  // In the order in which shapes first appear: it decides where a matrix lies in what is summed.
  std::vector<Batch> batches_of(const std::vector<Tensor>& matrices) const {
    std::vector<std::vector<Tensor>> by_shape;
    for (const Tensor& matrix : matrices) {
      auto same = std::find_if(by_shape.begin(), by_shape.end(), [&](const auto& group) {
        return group.front().sizes() == matrix.sizes();
      });
      if (same == by_shape.end()) same = by_shape.insert(by_shape.end(), std::vector<Tensor>{});
      same->push_back(matrix);
    }
    std::vector<Batch> batches;
    for (const auto& group : by_shape) {
      if (options_.batch_tensors_with_same_shape && group.size() > 1) {
        batches.push_back({group, torch::stack(group), {}, {}});
        continue;
      }
      for (const Tensor& matrix : group) batches.push_back({{}, matrix.unsqueeze(0), {}, {}});
    }
    return batches;
  }

  void allocate(Memory& memory, const std::vector<Tensor>& matrices,
                const torch::TensorOptions& options) const {
    std::int64_t ps = 0;
    std::int64_t qs = 0;
    for (const Tensor& matrix : matrices) {
      ps += matrix.size(0) * rank_for(matrix);
      qs += matrix.size(1) * rank_for(matrix);
    }
    memory.ps = torch::empty({ps}, options);
    memory.qs = torch::empty({qs}, options);
  }

  void place(std::vector<Batch>& batches, const Memory& memory) const {
    std::int64_t p_at = 0;
    std::int64_t q_at = 0;
    for (Batch& batch : batches) {
      const auto count = batch.matrices.size(0);
      const auto rank = rank_for(batch.matrices[0]);
      const auto view = [&](const Tensor& from, std::int64_t& at, std::int64_t rows) {
        const Tensor flat = from.narrow(0, at, count * rows * rank);
        at += count * rows * rank;
        return flat.view({count, rows, rank});
      };
      batch.p = view(memory.ps, p_at, batch.matrices.size(1));
      batch.q = view(memory.qs, q_at, batch.matrices.size(2));
    }
  }

  // The same on all ranks, another at each step: what a projection misses is then never the same.
  // Python's: numpy's RandomState(seed).randint(10**9), which is this.
  std::uint64_t next_seed() {
    constexpr std::uint32_t kMask = (1U << 30) - 1;
    std::uint32_t value = 0;
    do {
      value = static_cast<std::uint32_t>(random_()) & kMask;
    } while (value >= 1'000'000'000);
    return value;
  }

  void randomize(std::vector<Batch>& batches) {
    auto generator = at::detail::createCPUGenerator(next_seed());
    for (Batch& batch : batches) {
      batch.q.copy_(torch::randn(batch.q.sizes(), generator,
                                 torch::TensorOptions().dtype(batch.q.scalar_type())));
    }
  }

  void compress(c10d::GradBucket& bucket, Tensor& buffer, c10d::ProcessGroup& group) {
    Memory& memory = memories_[bucket.getIndex()];
    if (memory.length != buffer.numel()) memory = {buffer.numel(), {}, {}, {}};  // other buckets
    Tensor with_error;
    if (options_.use_error_feedback) {
      if (memory.error.defined()) buffer.add_(memory.error);
      with_error = buffer.clone();
    }

    std::vector<Tensor> matrices, others, flat_others{torch::empty({0}, buffer.options())};
    for (const Tensor& gradient : bucket.getGradients()) {
      if (gradient.dim() > 0 && gradient.numel() > 0) {
        const Tensor matrix = gradient.view({gradient.size(0), -1});
        if (is_worth_it(matrix)) {
          matrices.push_back(matrix);
          continue;
        }
      }
      others.push_back(gradient);
      flat_others.push_back(gradient.reshape({-1}));
    }
    Tensor plain = torch::cat(flat_others);

    const bool must_randomize = !options_.warm_start || !memory.ps.defined();
    if (must_randomize) allocate(memory, matrices, buffer.options());
    auto batches = batches_of(matrices);
    place(batches, memory);
    if (must_randomize) randomize(batches);
    for (Batch& batch : batches) orthogonalize(batch.q, options_.orthogonalization_epsilon);

    const auto plain_sum = sum_over_ranks(group, plain);  // while the products are made
    for (Batch& batch : batches) torch::bmm_out(batch.p, batch.matrices, batch.q);
    plain_sum->wait();
    sum_over_ranks(group, memory.ps)->wait();
    plain.div_(group.getSize());
    std::int64_t at = 0;
    for (const Tensor& gradient : others) {
      gradient.copy_(plain.narrow(0, at, gradient.numel()).view_as(gradient));
      at += gradient.numel();
    }
    for (Batch& batch : batches) {
      orthogonalize(batch.p, options_.orthogonalization_epsilon);
      torch::bmm_out(batch.q, batch.matrices.transpose(1, 2), batch.p);
    }
    sum_over_ranks(group, memory.qs)->wait();
    memory.qs.div_(group.getSize());
    for (Batch& batch : batches) {
      torch::bmm_out(batch.matrices, batch.p, batch.q.transpose(1, 2));
      for (std::size_t i = 0; i < batch.originals.size(); ++i) {
        batch.originals[i].copy_(batch.matrices[static_cast<std::int64_t>(i)]);
      }
    }
    if (options_.use_error_feedback) memory.error = with_error - buffer;
  }

  PowerSgdOptions options_;
  std::mt19937 random_;
  std::map<std::size_t, Memory> memories_;  // by bucket
  std::int64_t step_ = 0;
};

}  // namespace

CommHook allreduce_hook() { return averaged; }

CommHook fp16_compress_hook() { return compress_hook(torch::kHalf); }

CommHook bf16_compress_hook() { return compress_hook(torch::kBFloat16); }

CommHook power_sgd_hook(const PowerSgdOptions& options) {
  if (options.matrix_approximation_rank < 1)
    throw UsageError("PowerSGD needs a matrix_approximation_rank of at least 1");
  if ((options.use_error_feedback || options.warm_start) && options.start_power_sgd_iter < 2) {
    throw UsageError(
        "PowerSGD with error feedback or warm start begins with step 2 at the earliest (buckets "
        "change their shape after the first step): set start_power_sgd_iter to 2 or more");
  }
  return [state = std::make_shared<PowerSgd>(options)](c10d::GradBucket& bucket,
                                                       c10d::ProcessGroup& group) {
    state->average(bucket, group);
    const Tensor& buffer = bucket.getBuffer();
    std::vector<c10::Device> devices;
    if (!buffer.device().is_cpu()) devices.push_back(buffer.device());
    auto done = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), devices);
    done->markCompleted(c10::IValue(std::vector<Tensor>{buffer}));
    return done;
  };
}

}  // namespace ddprun
