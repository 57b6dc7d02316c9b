// Labelled images as their files have them: the MNIST family (IDX) and CIFAR-10 (binary version).
// Bytes, nothing of Torch (ImageDataset in datasets.h makes tensors). Blocking; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/common/result.h"

namespace ddprun {

struct LabelledImages {
  std::int64_t channels = 1;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<std::uint8_t> pixels = {};  // image by image, channel by channel, row by row
  std::vector<std::uint8_t> labels = {};  // one per image, 0 to 9

  std::int64_t count() const { return static_cast<std::int64_t>(labels.size()); }
};

enum class Part { kTrain, kTest };

// train-images-idx3-ubyte and train-labels-idx1-ubyte in `folder`, or t10k-…, gzipped or not: MNIST,
// Fashion-MNIST (Debian's dataset-fashion-mnist puts it into /usr/share/datasets/fashion-mnist),
// KMNIST. Errors name the file and what is wrong with it.
Result<LabelledImages> read_mnist(const std::string& folder, Part part);

// data_batch_1.bin to data_batch_5.bin or test_batch.bin in `folder` or in its
// cifar-10-batches-bin. A record, as the authors' page describes it: a label, then 32 x 32 bytes of
// red, green and blue. Errors name the file and the byte.
Result<LabelledImages> read_cifar10(const std::string& folder, Part part);

}  // namespace ddprun
