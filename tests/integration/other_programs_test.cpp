// ddprun, ddprun-dynamic and ddprun-tls: if a job needs the system's libraries or TLS, ddprun executes the program that
// has them from its own folder, invisibly to the user; if that is impossible, one sentence says so. Each test has its own
// copies, as a package installs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "tests/support/certificates.h"
#include "tests/support/etcd_server.h"
#include "tests/support/http_server.h"
#include "tests/support/job.h"

namespace ddprun::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class OtherPrograms : public ::testing::Test {
 protected:
  OtherPrograms() {
    fs::create_directory(bin());
    install("ddprun");
  }

  fs::path bin() const { return folder_ / "bin"; }
  void install(const std::string& name, const std::string& as = "") const {
    fs::copy_file(fs::path(DDPRUN_PROGRAM).parent_path() / name, bin() / (as.empty() ? name : as));
  }

  // As a shell finds it: by PATH.
  Command by_name(const Command& arguments) const {
    Command command{"env", "PATH=" + bin().string() + ":/usr/bin:/bin", "ddprun"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }

  Told over_https() const {
    return run_to_its_end(
        by_name({"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=127.0.0.1:1",
                 "--rdzv-conf=protocol=https,join_timeout=1", "/bin/true"}));
  }

  const TemporaryTree folder_;
};

TEST_F(OtherPrograms, AreMissing) {
  const auto expect_said = [this](const std::string& name, const std::string& is_for) {
    const Told told = over_https();
    EXPECT_EQ(told.code, 127);
    EXPECT_EQ(told.err, "ddprun: " + (bin() / name).string() +
                            ": No such file or directory; it is the part of ddprun " + is_for +
                            ", and comes with it: install both\n");
  };
  expect_said("ddprun-dynamic", "for several nodes, names of hosts and the number of GPUs");
  install("ddprun-dynamic");
  expect_said("ddprun-tls", "that has TLS");
}

TEST_F(OtherPrograms, MayNotBeExecuted) {
  install("ddprun-dynamic");
  write_file(bin() / "ddprun-tls", "", 0644);
  const Told told = over_https();
  EXPECT_EQ(told.code, 126);
  EXPECT_THAT(told.err, HasSubstr("ddprun-tls: Permission denied; it is the part"));
}

TEST_F(OtherPrograms, ThatAreDdprunItselfAreNotExecutedForEver) {
  const auto expect_said = [this](const std::string& name, const std::string& lacks) {
    const Told told = over_https();
    EXPECT_EQ(told.code, 126);
    EXPECT_EQ(told.err, "ddprun: " + (bin() / name).string() + " is a ddprun without " + lacks +
                            "; install all programs of one package\n");
  };
  fs::create_symlink("ddprun", bin() / "ddprun-dynamic");
  expect_said("ddprun-dynamic", "the system's libraries");
  fs::remove(bin() / "ddprun-dynamic");
  install("ddprun", "ddprun-dynamic");
  expect_said("ddprun-dynamic", "the system's libraries");
  fs::remove(bin() / "ddprun-dynamic");
  install("ddprun-dynamic");
  for (const std::string program : {"ddprun", "ddprun-dynamic"}) {
    SCOPED_TRACE(program);
    fs::create_symlink(program, bin() / "ddprun-tls");
    expect_said("ddprun-tls", "TLS");
    fs::remove(bin() / "ddprun-tls");
    install(program, "ddprun-tls");
    expect_said("ddprun-tls", "TLS");
    fs::remove(bin() / "ddprun-tls");
  }
}

TEST_F(OtherPrograms, ThatWithTlsIsNotNeededForADryRun) {
  install("ddprun-dynamic");
  const Told told = run_to_its_end(
      by_name({"--dry-run", "--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=127.0.0.1:1",
               "--rdzv-conf=protocol=https", "/bin/true"}));
  EXPECT_EQ(told.code, 0) << told.err;
}

// What runs, by its file and by the name that it is found under.
TEST_F(OtherPrograms, RunWhereTheyAreNeeded) {
  install("ddprun-dynamic");
  const auto what_runs = [this](Command options) {
    options.insert(options.end(),
                   {"sh", "-c", "echo $(readlink /proc/$PPID/exe) $(cat /proc/$PPID/comm)"});
    return run_to_its_end(by_name(options)).out;
  };
  EXPECT_EQ(what_runs({}), (bin() / "ddprun").string() + " ddprun\n");
  EXPECT_THAT(what_runs({"--nproc-per-node=auto"}),
              HasSubstr((bin() / "ddprun-dynamic").string() + " ddprun\n"));
}

// It can be read only once, so the program that reads it must have everything.
TEST_F(OtherPrograms, ReadAConfigurationFromAPipe) {
  write_file(folder_ / "options.toml",
             "nnodes = 2\nrdzv-backend = 'etcd'\nrdzv-endpoint = '127.0.0.1:1'\n"
             "rdzv-conf = 'protocol=https,join_timeout=1'\n");
  const auto run = [this] {
    return run_to_its_end({"sh", "-c",
                           "cat " + (folder_ / "options.toml") + " | " +
                               (bin() / "ddprun").string() + " --config=/dev/stdin /bin/true"});
  };
  EXPECT_THAT(run().err, HasSubstr("ddprun-tls: No such file"));
  install("ddprun-tls");
  EXPECT_THAT(run().err, HasSubstr("etcd at 127.0.0.1:1"));
}

TEST_F(OtherPrograms, SpeakToEtcdOverTls) {
  if (const std::string obstacle = EtcdServers::obstacle(); !obstacle.empty()) {
    GTEST_SKIP() << obstacle;
  }
  install("ddprun-dynamic");
  install("ddprun-tls");
  const Certificates certificates(folder_.path());
  const EtcdServers etcd({.certificates = &certificates});
  const Command command =
      by_name({"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=" + etcd.endpoints(),
               "--rdzv-id=tls", "--rdzv-conf=ca_cert=" + certificates.ca, "sh", "-c",
               "read line; echo $RANK of $WORLD_SIZE $line"});
  // With the same standard input as ddprun would have.
  Job one(command, {.stdin_text = "hears\n"});
  Job other(command, {.stdin_text = "hears\n"});
  EXPECT_EQ(one.wait(), exited(0)) << one.err();
  EXPECT_EQ(other.wait(), exited(0)) << other.err();
  EXPECT_THAT(one.out() + other.out(),
              AllOf(HasSubstr("0 of 2 hears\n"), HasSubstr("1 of 2 hears\n")));
}

// ---- a job for Kubeflow Trainer

class OtherProgramsForTrainer : public OtherPrograms {
 protected:
  OtherProgramsForTrainer()
      : certificates_(folder_.path()),
        server_(
            [](HttpServer::Connection& client) {
              while (client.read()) client.reply(200, "{}");
            },
            &certificates_) {
    write_file(folder_ / "token", "token\n");
  }

