// Fashion-MNIST for the examples: the IDX files of Debian's dataset-fashion-mnist, gzipped or not, as tensors.
// Throws ddprun::UsageError, which names the file.
#pragma once

#include <libdeflate.h>
#include <torch/data/example.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "ddprun/error.h"

enum class Split { kTrain, kTest };

inline torch::Tensor as_tensor(const std::vector<std::size_t>& indices) {
  return torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()), torch::kInt64);
}

struct FashionMnist {
  torch::Tensor images;  // [n, 1, 28, 28] uint8
  torch::Tensor labels;  // [n] int64

  std::int64_t size() const { return labels.size(0); }
  FashionMnist first(std::int64_t count) const {
    count = std::min(count, size());
    return {images.narrow(0, 0, count), labels.narrow(0, 0, count)};
  }
  FashionMnist to(torch::Device device) const { return {images.to(device), labels.to(device)}; }

  // Normalised as torchvision's ToTensor and Normalize do it, float32.
  torch::Tensor pixels(const torch::Tensor& indices) const {
    return images.index_select(0, indices).to(torch::kFloat32).div_(255).sub_(0.286).div_(0.353);
  }
  torch::Tensor targets(const torch::Tensor& indices) const {
    return labels.index_select(0, indices);
  }
  // For a DataLoader.
  torch::data::Example<> get_batch(const std::vector<std::size_t>& indices) const {
    const torch::Tensor chosen = as_tensor(indices);
    return {pixels(chosen), targets(chosen)};
  }
};

// The bytes behind the header of an IDX file, which says that it has `shape`.
inline torch::Tensor read_idx(const std::string& folder, const std::string& name,
                              std::vector<std::int64_t> shape) {
  std::string path = folder + "/" + name;
  std::ifstream file(path, std::ios::binary);
  if (!file) file.open(path += ".gz", std::ios::binary);
  if (!file) {
    throw ddprun::UsageError("there is neither " + name + ".gz nor " + name + " in " + folder +
                             "; install Debian's dataset-fashion-mnist, or name the folder that "
                             "has the four IDX files");
  }
  std::string header{0, 0, 8, static_cast<char>(shape.size())};
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    for (int shift = 24; shift >= 0; shift -= 8) header += static_cast<char>(size >> shift);
    count *= size;
  }
  // Every process of a job reads it at each start: straight into the tensor's memory, without another copy.
  const auto wanted = static_cast<std::int64_t>(header.size()) + count;
  torch::Tensor whole = torch::empty(wanted, torch::kUInt8);
  char* const bytes = reinterpret_cast<char*>(whole.data_ptr<std::uint8_t>());
  std::error_code error;
  const auto file_size = static_cast<std::int64_t>(std::filesystem::file_size(path, error));
  if (error) throw ddprun::UsageError(path + " cannot be read: " + error.message());
  if (path.ends_with(".gz")) {
    const auto packed = std::make_unique_for_overwrite<char[]>(static_cast<std::size_t>(file_size));
    file.read(packed.get(), file_size);
    const std::unique_ptr<libdeflate_decompressor, decltype(&libdeflate_free_decompressor)> engine(
        libdeflate_alloc_decompressor(), &libdeflate_free_decompressor);
    if (!file || libdeflate_gzip_decompress(
                     engine.get(), packed.get(), static_cast<std::size_t>(file_size), bytes,
                     static_cast<std::size_t>(wanted), nullptr) != LIBDEFLATE_SUCCESS) {
      throw ddprun::UsageError(path + " is cut off or damaged, or not Fashion-MNIST's");
    }
  } else if (file_size != wanted || !file.read(bytes, wanted)) {
    throw ddprun::UsageError(path + " is cut off, or not Fashion-MNIST's");
  }
  if (!std::string_view(bytes, header.size()).starts_with(header)) {
    throw ddprun::UsageError(path + " is not Fashion-MNIST's");
  }
  return whole.narrow(0, static_cast<std::int64_t>(header.size()), count).view(shape);
}

inline FashionMnist read_fashion_mnist(const std::string& folder, Split split) {
  const std::string prefix = split == Split::kTrain ? "train" : "t10k";
  const std::int64_t count = split == Split::kTrain ? 60'000 : 10'000;
  return {read_idx(folder, prefix + "-images-idx3-ubyte", {count, 28, 28}).unsqueeze(1),
          read_idx(folder, prefix + "-labels-idx1-ubyte", {count}).to(torch::kInt64)};
}

// Images [n, 784], normalised floats; labels [n], int64.
inline std::pair<torch::Tensor, torch::Tensor> fashion_mnist(const std::string& folder,
                                                             Split split) {
  const FashionMnist all = read_fashion_mnist(folder, split);
  return {all.pixels(torch::arange(all.size())).flatten(1), all.labels};
}
