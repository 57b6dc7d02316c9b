#include "worker_lib/process/crc32c.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ddprun {
namespace {

TEST(Crc32c, IsCastagnolis) {
  // The values of RFC 3720, appendix B.4.
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
}

std::string some_bytes(std::size_t size) {
  std::string bytes(size, '\0');
  std::uint64_t state = 1;
  for (char& byte : bytes) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    byte = static_cast<char>(state >> 56);
  }
  return bytes;
}

// Whatever the parts, sizes, and places in memory: the copy is equal, and the sum that of the whole.
TEST(StreamSum, IsTheSameInAnyParts) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{31}, std::size_t{32},
                                 std::size_t{100}, std::size_t{200'000}}) {
    const std::string bytes = some_bytes(size + 3).substr(3);
    const std::uint32_t whole = stream_sum(bytes);
    for (const std::size_t part :
         {std::size_t{1}, std::size_t{7}, std::size_t{32}, std::size_t{70'001}}) {
      for (const std::size_t offset : {std::size_t{0}, std::size_t{4}}) {
        std::vector<char> memory(size + 64);
        char* const to = memory.data() + offset;
        StreamSum sum;
        for (std::size_t at = 0; at < size; at += part) {
          sum.copy(to, bytes.data() + at, std::min(part, size - at));
        }
        EXPECT_EQ(sum.finish(), whole) << size << " in parts of " << part;
        EXPECT_EQ(std::string(to, size), bytes);
        EXPECT_EQ(sum.size(), size);
        std::vector<char> back(size + 64);
        StreamSum of_reader;
        for (std::size_t at = 0; at < size; at += part) {
          of_reader.read(back.data() + offset + at, to, std::min(part, size - at));
        }
        EXPECT_EQ(of_reader.finish(), whole);
        EXPECT_EQ(std::string(back.data() + offset, size), bytes);
      }
    }
  }
}

TEST(StreamSum, IsAnotherForAnyBitAndAnyLength) {
  const std::string bytes = some_bytes(77);
  const std::uint32_t whole = stream_sum(bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string other = bytes;
    other[bit / 8] = static_cast<char>(other[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(stream_sum(other), whole) << bit;
  }
  EXPECT_NE(stream_sum(bytes + '\0'), whole);
}

}  // namespace
}  // namespace ddprun
