#include "ddprun/tensor_marks.h"

#include <gtest/gtest.h>
#include <torch/data/example.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace ddprun::test {
namespace {

using detail::marks_of;
using torch::Tensor;

// Whether a write into `tensor`, which `value` holds, is found.
template <typename Value>
bool finds_write(const Value& value, const Tensor& tensor) {
  const torch::NoGradGuard no_grad;
  const auto before = marks_of(value);
  EXPECT_EQ(marks_of(value), before);
  tensor.add_(1);
  return marks_of(value) != before;
}

struct Batch {
  Tensor inputs;
  Tensor targets;
};
struct Named {
  std::int64_t step = 0;
  std::vector<Batch> batches;
  std::string name;
};
struct WithFields {
  std::map<std::string, Tensor> tensors;
  int number = 0;
  template <typename Fields>
  void fields(Fields& field) {
    field(tensors, number);
  }
};

TEST(TensorMarksTest, FindWritesIntoWhateverHoldsTheTensor) {
  const Tensor tensor = torch::zeros({4});
  const Tensor other = torch::zeros({4});
  EXPECT_TRUE(finds_write(tensor, tensor));
  EXPECT_TRUE(finds_write(tensor, tensor.narrow(0, 1, 2)));
  EXPECT_FALSE(finds_write(tensor, other));
  EXPECT_TRUE(finds_write(std::vector<Tensor>{other, tensor}, tensor));
  EXPECT_TRUE(finds_write(std::pair(1, tensor), tensor));
  EXPECT_TRUE(finds_write(std::tuple(std::optional<Tensor>(), tensor), tensor));
  EXPECT_TRUE(finds_write(std::map<int, Tensor>{{1, tensor}}, tensor));
  EXPECT_TRUE(finds_write(torch::data::Example<>(other, tensor), tensor));
  EXPECT_TRUE(finds_write(torch::data::TensorExample(tensor), tensor));
  EXPECT_TRUE(finds_write(Batch{other, tensor}, tensor));
  EXPECT_TRUE(finds_write(Named{1, {{other, other}, {tensor, other}}, "a"}, tensor));
  EXPECT_TRUE(finds_write(WithFields{{{"a", tensor}}, 1}, tensor));
}

TEST(TensorMarksTest, FindWritesIntoParametersAndBuffersOfModules) {
  torch::nn::Linear linear(2, 2);
  EXPECT_TRUE(finds_write(linear, linear->bias));
  torch::nn::BatchNorm1d norm(2);
  EXPECT_TRUE(finds_write(norm.ptr(), norm->running_mean));
  EXPECT_EQ(marks_of(torch::nn::Linear(nullptr)).size(), 0U);
}

TEST(TensorMarksTest, FindAnotherMemoryOrAnotherTensor) {
  const Tensor tensor = torch::zeros({4});
  auto before = marks_of(tensor);
  tensor.set_data(torch::zeros({4}));
  EXPECT_NE(marks_of(tensor), before);
  std::vector<Tensor> tensors{tensor};
  before = marks_of(tensors);
  tensors.front() = torch::zeros({4});
  EXPECT_NE(marks_of(tensors), before);
}

TEST(TensorMarksTest, TakeTensorsWithoutAVersionAndValuesWithoutTensors) {
  EXPECT_EQ(marks_of(Tensor()), marks_of(Tensor()));
  EXPECT_EQ(marks_of(torch::zeros({2}).to_sparse()).size(), 1U);
  Tensor inference;
  {
    const torch::InferenceMode mode;
    inference = torch::zeros({2});
  }
  EXPECT_EQ(marks_of(inference).size(), 1U);
  EXPECT_EQ(marks_of(std::tuple(1, std::string("a"), std::filesystem::path("a/b"),
                                std::vector<double>(3)))
                .size(),
            0U);
}

}  // namespace
}  // namespace ddprun::test
