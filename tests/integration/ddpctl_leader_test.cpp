// ddpctl leader with wrong usage: one sentence, exit code 2, and no leader is started.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/ddpctl.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

test::CommandOutcome leader(const std::string& arguments) {
  return test::ddpctl("leader " + arguments);
}

TEST(DdpctlLeader, RefusesWhatCannotWork) {
  const struct {
    std::string arguments;
    std::string sentence;
  } cases[] = {
      {"", "--listen is required"},
      {"--listen 127.0.0.1:0", "ddpctl: --nnodes=1:1: one node leads itself"},
      {"--listen nowhere --nnodes=2", "ddpctl: --listen=nowhere: "},
      {"--listen 127.0.0.1:0 --nnodes=2:1", "ddpctl: --nnodes=2:1: "},
      {"--listen 127.0.0.1:0 --nnodes=2 --max_restarts=x", "ddpctl: --max-restarts=x: "},
      {"--listen 127.0.0.1:0 --nnodes=2 --rdzv-conf=join_timeout=0", "join_timeout must be"},
      {"--listen 127.0.0.1:0 --nnodes=2 --token-file=/no/such/file", "/no/such/file"},
      {"--listen 127.0.0.1:0 --nnodes=2 --master-port=1", "--master-port"},
  };
  for (const auto& [arguments, sentence] : cases) {
    const test::CommandOutcome outcome = leader(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.output, HasSubstr(sentence)) << arguments;
  }
}

TEST(DdpctlLeader, HelpHasEveryOptionOfALeader) {
  const test::CommandOutcome help = leader("--help");
  EXPECT_EQ(help.code, 0);
  for (const std::string option : {"--listen", "--nnodes", "--rdzv-id", "--max-restarts",
                                   "--restart-pause", "--rdzv-conf", "--token-file"}) {
    EXPECT_THAT(help.output, HasSubstr(option));
  }
}

}  // namespace
}  // namespace ddprun
