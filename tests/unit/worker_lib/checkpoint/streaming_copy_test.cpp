#include "worker_lib/checkpoint/streaming_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace ddprun {
namespace {

TEST(StreamingCopy, CopiesExactlyWhatItIsToldAtEveryOffsetAndSize) {
  std::vector<unsigned char> source(5000);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<unsigned char>(i * 7 + 1);
  for (std::size_t to = 0; to < 70; ++to) {
    for (const std::size_t from : {0, 1, 32, 63}) {
      for (const std::size_t size : {0, 1, 63, 1023, 1024, 1025, 1088, 4096, 4801}) {
        std::vector<unsigned char> target(5000, 0);
        streaming_copy(target.data() + to, source.data() + from, size);
        std::vector<unsigned char> expected(5000, 0);
        std::copy_n(source.data() + from, size, expected.data() + to);
        ASSERT_EQ(target, expected) << "to " << to << " from " << from << " size " << size;
      }
    }
  }
}

}  // namespace
}  // namespace ddprun
