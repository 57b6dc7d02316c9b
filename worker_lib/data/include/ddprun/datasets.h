// Datasets for Loader (loader.h) that lie in memory, and tensors from files. Their get_batch is
// const: a loader's threads share them. Made by one thread; what cannot be read is thrown as a
// UsageError that names the file and the place in it.
//
//   auto train = ddprun::ImageDataset(ddprun::read_mnist(folder, ddprun::Part::kTrain));
//   auto table = ddprun::csv_dataset("iris.csv", {.label = "species"});
//   auto x = ddprun::load_npy("x.npy");
#pragma once

#include <torch/data/example.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ddprun/csv.h"
#include "ddprun/images.h"

namespace ddprun {

// Rows of tensors: sample i is data[i] and target[i].
class TensorDataset {
 public:
  // Equal first dimensions; the target may be left out, and is undefined in the batches then.
  explicit TensorDataset(torch::Tensor data, torch::Tensor target = {});

  std::int64_t size() const { return data_.size(0); }
  torch::data::Example<> get_batch(const std::vector<std::size_t>& indices) const;
  const torch::Tensor& data() const { return data_; }
  const torch::Tensor& target() const { return target_; }

 private:
  torch::Tensor data_;
  torch::Tensor target_;
};

// Bytes in memory, floats in the batches: (pixel / 255 - mean) / std for each channel, as
// torchvision's ToTensor and Normalize make them. Data [n, channels, height, width] float32, target
// [n] int64.
class ImageDataset {
 public:
  explicit ImageDataset(LabelledImages images, std::vector<double> mean = {},
                        std::vector<double> std = {});
  explicit ImageDataset(Result<LabelledImages> images, std::vector<double> mean = {},
                        std::vector<double> std = {});

  std::int64_t size() const { return bytes_.size(); }
  torch::data::Example<> get_batch(const std::vector<std::size_t>& indices) const;
  const torch::Tensor& pixels() const { return bytes_.data(); }    // [n, c, h, w] uint8
  const torch::Tensor& labels() const { return bytes_.target(); }  // [n] int64

  // Only the first `count` samples, or all when there are fewer.
  ImageDataset first(std::int64_t count) const;

 private:
  ImageDataset(TensorDataset bytes, torch::Tensor mean, torch::Tensor std);

  TensorDataset bytes_;
  torch::Tensor mean_;  // [c, 1, 1]; undefined: nothing to subtract
  torch::Tensor std_;
};

struct CsvDataset : TensorDataset {
  using TensorDataset::TensorDataset;
  std::vector<std::string> columns;  // names of the data's columns
  // Of labels that are no numbers: the target is the place in here, sorted by name, so that files
  // with the same labels give the same numbers.
  std::vector<std::string> classes;
};

// Data [rows, columns] float32. The target is int64 when all labels are integers or none is a
// number, else float32; undefined without a label column. Some numbers among names are refused, and
// names among numbers (an "NA" would make classes of all): see CsvOptions::labels_are_names.
CsvDataset csv_dataset(const std::string& path, const CsvOptions& options = {});

// A contiguous tensor on the CPU with NumPy's shape and type, whatever the file's order.
torch::Tensor load_npy(const std::string& path);
// numpy.load() opens it. Of any type that .npy has: not bfloat16 and quantised ones.
void save_npy(const std::string& path, const torch::Tensor& tensor);

}  // namespace ddprun
