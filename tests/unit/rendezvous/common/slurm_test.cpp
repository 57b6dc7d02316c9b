// Slurm's texts. That lists mean what Slurm means by them is compared with scontrol in
// tests/integration/slurm_test.cpp.
#include "rendezvous/common/slurm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace ddprun {
namespace {

using testing::HasSubstr;
using Hosts = std::vector<std::string>;

TEST(SlurmHostList, NamesEveryHostInSlurmsOrder) {
  const std::map<std::string, Hosts> cases{
      {"a", {"a"}},
      {"a,b", {"a", "b"}},
      {"gpu[07]", {"gpu07"}},
      {"gpu[003-005,9],login", {"gpu003", "gpu004", "gpu005", "gpu9", "login"}},
      {"gpu[8-11]", {"gpu8", "gpu9", "gpu10", "gpu11"}},
      {"gpu[08-11]", {"gpu08", "gpu09", "gpu10", "gpu11"}},
      {"gpu[9-010]", {"gpu9", "gpu10"}},
      {"gpu[99-101]", {"gpu99", "gpu100", "gpu101"}},
      {"b[2],a[1],b[2]", {"b2", "a1", "b2"}},
      {"[1-2]", {"1", "2"}},
      {"rack[1-2]node[05-06]", {"rack1node05", "rack1node06", "rack2node05", "rack2node06"}},
      {"a[1-2]b[1-2]c[1-2]",
       {"a1b1c1", "a1b1c2", "a2b1c1", "a2b1c2", "a1b2c1", "a1b2c2", "a2b2c1", "a2b2c2"}},
      {"gpu[1-2]-ib.site.org,x", {"gpu1-ib.site.org", "gpu2-ib.site.org", "x"}}};
  for (const auto& [list, hosts] : cases) {
    const auto expanded = expand_host_list(list);
    ASSERT_TRUE(expanded) << list << ": " << expanded.error().message;
    EXPECT_EQ(*expanded, hosts) << list;
  }
}

TEST(SlurmHostList, SaysWhatIsWrongWithATextThatIsNone) {
  const std::map<std::string, std::string> cases{
      {"", "it is empty"},
      {"a,", "it is empty or contains an empty name"},
      {",a", "contains an empty name"},
      {"a,,b", "contains an empty name"},
      {"a[1-2", "a '[' has no ']'"},
      {"a[1],b[2", "a '[' has no ']'"},
      {"a1]", "a ']' has no '['"},
      {"a[1]]", "a ']' has no '['"},
      {"a[]", "'' is no number"},
      {"a[1,]", "'' is no number"},
      {"a[5-3]", "'5-3' is no number and no range"},
      {"a[1-2-3]", "'1-2-3' is no number"},
      {"a[-1]", "'-1' is no number"},
      {"a[ 1]", "' 1' is no number"},
      {"a[x]", "'x' is no number"},
      {"a[1[2]]", "'1[2' is no number"},
      {"a[99999999999999999999]", "is no number"},
      {"a[1-200000]", "more than 131072 hosts"},
      {"a[0-18446744073709551615]", "more than 131072 hosts"},
      {"a[1-100000],b[1-100000]", "more than 131072 hosts"},
      {"a[1-60000,70000-150000]", "more than 131072 hosts"},
      {"a[1-1000]b[1-1000]", "more than 131072 hosts"}};
  for (const auto& [list, sentence] : cases) {
    const auto expanded = expand_host_list(list);
    ASSERT_FALSE(expanded) << list;
    EXPECT_THAT(expanded.error().message, HasSubstr(sentence)) << list;
  }
}

TEST(SlurmStep, IsANumberAndNotTheAllocationItself) {
  EXPECT_EQ(slurm_step("0"), 0U);
  EXPECT_EQ(slurm_step("17"), 17U);
  // Batch script, extern, interactive shell, pending.
  for (const char* none : {"4294967291", "4294967292", "4294967290", "4294967293", "", "x", "-1"}) {
    EXPECT_EQ(slurm_step(none), std::nullopt) << none;
  }
}

TEST(SlurmPort, JobsAndTheirStepsHaveOnesOfTheirOwn) {
  std::set<std::uint16_t> ports;
  for (std::uint64_t step = 0; step < 50; ++step) ports.insert(slurm_port(4711, step));
  for (std::uint64_t job = 4712; job < 4800; ++job) ports.insert(slurm_port(job, 0));
  EXPECT_EQ(ports.size(), 50 + 88);
  EXPECT_GE(*ports.begin(), 12000);
  EXPECT_LT(slurm_port(19999, 0), 32000);
  EXPECT_EQ(slurm_port(4711, 0), 16711);
}

}  // namespace
}  // namespace ddprun
