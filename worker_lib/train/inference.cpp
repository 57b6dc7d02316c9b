#include "ddprun/inference.h"

#include <string>

namespace ddprun::detail {
namespace {

// What a rank without a sample does not know about the outputs. Rank 0 has one always.
struct RowKind {
  torch::ScalarType type = torch::kFloat32;
  std::vector<std::int64_t> sizes;  // of a row

  template <typename Fields>
  void fields(Fields& field) {
    field(type, sizes);
  }
  bool operator==(const RowKind&) const = default;
  static RowKind of(const torch::Tensor& rows) {
    return {rows.scalar_type(), rows.sizes().slice(1).vec()};
  }
  std::vector<std::int64_t> shape_of(std::int64_t rows) const {
    std::vector<std::int64_t> shape{rows};
    shape.insert(shape.end(), sizes.begin(), sizes.end());
    return shape;
  }
};

}  // namespace

void check_rows(const torch::Tensor& output, std::size_t samples) {
  if (output.dim() > 0 && output.size(0) == static_cast<std::int64_t>(samples)) return;
  throw UsageError("the model gave an output of shape " + c10::str(output.sizes()) +
                   " for a batch of " + std::to_string(samples) +
                   " samples: its first dimension must be the samples");
}

torch::Tensor gather_rows(Context& context, const torch::Tensor& mine, std::int64_t total,
                          bool is_for_all) {
  if (!context.is_distributed()) return mine;
  const RowKind kind =
      context.broadcast_object(context.is_main_process() ? RowKind::of(mine) : RowKind());
  if (mine.defined() && RowKind::of(mine) != kind) {
    throw UsageError("the model's outputs differ between ranks: rows of shape " +
                     c10::str(RowKind::of(mine).sizes) + " on rank " +
                     std::to_string(context.rank()) + ", of " + c10::str(kind.sizes) +
                     " on rank 0 (or of another type)");
  }
  // From CPU to CPU: all outputs together may be more than a GPU has memory for. The ranks behind
  // those of the last, incomplete row send one row more that nobody reads.
  const std::int64_t world = context.world_size();
  const torch::Tensor padded = torch::zeros(kind.shape_of((total + world - 1) / world), kind.type);
  if (mine.defined()) padded.narrow(0, 0, mine.size(0)).copy_(mine);
  const auto gathered = is_for_all ? context.all_gather(padded) : context.gather(padded);
  if (gathered.empty()) return {};
  // [rows, ranks, ...]: row by row, rank by rank is the dataset's order.
  return torch::stack(gathered, 1).flatten(0, 1).narrow(0, 0, total);
}

}  // namespace ddprun::detail
