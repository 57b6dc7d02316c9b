// ddprun as a service: what it sends to a service manager, whose socket belongs to the test here,
// and whether the unit file matches ddprun's behaviour.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/unique_fd.h"
#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::StartsWith;

// The manager's end. Keeps who sent what: systemd believes the main process only.
class Manager {
 public:
  // "/path", or "@abstract".
  explicit Manager(std::string name) : name_(std::move(name)) {
    fd_ = rdzv::UniqueFd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name_.data(), name_.size());
    if (name_[0] == '@') address.sun_path[0] = '\0';
    const auto length = offsetof(sockaddr_un, sun_path) + name_.size() + (name_[0] == '@' ? 0 : 1);
    const int yes = 1;
    if (setsockopt(fd_.get(), SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) != 0 ||
        bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), static_cast<socklen_t>(length)) !=
            0) {
      throw std::runtime_error("the manager's socket: " + name_);
    }
  }
  const std::string& name() const { return name_; }

  // Whether this line has come, in any message so far or until the deadline.
  bool hears(const std::string& line, milliseconds deadline = kDeadline) {
    return eventually([&] { return std::ranges::count(lines(), line) > 0; }, deadline);
  }
  bool hears_part(const std::string& part) {
    return eventually([&] {
      return std::ranges::any_of(
          lines(), [&](const std::string& line) { return line.find(part) != std::string::npos; });
    });
  }
  // All lines so far.
  const std::vector<std::string>& lines() {
    char text[4096];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(sizeof(int))];
    for (;;) {
      iovec part{text, sizeof text};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      const ssize_t size = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
      if (size < 0) return lines_;
      for (auto* part_of = CMSG_FIRSTHDR(&message); part_of != nullptr;
           part_of = CMSG_NXTHDR(&message, part_of)) {
        if (part_of->cmsg_type == SCM_RIGHTS) {
          int file = -1;
          std::memcpy(&file, CMSG_DATA(part_of), sizeof file);
          stored_ = rdzv::UniqueFd(file);
        } else {
          ucred sender{};
          std::memcpy(&sender, CMSG_DATA(part_of), sizeof sender);
          senders_.insert(sender.pid);
        }
      }
      std::istringstream all(std::string(text, static_cast<std::size_t>(size)));
      for (std::string line; std::getline(all, line);) lines_.push_back(line);
    }
  }
  const std::set<pid_t>& senders() const { return senders_; }
  // The file that it was given to keep last.
  int stored() const { return stored_.get(); }

 private:
  std::string name_;
  rdzv::UniqueFd fd_;
  std::vector<std::string> lines_;
  std::set<pid_t> senders_;
  rdzv::UniqueFd stored_;
};

class Systemd : public ::testing::Test {
 protected:
  JobSetup told_of(const Manager& manager, std::map<std::string, std::string> more = {}) {
    more["NOTIFY_SOCKET"] = manager.name();
    return {.environment = std::move(more)};
  }
  std::string finish() const { return folder_ / "finish"; }

  const TemporaryTree folder_;
};

