#include "ddprun/images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/unit/worker_lib/damaged_file.h"
#include "tests/unit/worker_lib/temp_folder.h"

namespace ddprun {
namespace {

using testing::ElementsAre;

std::string idx(const std::vector<char>& dimensions, const std::string& data) {
  std::string bytes = {0, 0, 8, static_cast<char>(dimensions.size())};
  for (const char size : dimensions) bytes += {0, 0, 0, size};
  return bytes + data;
}

std::string record(char label, char first_red, char last_blue) {
  std::string bytes(3073, 'x');
  bytes[0] = label;
  bytes[1] = first_red;
  bytes[3072] = last_blue;
  return bytes;
}

class Images : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& bytes) {
    test::write(folder_.file(name), bytes);
  }
  void expect_error(const Result<LabelledImages>& images, const std::string& said) {
    test::expect_refused(images, folder_.path(), said);
  }
  test::TempFolder folder_;
};

TEST_F(Images, ReadsMnistsFiles) {
  write("t10k-images-idx3-ubyte", idx({2, 1, 3}, "abcdef"));
  write("t10k-labels-idx1-ubyte", idx({2}, std::string("\x03\x09", 2)));
  const auto images = read_mnist(folder_.path(), Part::kTest);
  ASSERT_TRUE(images) << images.error().message;
  EXPECT_EQ(images->count(), 2);
  EXPECT_EQ(images->channels, 1);
  EXPECT_EQ(images->height, 1);
  EXPECT_EQ(images->width, 3);
  EXPECT_THAT(images->pixels, ElementsAre('a', 'b', 'c', 'd', 'e', 'f'));
  EXPECT_THAT(images->labels, ElementsAre(3, 9));
  expect_error(read_mnist(folder_.path(), Part::kTrain), "neither train-images-idx3-ubyte.gz nor");
}

TEST_F(Images, MnistFilesThatDoNotBelongTogetherAreAnError) {
  write("train-images-idx3-ubyte", idx({2, 1, 3}, "abcdef"));
  write("train-labels-idx1-ubyte", idx({3}, std::string(3, '\1')));
  expect_error(read_mnist(folder_.path(), Part::kTrain), "do not belong together");
  write("train-labels-idx1-ubyte", idx({2}, std::string("\x01\x0a", 2)));
  expect_error(read_mnist(folder_.path(), Part::kTrain), "number 1 is 10");
}

TEST_F(Images, ReadsCifarsFiles) {
  const std::string inside = "cifar-10-batches-bin/";
  std::filesystem::create_directory(folder_.file(inside));
  for (char i = 1; i <= 5; ++i) {
    write(inside + "data_batch_" + std::to_string(i) + ".bin",
          record(i, 'r', 'b') + record(0, i, 'c'));
  }
  write(inside + "test_batch.bin", record(9, 'R', 'B'));
  const auto train = read_cifar10(folder_.path(), Part::kTrain);
  ASSERT_TRUE(train) << train.error().message;
  EXPECT_THAT(train->labels, ElementsAre(1, 0, 2, 0, 3, 0, 4, 0, 5, 0));
  EXPECT_EQ(train->pixels.size(), 10u * 3 * 32 * 32);
  EXPECT_EQ(train->pixels[9 * 3072], 5);
  EXPECT_EQ(train->pixels[10 * 3072 - 1], 'c');
  const auto test = read_cifar10(folder_.file(inside), Part::kTest);
  ASSERT_TRUE(test) << test.error().message;
  EXPECT_THAT(test->labels, ElementsAre(9));
}

TEST_F(Images, DamagedCifarFilesAreNamedWithTheByte) {
  expect_error(read_cifar10(folder_.path(), Part::kTest), "there is no test_batch.bin");
  write("test_batch.bin", "");
  expect_error(read_cifar10(folder_.path(), Part::kTest), "the file is empty");
  write("test_batch.bin", record(1, 'r', 'b') + record(2, 'r', 'b').substr(0, 3072));
  expect_error(read_cifar10(folder_.path(), Part::kTest),
               "test_batch.bin cannot be used: at byte 3073 there are 3072 bytes");
  write("test_batch.bin", record(1, 'r', 'b') + record(10, 'r', 'b'));
  expect_error(read_cifar10(folder_.path(), Part::kTest), "at byte 3073 there is a label 10");
}

}  // namespace
}  // namespace ddprun
