#include "ddprun/datasets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddprun/error.h"
#include "ddprun/loader.h"
#include "tests/unit/worker_lib/temp_folder.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Datasets, TensorsGiveTheirRows) {
  const TensorDataset dataset(torch::arange(6).view({3, 2}), torch::arange(3));
  const auto batch = dataset.get_batch({2, 0, 2});
  EXPECT_TRUE(torch::equal(batch.data, torch::tensor({{4, 5}, {0, 1}, {4, 5}})));
  EXPECT_TRUE(torch::equal(batch.target, torch::tensor({2, 0, 2})));
  EXPECT_FALSE(TensorDataset(torch::arange(3)).get_batch({0}).target.defined());
  EXPECT_THROW(TensorDataset(torch::arange(3), torch::arange(4)), UsageError);
  EXPECT_THROW(TensorDataset(torch::tensor(1)), UsageError);
}

TEST(Datasets, ImagesAreScaledAndNormalisedPerChannel) {
  const LabelledImages images{.channels = 3,
                              .height = 1,
                              .width = 2,
                              .pixels = {0, 255, 51, 51, 102, 0, 1, 2, 3, 4, 5, 6},
                              .labels = {7, 8}};
  const ImageDataset dataset(images, {0.0, 0.2, 0.5}, {1.0, 2.0, 0.5});
  const auto batch = dataset.get_batch({0});
  EXPECT_TRUE(torch::allclose(batch.data,
                              torch::tensor({0.f, 1.f, 0.f, 0.f, -0.2f, -1.f}).view({1, 3, 1, 2})));
  EXPECT_EQ(batch.target.item<std::int64_t>(), 7);
  EXPECT_EQ(dataset.first(1).size(), 1);
  EXPECT_EQ(dataset.first(9).size(), 2);
  EXPECT_THROW(ImageDataset(images, {0.5}), UsageError);
}

TEST(Datasets, ALoadersThreadsShareThem) {
  static_assert(detail::is_const_to_get<TensorDataset>());
  static_assert(detail::is_const_to_get<ImageDataset>());
  Loader loader(TensorDataset(torch::arange(10)), DistributedSampler(10, 1, 0, {.shuffle = false}),
                {.batch_size = 10});
  for (auto& batch : loader) EXPECT_TRUE(torch::equal(batch.data, torch::arange(10)));
}

TEST(Datasets, CsvLabelsBecomeTargets) {
  const test::TempFolder folder;
  const std::string path = folder.file("t.csv");
  test::write(path, "x,y,label\n1,2,dog\n3,4,cat\n5,6,dog\n");
  const CsvDataset named = csv_dataset(path, {.label = "label"});
  EXPECT_TRUE(torch::equal(named.data(), torch::tensor({{1.f, 2.f}, {3.f, 4.f}, {5.f, 6.f}})));
  EXPECT_TRUE(torch::equal(named.target(), torch::tensor({1, 0, 1})));
  EXPECT_THAT(named.classes, ElementsAre("cat", "dog"));
  EXPECT_THAT(named.columns, ElementsAre("x", "y"));
  test::write(path, "x,y\n1,2\n3,-4\n");
  EXPECT_TRUE(torch::equal(csv_dataset(path, {.label = "y"}).target(), torch::tensor({2, -4})));
  EXPECT_FALSE(csv_dataset(path).target().defined());
  test::write(path, "x,y\n1,2\n3,0.5\n");
  EXPECT_TRUE(torch::equal(csv_dataset(path, {.label = "y"}).target(), torch::tensor({2.f, 0.5f})));
  EXPECT_THROW(csv_dataset(folder.file("absent.csv")), UsageError);

  // One label that is not like the others changes none of them in silence.
  const auto refusal = [&](const CsvOptions& options) -> std::string {
    try {
      csv_dataset(path, options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  };
  test::write(path, "x,y\n1,0\n2,\n3,1\n");
  EXPECT_THAT(refusal({.label = "y"}), HasSubstr("the label of row 2 is empty"));
  EXPECT_TRUE(torch::equal(csv_dataset(path, {.label = "y", .missing = -1}).target(),
                           torch::tensor({0, -1, 1})));
  test::write(path, "x,y\n1,7\n2,unknown\n3,11\n");
  EXPECT_THAT(refusal({.label = "y"}),
              HasSubstr("the label of row 2 is 'unknown', and others are"));
  EXPECT_THAT(csv_dataset(path, {.label = "y", .labels_are_names = true}).classes,
              ElementsAre("11", "7", "unknown"));
}

torch::Tensor doubles_of(const torch::Tensor& tensor) {
  return (tensor.is_complex() ? torch::view_as_real(tensor) : tensor).to(torch::kFloat64);
}

TEST(Datasets, NpyKeepsTypeShapeAndValues) {
  const test::TempFolder folder;
  const std::string path = folder.file("x.npy");
  for (const auto type :
       {torch::kBool, torch::kInt8, torch::kUInt8, torch::kInt16, torch::kUInt16, torch::kInt32,
        torch::kUInt32, torch::kInt64, torch::kUInt64, torch::kFloat16, torch::kFloat32,
        torch::kFloat64, torch::kComplexFloat, torch::kComplexDouble}) {
    const torch::Tensor tensor = torch::arange(6).view({3, 2}).t().to(type);  // not contiguous
    save_npy(path, tensor);
    const torch::Tensor loaded = load_npy(path);
    EXPECT_EQ(loaded.scalar_type(), type);
    EXPECT_TRUE(torch::equal(doubles_of(loaded), doubles_of(tensor))) << type;
  }
  save_npy(path, torch::tensor(5));
  EXPECT_EQ(load_npy(path).dim(), 0);
  save_npy(path, torch::empty({2, 0}));
  EXPECT_THAT(load_npy(path).sizes().vec(), ElementsAre(2, 0));
  try {
    save_npy(path, torch::ones(2, torch::kBFloat16));
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("convert it"));
  }
}

TEST(Datasets, FortranOrderIsTurned) {
  const test::TempFolder folder;
  const std::string path = folder.file("x.npy");
  std::string header = "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }";
  test::write(path, std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size()) +
                        std::string(1, '\0') + header + std::string("\0\3\1\4\2\5", 6));
  EXPECT_TRUE(torch::equal(load_npy(path).to(torch::kInt64), torch::arange(6).view({2, 3})));
  EXPECT_TRUE(load_npy(path).is_contiguous());
}

}  // namespace
}  // namespace ddprun
