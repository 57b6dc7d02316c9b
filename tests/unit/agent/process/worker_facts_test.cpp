// Facts about processes, from files as the kernel writes them.
#include "agent/process/worker_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/temporary_tree.h"

namespace ddprun::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class WorkerFactsTest : public ::testing::Test {
 protected:
  // `caught`: hexadecimal digits; `children`: pids.
  void process(int pid, const std::string& caught, int group, const std::string& children = "") {
    const std::string folder = std::to_string(pid);
    const std::string task = folder + "/task/" + folder;
    proc_.write(task + "/status", "Name:\ta\nSigCgt:\t" + caught + "\n");
    proc_.write(task + "/children", children);
    proc_.write(folder + "/stat", folder + " (a b) S 1 " + std::to_string(group) + " 7 0\n");
  }
  void link(const std::string& name, const std::string& target) {
    std::filesystem::create_directories(std::filesystem::path(proc_ / name).parent_path());
    std::filesystem::create_symlink(target, proc_ / name);
  }

  const TemporaryTree proc_;
};

TEST_F(WorkerFactsTest, KnowWhichSignalsAProcessHandles) {
  process(1, "0000000000004002", 1);
  EXPECT_TRUE(handles(1, SIGTERM, proc_.path()));
  EXPECT_TRUE(handles(1, SIGINT, proc_.path()));
  EXPECT_FALSE(handles(1, SIGHUP, proc_.path()));
  EXPECT_FALSE(handles(2, SIGTERM, proc_.path())) << "there is no such process";
}

TEST_F(WorkerFactsTest, KnowWhichSignalsAProcessDiesOf) {
  const auto masks = [this](int pid, const std::string& text) {
    proc_.write(std::to_string(pid) + "/task/" + std::to_string(pid) + "/status", text);
  };
  masks(1, "SigBlk:\t0000\nSigIgn:\t1000\nSigCgt:\t0002\n");
  masks(2, "SigBlk:\t4000\nSigIgn:\t1000\nSigCgt:\t0002\n");
  masks(3, "SigBlk:\t0000\nSigIgn:\t5000\nSigCgt:\t0002\n");
  masks(4, "SigBlk:\t0000\nSigIgn:\t1000\nSigCgt:\t4002\n");
  EXPECT_TRUE(dies_of(1, SIGTERM, proc_.path()));
  for (const int pid : {2, 3, 4, 5}) EXPECT_FALSE(dies_of(pid, SIGTERM, proc_.path())) << pid;
}

TEST_F(WorkerFactsTest, KnowAShellByItsProgram) {
  link("1/exe", "/usr/bin/bash");
  link("2/exe", "/usr/bin/python3.11");
  link("3/exe", "/bin/busybox");
  EXPECT_TRUE(is_shell(1, proc_.path()));
  EXPECT_FALSE(is_shell(2, proc_.path()));
  EXPECT_TRUE(is_shell(3, proc_.path()));
  EXPECT_FALSE(is_shell(4, proc_.path()));
}

TEST_F(WorkerFactsTest, KnowAGpuByItsDevice) {
  link("1/fd/3", "/dev/nvidia7");
  link("2/fd/3", "/dev/nvidiactl");
  link("2/fd/4", "/dev/nvidia-uvm");
  link("3/fd/9", "/dev/kfd");
  EXPECT_TRUE(has_gpu(1, proc_.path()));
  EXPECT_FALSE(has_gpu(2, proc_.path())) << "tools open these, too";
  EXPECT_TRUE(has_gpu(3, proc_.path()));
  EXPECT_FALSE(has_gpu(4, proc_.path()));
}

TEST_F(WorkerFactsTest, FindTheDescendantsThatHandleASignal) {
  process(10, "0", 10, "11 12 ");
  process(11, "4000", 10, "13 ");
  process(12, "0", 10);
  process(13, "4000", 10);
  process(14, "4000", 14);
  EXPECT_THAT(handlers_in_group(10, SIGTERM, proc_.path()), ElementsAre(11, 13));
  process(12, "0", 10, "14 ");
  EXPECT_THAT(handlers_in_group(10, SIGTERM, proc_.path()), ElementsAre(11, 13))
      << "14 has a group of its own";
  EXPECT_THAT(handlers_in_group(10, SIGHUP, proc_.path()), IsEmpty());
}

TEST_F(WorkerFactsTest, KnowWhichSignalsAProcessBlocks) {
  proc_.write("1/task/1/status", "Name:\ta\nSigBlk:\t0000000000000200\n");
  EXPECT_TRUE(blocks(1, SIGUSR1, proc_.path()));
  EXPECT_FALSE(blocks(1, SIGUSR2, proc_.path()));
  EXPECT_FALSE(blocks(2, SIGUSR1, proc_.path()));
}

TEST(WorkerFacts, AScriptForAShellRunsAShell) {
  const TemporaryTree folder;
  const auto runs = [&](const std::string& text) {
    folder.write("program", text);
    return runs_a_shell((folder / "program").c_str());
  };
  EXPECT_TRUE(runs("#!/bin/sh\necho\n"));
  EXPECT_TRUE(runs("#! /usr/bin/env -S bash -e\n"));
  EXPECT_FALSE(runs("#!/usr/bin/env python3\nimport sh\n"));
  EXPECT_FALSE(
      runs("\x7f"
           "ELF"));
  EXPECT_FALSE(runs("#!"));
  EXPECT_FALSE(runs(""));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_FALSE(runs_a_shell((folder / "pipe").c_str())) << "an argument of the program";
  EXPECT_TRUE(runs_a_shell("/usr/bin/bash"));
  EXPECT_FALSE(runs_a_shell("/nowhere/train"));
}

}  // namespace
}  // namespace ddprun::agent
