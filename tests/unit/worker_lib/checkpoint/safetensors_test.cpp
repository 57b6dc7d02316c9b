#include "tests/unit/worker_lib/checkpoint/pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker_lib/outcome.h"

namespace ddprun::safetensors {
namespace {

using testing::HasSubstr;

Content sample() {
  return {{{"epoch", "3"}, {"odd \"key\" \n", "ddprun_crc32\":\"12345678"}},
          {{"a", "F32", {2, 1}, "12345678"}, {"empty", "I64", {0}, ""}, {"b", "U8", {}, "9"}}};
}

Result<Content> try_to_unpack(std::string_view file) {
  return test::outcome([file] { return unpack(file); });
}

// A file with this header and data, as another program might have written it.
std::string file_with(const std::string& header, const std::string& data) {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[i] = static_cast<char>((header.size() >> (8 * i)) & 0xff);
  return file + header + data;
}

TEST(Safetensors, WhatIsPackedIsUnpacked) {
  const std::string file = pack(sample());
  const Content content = unpack(file);
  EXPECT_EQ(content.metadata, sample().metadata);
  ASSERT_EQ(content.arrays.size(), 3u);
  EXPECT_EQ(content.arrays[0].name, "a");
  EXPECT_EQ(content.arrays[0].dtype, "F32");
  EXPECT_THAT(content.arrays[0].shape, testing::ElementsAre(2, 1));
  EXPECT_EQ(content.arrays[0].bytes, "12345678");
  EXPECT_EQ(content.arrays[1].bytes, "");
  EXPECT_EQ(content.arrays[2].bytes, "9");
}

TEST(Safetensors, DataBeginsAtAMultipleOf64) {
  const std::string file = pack(sample());
  EXPECT_EQ((file.size() - 9) % 64, 0u);  // 9: the data
}

TEST(Safetensors, EveryCutAndEveryFlippedBitIsNoticed) {
  const std::string whole = pack(sample());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(try_to_unpack(std::string_view(whole).substr(0, size))) << size;
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      const auto content = try_to_unpack(damaged);
      // A bit of the key's own name makes it another key: such a file has no checksum of ours. Real
      // checkpoints say that they must have one (ddprun_format).
      if (content) {
        EXPECT_EQ(content->metadata.size(), 3u) << at << "." << bit;
      }
    }
  }
  EXPECT_FALSE(try_to_unpack(whole + "x"));
}

TEST(Safetensors, AFileWithoutChecksumIsReadUnlessItClaimsToBeOurs) {
  const std::string array = R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  EXPECT_TRUE(try_to_unpack(file_with("{" + array + "}", "xy")));
  EXPECT_FALSE(
      try_to_unpack(file_with(R"({"__metadata__":{"ddprun_format":"1"},)" + array + "}", "xy")));
}

TEST(Safetensors, HeadersThatLieAreErrors) {
  const struct {
    const char* header;
    const char* data;
    const char* said;
  } cases[] = {
      {"nonsense", "", "not JSON"},
      {"[]", "", "not JSON"},
      {R"({"a":1})", "x", "not described"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0]}})", "xy", "not described"},
      {R"({"a":{"dtype":"X9","shape":[2],"data_offsets":[0,2]}})", "xy", "unknown type"},
      {R"({"a":{"dtype":"U8","shape":[-2],"data_offsets":[0,2]}})", "xy", "impossible shape"},
      {R"({"a":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,2]}})", "xy",
       "impossible shape"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,3]}})", "xy", "contradicts"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}})", "xy", "contradicts"},
      {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", "xy", "cut off"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "xy", "longer"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       "wxyz", "does not begin where"},
      {R"({"__metadata__":{"a":1}})", "", "no string"},
  };
  for (const auto& item : cases) {
    const auto content = try_to_unpack(file_with(item.header, item.data));
    ASSERT_FALSE(content) << item.header;
    EXPECT_EQ(content.error().code, ErrorCode::kDataLoss);
    EXPECT_THAT(content.error().message, HasSubstr(item.said)) << item.header;
  }
  std::string huge = file_with("{}", "");
  huge[7] = 0x7f;
  EXPECT_FALSE(try_to_unpack(huge));
}

TEST(Safetensors, WhatNoReaderWouldTakeIsNotWritten) {
  Content content = sample();
  content.metadata["note"] = "caf\xe9";
  const auto not_text = test::outcome([&] { return pack(content); });
  ASSERT_FALSE(not_text);
  EXPECT_THAT(not_text.error().message, testing::HasSubstr("'note' is not UTF-8"));
  content.metadata["note"] = std::string(100'000'001, 'x');
  const auto too_long = test::outcome([&] { return pack(content); });
  ASSERT_FALSE(too_long);
  EXPECT_THAT(too_long.error().message, testing::HasSubstr("room for 100,000,000"));
}

}  // namespace
}  // namespace ddprun::safetensors
