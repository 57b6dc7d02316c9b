#include "rendezvous/common/base64.h"

#include <gtest/gtest.h>

#include <string>

namespace ddprun {
namespace {

TEST(Base64, IsReadAsItIsWritten) {
  const std::string bytes("\x00\x01\xfe\xff{\"a\":1}", 11);
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    const std::string part = bytes.substr(0, size);
    EXPECT_EQ(from_base64(to_base64(part)), part);
  }
  EXPECT_EQ(to_base64("foo/b"), "Zm9vL2I=");
  for (const char* text : {"a", "====", "Zm9*", "Zm=v", "Zm9vL2I"}) {
    EXPECT_EQ(from_base64(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace ddprun
