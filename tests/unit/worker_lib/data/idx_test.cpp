#include "ddprun/idx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "tests/unit/worker_lib/damaged_file.h"
#include "tests/unit/worker_lib/temp_folder.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

// Two images of 3 x 2.
std::string small_idx() {
  std::string bytes = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 2};
  for (char i = 0; i < 12; ++i) bytes.push_back(i);
  return bytes;
}

std::string gzipped(const std::string& bytes) {
  z_stream stream{};
  deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(bytes.size() + 100, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

class Idx : public testing::Test {
 protected:
  Result<IdxArray> read_bytes(const std::string& bytes) {
    test::write(path_, bytes);
    return read_idx(path_);
  }
  void expect_error(const std::string& bytes, const std::string& said) {
    test::expect_damaged(read_bytes(bytes), path_, said);
  }

  test::TempFolder folder_;
  std::string path_ = folder_.file("images");
};

TEST_F(Idx, ReadsPlainAndGzippedAlike) {
  for (const std::string& bytes : {small_idx(), gzipped(small_idx())}) {
    const auto array = read_bytes(bytes);
    ASSERT_TRUE(array) << array.error().message;
    EXPECT_THAT(array->dimensions, testing::ElementsAre(2, 3, 2));
    EXPECT_THAT(array->bytes, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  }
}

TEST_F(Idx, ReadsGzipOfSeveralPieces) {
  const std::string whole = small_idx();
  for (std::size_t at = 0; at <= whole.size(); ++at) {
    const auto array = read_bytes(gzipped(whole.substr(0, at)) + gzipped(whole.substr(at)));
    ASSERT_TRUE(array) << array.error().message;
    EXPECT_EQ(array->bytes, read_bytes(whole)->bytes) << at;
  }
}

TEST_F(Idx, ASizeThatGzipOnlyClaimsAllocatesNothing) {
  std::string whole = gzipped(small_idx());
  for (std::size_t i = 1; i <= 4; ++i) whole[whole.size() - i] = '\xff';
  EXPECT_FALSE(read_bytes(whole));
}

TEST_F(Idx, CutOffAnywhereIsAnErrorThatSaysSo) {
  const std::string whole = small_idx();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    expect_error(whole.substr(0, size), "it is cut off");
  }
}

TEST_F(Idx, GzipCutOffAnywhereIsAnError) {
  const std::string whole = gzipped(small_idx());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto array = read_bytes(whole.substr(0, size));
    EXPECT_FALSE(array) << "with " << size << " of " << whole.size() << " bytes";
  }
}

TEST_F(Idx, AFlippedBitInGzipNeverGivesOtherData) {
  const std::string whole = gzipped(small_idx());
  const auto expected = read_bytes(whole);
  ASSERT_TRUE(expected);
  int noticed = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    const auto array = read_bytes(damaged);
    if (array) {  // some bits mean nothing: the time in the header, the last byte's padding
      EXPECT_EQ(array->bytes, expected->bytes) << "byte " << at;
    } else {
      ++noticed;
    }
  }
  EXPECT_GT(noticed, 20);
}

TEST_F(Idx, LongerThanItsHeaderSaysIsAnError) {
  expect_error(small_idx() + "x", "longer than its header says");
  expect_error(gzipped(small_idx() + "x"), "longer than its header says");
}

TEST_F(Idx, AnotherFormatIsAnError) {
  expect_error("PK\x03\x04 a zip file", "not an IDX file");
  std::string floats = small_idx();
  floats[2] = 0x0d;
  expect_error(floats, "not an IDX file");
}

TEST_F(Idx, ImpossibleHeaderAllocatesNothing) {
  std::string none = small_idx();
  none[3] = 0;
  expect_error(none, "0 dimensions");
  expect_error(std::string{0, 0, 8, 2, 127, 0, 0, 0, 127, 0, 0, 0}, "claims a dimension");
  expect_error(std::string{0, 0, 8, 1, 0, 0, 0, 0}, "claims a dimension");
}

TEST_F(Idx, MissingFileIsNamed) {
  const auto array = read_idx(folder_.file("absent"));
  ASSERT_FALSE(array);
  EXPECT_EQ(array.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(array.error().message, HasSubstr("absent"));
}

TEST_F(Idx, FolderIsSearchedForBothNames) {
  test::write(folder_.file("a.gz"), gzipped(small_idx()));
  test::write(folder_.file("b"), small_idx());
  EXPECT_TRUE(read_idx_in(folder_.path(), "a"));
  EXPECT_TRUE(read_idx_in(folder_.path(), "b"));
  const auto missing = read_idx_in(folder_.path(), "c");
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, HasSubstr("neither c.gz nor c"));
  EXPECT_THAT(missing.error().message, HasSubstr(folder_.path()));
}

}  // namespace
}  // namespace ddprun
