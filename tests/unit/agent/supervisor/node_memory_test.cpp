// How a service manager's stored memory says whose it is. The rest is in tests/integration/keep_memory_test.
#include "agent/supervisor/node_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <string>

namespace ddprun::agent {
namespace {

TEST(StoredMemory, HasItsProgramInItsName) {
  EXPECT_EQ(name_of_stored("/srv/train"), "ddprun-snapshot:1:/srv/train");
  EXPECT_EQ(program_of_stored("ddprun-snapshot:1:/srv/train"), "/srv/train");
  EXPECT_EQ(program_of_stored("ddprun-snapshot:2:/srv/train"), std::nullopt);
  EXPECT_EQ(program_of_stored("ddprun-snapshot"), std::nullopt);
}

TEST(StoredMemory, HasTheEndOfALongPathInIt) {
  const std::string name = name_of_stored("/" + std::string(4000, 'a') + "/train");
  const rdzv::UniqueFd memory(::memfd_create(name.c_str(), MFD_CLOEXEC));
  EXPECT_TRUE(memory) << "the kernel takes the name";
  EXPECT_FALSE(rdzv::UniqueFd(::memfd_create((name + "x").c_str(), MFD_CLOEXEC)));
  EXPECT_TRUE(name.ends_with("aaa/train"));
}

}  // namespace
}  // namespace ddprun::agent
