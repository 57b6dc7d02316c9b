#include "rendezvous/common/exit_status.h"

#include <gtest/gtest.h>

#include <csignal>

namespace ddprun {
namespace {

TEST(ExitStatus, KeepsCodeSignalAndCoreApart) {
  EXPECT_EQ(ExitStatus::exited(3).to_string(), "exit code 3");
  EXPECT_EQ(ExitStatus::killed(SIGKILL).to_string(), "SIGKILL (signal 9)");
  EXPECT_EQ(ExitStatus::killed(SIGSEGV, true).to_string(), "SIGSEGV (signal 11, core dumped)");
}

TEST(ExitStatus, BecomesWhatAShellWouldMakeOfIt) {
  EXPECT_EQ(ExitStatus::exited(255).as_shell_code(), 255);
  EXPECT_EQ(ExitStatus::killed(SIGKILL).as_shell_code(), 137);
  EXPECT_EQ(ExitStatus::killed(SIGSEGV, true).as_shell_code(), 139);
}

TEST(ExitStatus, OnlyZeroIsSuccess) {
  EXPECT_TRUE(ExitStatus::exited(0).is_success());
  EXPECT_FALSE(ExitStatus::exited(1).is_success());
  EXPECT_FALSE(ExitStatus::killed(SIGHUP).is_success());
}

TEST(SignalName, NamesEverySignalAndComesBack) {
  for (int signal = 1; signal <= 31; ++signal) {
    EXPECT_EQ(signal_number(signal_name(signal)), signal) << signal_name(signal);
  }
  EXPECT_EQ(signal_name(SIGRTMIN), "SIGRTMIN");
  EXPECT_EQ(signal_name(SIGRTMIN + 3), "SIGRTMIN+3");
  EXPECT_EQ(signal_name(99), "signal 99");
}

TEST(SignalName, IsReadInEverySpelling) {
  for (const char* name : {"SIGTERM", "TERM", "term", "sigterm", "15"}) {
    EXPECT_EQ(signal_number(name), SIGTERM) << name;
  }
  for (const char* name : {"", "SIG", "NOPE", "0", "99", "-1"}) {
    EXPECT_EQ(signal_number(name), 0) << name;
  }
}

}  // namespace
}  // namespace ddprun