  std::map<std::string, std::string> environment() const {
    return {{"KUBEFLOW_TRAINER_SERVER_URL", server_.url("/status")},
            {"KUBEFLOW_TRAINER_SERVER_TOKEN", folder_ / "token"},
            {"KUBEFLOW_TRAINER_SERVER_CA_CERT", certificates_.ca}};
  }
  Command reporting() const {
    return by_name(worker({"link", "progress", "1/2", "until", folder_ / "finish"}));
  }

  const Certificates certificates_;
  HttpServer server_;
};

TEST_F(OtherProgramsForTrainer, TellsIt) {
  install("ddprun-tls");
  Job job(reporting(), {.environment = environment()});
  EXPECT_TRUE(job.reaches([this] { return server_.connections() > 0; })) << job.err();
  write_file(folder_ / "finish", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(job.err(), "");
}

TEST_F(OtherProgramsForTrainer, IsMissingAndTheJobGoesOn) {
  Job job(reporting(), {.environment = environment()});
  EXPECT_TRUE(job.reaches([&job] { return job.err().find("ddprun-tls") != std::string::npos; }));
  write_file(folder_ / "finish", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("TLS is in ddprun-tls, which does not lie beside this ddprun"));
}

// How ddprun was called says which Python is meant; exec alone would forget it.
TEST_F(OtherProgramsForTrainer, TakesThePythonOfTheEnvironmentThatDdprunWasCalledIn) {
  install("ddprun-tls");
  const fs::path venv = folder_ / "venv";
  fs::create_directories(venv / "bin");
  write_file(venv / "pyvenv.cfg", "");
  write_file(venv / "bin/python", "#!/bin/sh\necho the environment\\'s\n", 0755);
  write_file(folder_ / "train.py", "");
  fs::create_symlink(bin() / "ddprun", venv / "bin/ddprun");
  JobSetup setup{.environment = environment()};
  setup.removed_variables = {"PYTHON_EXEC", "VIRTUAL_ENV", "CONDA_PREFIX"};
  const Told told = run_to_its_end({venv / "bin/ddprun", folder_ / "train.py"}, setup);
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_EQ(told.out, "the environment's\n");
}

}  // namespace
}  // namespace ddprun::test
