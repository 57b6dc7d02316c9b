// ddprun and ddprun-tls: if a job needs TLS, ddprun executes ddprun-tls from its own folder,
// invisibly to the user; if that is impossible, one sentence says so. Each test has its own copies
// of both, as a package installs them.
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

class TlsProgram : public ::testing::Test {
 protected:
  TlsProgram() {
    fs::create_directory(bin());
    fs::copy_file(DDPRUN_PROGRAM, bin() / "ddprun");
  }

  fs::path bin() const { return folder_ / "bin"; }
  void install_tls() const { fs::copy_file(DDPRUN_TLS_PROGRAM, bin() / "ddprun-tls"); }

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

TEST_F(TlsProgram, IsMissing) {
  const Told told = over_https();
  EXPECT_EQ(told.code, 127);
  EXPECT_EQ(told.err, "ddprun: " + (bin() / "ddprun-tls").string() +
                          ": No such file or directory; it is the part of ddprun that has TLS, and "
                          "comes with it: install both\n");
}

TEST_F(TlsProgram, MayNotBeExecuted) {
  write_file(bin() / "ddprun-tls", "", 0644);
  const Told told = over_https();
  EXPECT_EQ(told.code, 126);
  EXPECT_THAT(told.err, HasSubstr("ddprun-tls: Permission denied; it is the part"));
}

TEST_F(TlsProgram, ThatIsDdprunItselfIsNotExecutedForEver) {
  const auto expect_said = [this] {
    const Told told = over_https();
    EXPECT_EQ(told.code, 126);
    EXPECT_EQ(told.err, "ddprun: " + (bin() / "ddprun-tls").string() +
                            " is a ddprun without TLS; install both programs of one package\n");
  };
  fs::create_symlink("ddprun", bin() / "ddprun-tls");
  expect_said();
  fs::remove(bin() / "ddprun-tls");
  fs::copy_file(DDPRUN_PROGRAM, bin() / "ddprun-tls");
  expect_said();
}

TEST_F(TlsProgram, IsNotNeededForADryRun) {
  const Told told = run_to_its_end(
      by_name({"--dry-run", "--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=127.0.0.1:1",
               "--rdzv-conf=protocol=https", "/bin/true"}));
  EXPECT_EQ(told.code, 0) << told.err;
}

TEST_F(TlsProgram, CannotReadAPipeAgain) {
  install_tls();
  write_file(folder_ / "options.toml",
             "nnodes = 2\nrdzv-backend = 'etcd'\nrdzv-endpoint = '127.0.0.1:1'\n"
             "rdzv-conf = 'protocol=https'\n");
  const Told told =
      run_to_its_end({"sh", "-c",
                      "cat " + (folder_ / "options.toml") + " | " + (bin() / "ddprun").string() +
                          " --config=/dev/stdin /bin/true"});
  EXPECT_EQ(told.code, 2);
  EXPECT_EQ(told.err, "ddprun: --config=/dev/stdin: with TLS it must be a regular file\n");
}

TEST_F(TlsProgram, SpeaksToEtcd) {
  if (const std::string obstacle = EtcdServers::obstacle(); !obstacle.empty()) {
    GTEST_SKIP() << obstacle;
  }
  install_tls();
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

class TlsProgramForTrainer : public TlsProgram {
 protected:
  TlsProgramForTrainer()
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

TEST_F(TlsProgramForTrainer, TellsIt) {
  install_tls();
  Job job(reporting(), {.environment = environment()});
  EXPECT_TRUE(job.reaches([this] { return server_.connections() > 0; })) << job.err();
  write_file(folder_ / "finish", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(job.err(), "");
}

TEST_F(TlsProgramForTrainer, IsMissingAndTheJobGoesOn) {
  Job job(reporting(), {.environment = environment()});
  EXPECT_TRUE(job.reaches([&job] { return job.err().find("ddprun-tls") != std::string::npos; }));
  write_file(folder_ / "finish", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("TLS is in ddprun-tls, which does not lie beside this ddprun"));
}

// How ddprun was called says which Python is meant; exec alone would forget it.
TEST_F(TlsProgramForTrainer, TakesThePythonOfTheEnvironmentThatDdprunWasCalledIn) {
  install_tls();
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
