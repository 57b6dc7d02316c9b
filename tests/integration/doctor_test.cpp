// ddpctl doctor on any machine: every check is present, each is really performed, and the command
// ends in time and leaves nothing behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <string>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

struct Diagnosis {
  explicit Diagnosis(const std::string& text) : json(boost::json::parse(text)) {
    for (const auto& each : json.at("checks").as_array()) {
      checks[std::string(each.at("name").as_string())] = each;
    }
  }
  std::string verdict(const std::string& name) const {
    return std::string(checks.at(name).at("verdict").as_string());
  }
  std::string text(const std::string& name) const {
    return boost::json::serialize(checks.at(name));
  }
  bool is_clean() const { return json.at("to_look_at").as_int64() == 0; }

  boost::json::value json;
  std::map<std::string, boost::json::value> checks;
};

std::string worker_script(const TemporaryTree& folder, const std::string& text) {
  write_file(folder / "worker", "#!/bin/sh\n" + text + "\n", 0755);
  return folder / "worker";
}

TEST(Doctor, LooksAtEverythingAndStartsTwoWorkers) {
  const TemporaryTree folder;
  const std::string program =
      worker_script(folder, "echo $RANK of $WORLD_SIZE >>" + (folder / "started"));
  Job job(ddpctl({"doctor", "localhost", "--json", "--worker", program}));
  const Ended ended = job.wait();
  const Diagnosis diagnosis(job.out());
  EXPECT_EQ(ended, exited(diagnosis.is_clean() ? 0 : 1)) << job.out() << job.err();
  std::vector<std::string> names;
  for (const auto& [name, check] : diagnosis.checks) names.push_back(name);
  EXPECT_THAT(names, IsSupersetOf({"ddprun", "kernel", "C library", "python", "ports", "own name",
                                   "name localhost", "reverse look-up", "clock", "GPUs", "/dev/shm",
                                   "open files", "processes", "locked memory", "CPUs", "memory",
                                   "tasks", "store", "all-reduce"}));
  EXPECT_EQ(diagnosis.verdict("store"), "ok") << diagnosis.text("store");
  EXPECT_EQ(diagnosis.verdict("all-reduce"), "ok") << diagnosis.text("all-reduce");
  EXPECT_THAT(read_file(folder / "started"), HasSubstr("0 of 2\n"));
  EXPECT_THAT(read_file(folder / "started"), HasSubstr("1 of 2\n"));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

// Kernels before 5.3, and filters.
TEST(Doctor, LooksWithoutPidfds) {
  Job job(with_calls_denied({"pidfd_open:deny=ENOSYS"},
                            ddpctl({"doctor", "localhost", "--json", "--worker", "/bin/true"})));
  job.wait();
  const Diagnosis diagnosis(job.out());
  for (const std::string name : {"kernel", "name localhost", "store", "all-reduce"}) {
    EXPECT_EQ(diagnosis.verdict(name), "ok") << diagnosis.text(name);
  }
  EXPECT_THAT(job.left_over(), IsEmpty());
}

// Whatever options the user's environment has for other jobs.
TEST(Doctor, IsNotLedAstrayByVariablesOfAnotherJob) {
  const TemporaryTree folder;
  const std::string program = worker_script(folder, "exit 0");
  Job job(ddpctl({"doctor", "--json", "--worker", program}),
          {.environment = {{"PET_NNODES", "4"},
                           {"DDPRUN_NPROC_PER_NODE", "7"},
                           {"DDPRUN_CONFIG", "/no/such/file"},
                           {"SLURM_JOB_ID", "12"},
                           {"SLURM_NNODES", "4"}}});
  job.wait();
  const Diagnosis diagnosis(job.out());
  EXPECT_EQ(diagnosis.verdict("all-reduce"), "ok") << diagnosis.text("all-reduce");
}

TEST(Doctor, SaysWhyTheWorkersFailed) {
  const TemporaryTree folder;
  const std::string program = worker_script(folder, "echo 'no interface called ib7' >&2; exit 9");
  Job job(ddpctl({"doctor", "--worker", program}));
  EXPECT_EQ(job.wait(), exited(1)) << job.out();
  EXPECT_THAT(job.out(), HasSubstr("look here   all-reduce"));
  EXPECT_THAT(job.out(), HasSubstr("exit code 9"));
  EXPECT_THAT(job.out(), HasSubstr("no interface called ib7"));
}

TEST(Doctor, GivesUpWhatHangsAndLeavesNothing) {
  const TemporaryTree folder;
  const std::string program = worker_script(folder, "while :; do sleep 1000; done");
  Job job(ddpctl({"doctor", "--json", "--timeout=1", "--worker", program}));
  EXPECT_EQ(job.wait(seconds(20)), exited(1));
  const Diagnosis diagnosis(job.out());
  EXPECT_EQ(diagnosis.verdict("all-reduce"), "look");
  EXPECT_THAT(diagnosis.text("all-reduce"), HasSubstr("--timeout"));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

// Where there is neither torch nor a program of ours nothing was tried, and that is what it says.
TEST(Doctor, SkipsTheAllReduceWhereNoTorchIs) {
  namespace fs = std::filesystem;
  const TemporaryTree folder;
  const fs::path built = fs::path(ddpctl({}).front()).parent_path();
  for (const char* const name : {"ddprun", "ddpctl"}) fs::copy(built / name, folder / name);
  Job job({folder / "ddpctl", "doctor", "--json"},
          {.environment = {{"PATH", folder.path()}},
           .removed_variables = {"PYTHON_EXEC", "VIRTUAL_ENV", "CONDA_PREFIX"}});
  const Ended ended = job.wait();
  const Diagnosis diagnosis(job.out());
  EXPECT_EQ(ended, exited(diagnosis.is_clean() ? 0 : 1));
  EXPECT_EQ(diagnosis.verdict("all-reduce"), "skipped") << diagnosis.text("all-reduce");
  EXPECT_THAT(diagnosis.text("all-reduce"), HasSubstr("no torch found"));
  EXPECT_EQ(diagnosis.verdict("ddprun"), "ok") << diagnosis.text("ddprun");
}

// The first rows come while the workers still run.
TEST(Doctor, PrintsEachRowWhenItIsKnown) {
  const TemporaryTree folder;
  const std::string program =
      worker_script(folder, "until [ -e " + (folder / "go") + " ]; do sleep 0.05; done");
  Job job(ddpctl({"doctor", "--worker", program}));
  EXPECT_TRUE(job.reaches([&] {
    return job.out().find("for a set and a get") != std::string::npos;
  })) << job.out();
  EXPECT_THAT(job.out(), Not(HasSubstr("all-reduce")));
  write_file(folder / "go", "");
  job.wait();
  EXPECT_THAT(job.out(), HasSubstr("all-reduce"));
  EXPECT_THAT(job.out(), HasSubstr(" to look at.\n"));
}

TEST(Doctor, RefusesWrongUsage) {
  Job job(ddpctl({"doctor", "--timeout=-1"}));
  EXPECT_EQ(job.wait(), exited(2));
  EXPECT_THAT(job.out(), IsEmpty());
}

}  // namespace
}  // namespace ddprun::test
