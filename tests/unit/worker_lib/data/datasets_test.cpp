#include "ddprun/datasets.h"

#include <gtest/gtest.h>

#include "ddprun/data_loader.h"
#include "ddprun/error.h"

namespace ddprun {
namespace {

TEST(Datasets, TensorsGiveTheirRows) {
  const TensorDataset dataset(torch::arange(6).view({3, 2}), torch::arange(3));
  const auto batch = dataset.get_batch({2, 0, 2});
  EXPECT_TRUE(torch::equal(batch.data, torch::tensor({{4, 5}, {0, 1}, {4, 5}})));
  EXPECT_TRUE(torch::equal(batch.target, torch::tensor({2, 0, 2})));
  EXPECT_FALSE(TensorDataset(torch::arange(3)).get_batch({0}).target.defined());
  EXPECT_THROW(TensorDataset(torch::arange(3), torch::arange(4)), UsageError);
  EXPECT_THROW(TensorDataset(torch::tensor(1)), UsageError);
}

TEST(Datasets, ALoadersThreadsShareThem) {
  static_assert(detail::is_const_to_get<TensorDataset>());
  DataLoader loader(TensorDataset(torch::arange(10)),
                    DistributedSampler(10, 1, 0, {.shuffle = false}), {.batch_size = 10});
  for (auto& batch : loader) EXPECT_TRUE(torch::equal(batch.data, torch::arange(10)));
}

}  // namespace
}  // namespace ddprun
