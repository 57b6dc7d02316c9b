#include "ddprun/images.h"

#include <algorithm>
#include <filesystem>

#include "ddprun/idx.h"
#include "worker_lib/process/files.h"

namespace ddprun {
namespace {
namespace fs = std::filesystem;

constexpr int kClasses = 10;
constexpr std::size_t kCifarSide = 32;
constexpr std::size_t kCifarRecord = 1 + 3 * kCifarSide * kCifarSide;

Result<void> add_cifar_file(const std::string& path, LabelledImages& images) {
  const auto bytes = read_file(path);
  if (!bytes) return fail(bytes.error());
  const auto damaged = [&path](std::size_t at, const std::string& what) {
    return fail(ErrorCode::kDataLoss,
                path + " cannot be used: at byte " + std::to_string(at) + " " + what);
  };
  if (bytes->empty()) return damaged(0, "it ends: the file is empty");
  for (std::size_t at = 0; at < bytes->size(); at += kCifarRecord) {
    const auto label = static_cast<std::uint8_t>((*bytes)[at]);
    if (label >= kClasses) {
      return damaged(at, "there is a label " + std::to_string(label) +
                             ", and they are 0 to 9: is it CIFAR-10, the binary version?");
    }
    if (bytes->size() - at < kCifarRecord) {
      return damaged(at, "there are " + std::to_string(bytes->size() - at) +
                             " bytes of an image's " + std::to_string(kCifarRecord) +
                             ": it is cut off");
    }
    images.labels.push_back(label);
    const auto begin = bytes->begin() + static_cast<std::ptrdiff_t>(at);
    images.pixels.insert(images.pixels.end(), begin + 1,
                         begin + static_cast<std::ptrdiff_t>(kCifarRecord));
  }
  return {};
}

}  // namespace

Result<LabelledImages> read_mnist(const std::string& folder, Part part) {
  const std::string prefix = part == Part::kTrain ? "train" : "t10k";
  auto pixels = read_idx_in(folder, prefix + "-images-idx3-ubyte");
  if (!pixels) return fail(std::move(pixels.error()));
  auto labels = read_idx_in(folder, prefix + "-labels-idx1-ubyte");
  if (!labels) return fail(std::move(labels.error()));
  if (pixels->dimensions.size() != 3 || labels->dimensions.size() != 1 ||
      labels->dimensions[0] != pixels->dimensions[0]) {
    return fail(ErrorCode::kDataLoss,
                "the " + prefix + " files in " + folder +
                    " do not belong together: n images of h x w and n labels are needed");
  }
  const auto wrong = std::find_if(labels->bytes.begin(), labels->bytes.end(),
                                  [](std::uint8_t label) { return label >= kClasses; });
  if (wrong != labels->bytes.end()) {
    return fail(ErrorCode::kDataLoss, "the " + prefix + " labels in " + folder +
                                          " are not all below 10: number " +
                                          std::to_string(wrong - labels->bytes.begin()) + " is " +
                                          std::to_string(*wrong));
  }
  LabelledImages images;
  images.height = pixels->dimensions[1];
  images.width = pixels->dimensions[2];
  images.pixels = std::move(pixels->bytes);
  images.labels = std::move(labels->bytes);
  return images;
}

Result<LabelledImages> read_cifar10(const std::string& folder, Part part) {
  LabelledImages images;
  images.channels = 3;
  images.height = images.width = kCifarSide;
  std::vector<std::string> names{"test_batch.bin"};
  if (part == Part::kTrain) {
    names.clear();
    for (int i = 1; i <= 5; ++i) names.push_back("data_batch_" + std::to_string(i) + ".bin");
  }
  std::error_code ignored;
  fs::path inside = folder;
  if (fs::is_directory(inside / "cifar-10-batches-bin", ignored)) inside /= "cifar-10-batches-bin";
  for (const std::string& name : names) {
    if (!fs::exists(inside / name, ignored)) {
      return fail(ErrorCode::kNotFound,
                  "there is no " + name + " in " + inside.string() +
                      "; name the folder into which cifar-10-binary.tar.gz was unpacked");
    }
    if (auto added = add_cifar_file(inside / name, images); !added) {
      return fail(std::move(added.error()));
    }
  }
  return images;
}

}  // namespace ddprun
