#include "launcher/plan/system_libraries.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ddprun::cli {
namespace {

struct Case {
  std::vector<std::string> options;
  bool needs;
};

class SystemLibraries : public ::testing::TestWithParam<Case> {};

TEST_P(SystemLibraries, AreForNodesNamesAndGpus) {
  std::vector<std::string> words = GetParam().options;
  words.emplace_back("train");
  const auto line = parse_command_line(words);
  ASSERT_TRUE(line) << line.error().to_string();
  EXPECT_EQ(needs_system_libraries(resolve(*line, {}, {})), GetParam().needs);
}

INSTANTIATE_TEST_SUITE_P(
    Of, SystemLibraries,
    ::testing::Values(Case{{}, false}, Case{{"--nproc-per-node=8"}, false},
                      Case{{"--nproc-per-node=cpu"}, false},
                      Case{{"--nproc-per-node=usable-cpus"}, false},
                      Case{{"--nproc-per-node=gpu"}, true}, Case{{"--nproc-per-node=auto"}, true},
                      Case{{"--numa-binding=node"}, true}, Case{{"--standalone"}, false},
                      Case{{"--nnodes=1"}, false}, Case{{"--nnodes=1:1"}, false},
                      Case{{"--nnodes=2"}, true}, Case{{"--nnodes=1:2"}, true},
                      Case{{"--nnodes=two"}, false},  // will be refused
                      Case{{"--master-addr=localhost"}, false},
                      Case{{"--master-addr=10.0.0.1"}, false}, Case{{"--master-addr=::1"}, false},
                      Case{{"--master-addr=node0"}, true}, Case{{"--local-addr=node0"}, true},
                      Case{{"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"}, false},
                      Case{{"--rdzv-backend=c10d", "--rdzv-endpoint=[::1]:29400"}, false},
                      Case{{"--rdzv-backend=c10d", "--rdzv-endpoint=node0"}, true},
                      Case{{"--rdzv-backend=c10d", "--rdzv-endpoint=node0:29400"}, true}));

}  // namespace
}  // namespace ddprun::cli