TEST_F(Systemd, IsToldOfReadinessRoundAndStep) {
  Manager manager(folder_ / "notify");
  Job job(
      ddprun({"--nproc-per-node=2"}, worker({"link", "progress", "412/1000", "until", finish()})),
      told_of(manager));
  EXPECT_TRUE(manager.hears("READY=1")) << job.err();
  EXPECT_TRUE(manager.hears("STATUS=round 0, 2 workers, step 412 of 1000")) << job.err();
  EXPECT_EQ(manager.lines().front(), "READY=1");
  write_file(finish(), "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(manager.senders(), std::set{job.pid()});
  EXPECT_EQ(job.err(), "");
}

TEST_F(Systemd, IsToldOverAnAbstractSocketToo) {
  Manager manager("@ddprun-test-" + std::to_string(getpid()));
  Job job(ddprun({}, worker({"until", finish()})), told_of(manager));
  EXPECT_TRUE(manager.hears("READY=1")) << job.err();
  write_file(finish(), "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

// Nodes may be started one after the other, each when the one before is ready.
TEST_F(Systemd, IsReadyWhileTheOtherNodesAreAwaited) {
  Manager manager(folder_ / "notify");
  Job job(ddprun({"--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1", "--master-port=1"},
                 worker({"exit", "0"})),
          told_of(manager));
  EXPECT_TRUE(manager.hears("READY=1")) << job.err();
  EXPECT_TRUE(manager.hears("STATUS=waiting for the next round")) << job.err();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), exited(128 + SIGTERM)) << job.err();
}

TEST_F(Systemd, IsAskedForTheTimeThatAStopTakes) {
  Manager manager(folder_ / "notify");
  Job job(ddprun({"--shutdown-timeout=300"},
                 worker({"stamp", folder_.path(), "end-well-on", "15", "wait"})),
          told_of(manager));
  ASSERT_TRUE(job.reaches([&] { return stamps(folder_.path(), 0).size() == 1; })) << job.err();
  EXPECT_THAT(manager.lines(), Not(Contains("STOPPING=1")));
  job.signal(SIGTERM);
  EXPECT_TRUE(manager.hears("STOPPING=1"));
  EXPECT_TRUE(manager.hears("EXTEND_TIMEOUT_USEC=360000000"));
  EXPECT_TRUE(manager.hears_part("waiting for the end of 1 of 1 worker"));
  EXPECT_EQ(job.wait(), exited(128 + SIGTERM)) << job.err();
}

TEST_F(Systemd, HearsTheWatchdogUntilTheAgentStands) {
  Manager manager(folder_ / "notify");
  Job job(ddprun({}, worker({"until", finish()})), told_of(manager, {{"WATCHDOG_USEC", "100000"}}));
  const auto count = [&] { return std::ranges::count(manager.lines(), "WATCHDOG=1"); };
  EXPECT_TRUE(job.reaches([&] { return count() >= 5; })) << job.err();
  job.signal(SIGSTOP);
  ASSERT_TRUE(job.reaches([&] { return process(job.pid())->state == 'T'; }));
  const auto before = count();
  EXPECT_FALSE(eventually([&] { return count() > before; }, milliseconds(300)));
  job.signal(SIGCONT);
  EXPECT_TRUE(job.reaches([&] { return count() > before; })) << job.err();
  write_file(finish(), "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

TEST_F(Systemd, OfAnotherProcessHearsNoWatchdog) {
  Manager manager(folder_ / "notify");
  Job job(ddprun({}, worker({"until", finish()})),
          told_of(manager, {{"WATCHDOG_USEC", "2000"}, {"WATCHDOG_PID", "1"}}));
  EXPECT_TRUE(manager.hears_part("STATUS=round 0")) << job.err();
  EXPECT_FALSE(manager.hears("WATCHDOG=1", milliseconds(100)));
  write_file(finish(), "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

TEST_F(Systemd, SpeaksToTheAgentAndNotToTheWorkers) {
  Manager manager(folder_ / "notify");
  Job job(ddprun({}, worker({"environment", folder_ / "environment"})),
          told_of(manager, {{"WATCHDOG_USEC", "1000000"}}));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  const auto environment = environment_in(folder_ / "environment");
  EXPECT_THAT(environment, Contains(Key("RANK")));
  for (const char* const name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) {
    EXPECT_THAT(environment, Not(Contains(Key(name))));
  }
}

TEST_F(Systemd, IsLeftWithHowTheJobEnded) {
  const std::map<std::string, Command> programs{
      {"ddprun_test_worker succeeded", worker({"exit", "0"})},
      {"ddprun_test_worker FAILED: rank 0", worker({"exit", "3"})}};
  for (const auto& [part, program] : programs) {
    const TemporaryTree folder;
    Manager manager(folder / "notify");
    Job job(ddprun({}, program), told_of(manager));
    ASSERT_NE(job.wait(), Ended{}) << job.err();
    EXPECT_THAT(manager.lines().back(), AllOf(StartsWith("STATUS="), HasSubstr(part)));
  }
}

// ---- what cannot work is said once, and the job goes on

TEST_F(Systemd, ThatIsNotThereIsNamedOnce) {
  Job job(ddprun({"--max-restarts=1"}, worker({"on-round", "0", "exit", "1"})),
          {.environment = {{"NOTIFY_SOCKET", folder_ / "nobody"}, {"WATCHDOG_USEC", "2000"}}});
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  const std::string err = job.err();
  const auto at = err.find("NOTIFY_SOCKET=" + (folder_ / "nobody"));
  ASSERT_NE(at, std::string::npos) << err;
  EXPECT_THAT(err, HasSubstr("No such file or directory"));
  EXPECT_EQ(err.find("NOTIFY_SOCKET", at + 1), std::string::npos) << err;
}

TEST_F(Systemd, WithVariablesThatMakeNoSenseIsNamedToo) {
  Manager manager(folder_ / "notify");
  const std::map<std::string, JobSetup> cases{
      {"NOTIFY_SOCKET=vsock:2:1234: give the path of a socket",
       {.environment = {{"NOTIFY_SOCKET", "vsock:2:1234"}}}},
      {"WATCHDOG_USEC=soon: that is no number", told_of(manager, {{"WATCHDOG_USEC", "soon"}})}};
  for (const auto& [sentence, setup] : cases) {
    Job job(ddprun({}, worker({"exit", "0"})), setup);
    EXPECT_EQ(job.wait(), exited(0)) << job.err();
    EXPECT_THAT(job.err(), HasSubstr(sentence));
  }
  EXPECT_THAT(manager.lines(), Contains("READY=1"));
}

// A manager that has stopped reading holds up nothing.
TEST_F(Systemd, ThatDoesNotReadHoldsUpNothing) {
  Manager manager(folder_ / "notify");
  Job job(ddprun({"--max-restarts=40"}, worker({"on-round", "40", "exit", "0", "exit", "1"})),
          told_of(manager, {{"WATCHDOG_USEC", "200"}}));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(manager.lines().front(), "READY=1");
}

// All processes of a service end with it, so the manager keeps the memory, and passes it to the next start.
TEST_F(Systemd, KeepsTheMemoryForSnapshots) {
  const auto service = [&](const std::string& program, const std::string& then) {
    return ddprun({"--rdzv-id=a job", "--keep-memory=600", "--no-python"},
                  {program, "-c",
                   "cat /proc/self/fd/$DDPRUN_SNAPSHOT_FD; printf state "
                   ">>/proc/self/fd/$DDPRUN_SNAPSHOT_FD; echo >" +
                       finish() + "; " + then});
  };
  // As the manager starts it: the file is descriptor 3, and the variables are its process's.
  const auto started_with = [](const Manager& manager, const Command& command) {
    Command whole{"/bin/sh", "-c",
                  "exec 3<>/proc/" + std::to_string(getpid()) + "/fd/" +
                      std::to_string(manager.stored()) + "; LISTEN_PID=$$ exec \"$@\"",
                  "sh"};
    whole.insert(whole.end(), command.begin(), command.end());
    return whole;
  };
  const std::map<std::string, std::string> listen{{"LISTEN_FDS", "1"},
                                                  {"LISTEN_FDNAMES", "ddprun-a_job"}};
  Manager manager(folder_ / "notify");
  JobSetup setup = told_of(manager);
  setup.removed_variables = {"KUBERNETES_SERVICE_HOST"};
  Job first(service("/bin/sh", "exec sleep 1000"), setup);
  ASSERT_TRUE(first.reaches([&] { return std::filesystem::exists(finish()); })) << first.err();
  EXPECT_TRUE(manager.hears("FDSTORE=1"));
  EXPECT_TRUE(manager.hears("FDNAME=ddprun-a_job"));
  first.signal(SIGKILL);
  first.wait();
  EXPECT_THAT(first.left_over(), IsEmpty()) << "no process holds it";

  setup.environment.insert(listen.begin(), listen.end());
  Job failed(started_with(manager, service("/bin/sh", "exit 7")), setup);
  EXPECT_EQ(failed.wait(), exited(7)) << failed.err();
  EXPECT_EQ(failed.out(), "state");
  EXPECT_THAT(failed.err(), HasSubstr("are kept for the next ddprun of job 'a job', by the service "
                                      "manager\n"));
  EXPECT_THAT(manager.lines(), Not(Contains("FDSTOREREMOVE=1")));

  Job last(started_with(manager, service("/bin/sh", "exit 0")), setup);
  EXPECT_EQ(last.wait(), exited(0)) << last.err();
  EXPECT_EQ(last.out(), "statestate");
  EXPECT_TRUE(manager.hears("FDSTOREREMOVE=1"));

  Job other(started_with(manager, service("/bin/bash", "exit 0")), setup);
  EXPECT_EQ(other.wait(), exited(0)) << other.err();
  EXPECT_EQ(other.out(), "");
  EXPECT_THAT(other.err(),
              HasSubstr("the memory kept of job 'a job' is of another program, /bin/sh; "
                        "it is not used\n"));
}

// ---- the unit file

constexpr char kUnit[] = DDPRUN_SOURCE_DIR "/scripts/systemd/ddprun@.service";

std::set<int> codes_in_unit(const std::string& key) {
  std::istringstream unit(read_file(kUnit));
  std::set<int> codes;
  for (std::string line; std::getline(unit, line);) {
    if (line.rfind(key + "=", 0) != 0) continue;
    std::istringstream words(line.substr(key.size() + 1));
    for (int code = 0; words >> code;) codes.insert(code);
  }
  return codes;
}

TEST(SystemdUnit, StartsAgainWhatANewStartCanCure) {
  EXPECT_EQ(
      codes_in_unit("RestartPreventExitStatus"),
      (std::set{kExitUsage, kExitWorkerStuck, kExitNoProgress, kExitNotExecutable, kExitNotFound}));
  EXPECT_EQ(codes_in_unit("SuccessExitStatus"), std::set{128 + SIGTERM});
  EXPECT_THAT(read_file(kUnit), AllOf(HasSubstr("\nType=notify\n"), HasSubstr("\nKillMode=mixed\n"),
                                      HasSubstr("\nRestart=on-failure\n")));
}

TEST(SystemdUnit, IsWhatSystemdAccepts) {
  Job version({"systemd-analyze", "--version"});
  if (version.wait() != exited(0)) GTEST_SKIP() << "no systemd-analyze here";
  const TemporaryTree folder;
  std::string unit = read_file(kUnit);
  const std::string installed = "/usr/local/bin/ddprun";
  const auto at = unit.find(installed);
  ASSERT_NE(at, std::string::npos);
  unit.replace(at, installed.size(), ddprun({}).front());
  write_file(folder / "ddprun@.service", unit);
  Job verify({"systemd-analyze", "verify", "--man=no", folder / "ddprun@.service"});
  EXPECT_EQ(verify.wait(), exited(0));
  EXPECT_EQ(verify.err(), "");
}

}  // namespace
}  // namespace ddprun::test
