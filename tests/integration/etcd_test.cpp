// Jobs whose agents elect the leader in a real etcd: any node may die, and etcd may be unavailable,
// slow to come back, full, locked, or contain data of other programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/common/unique_fd.h"
#include "tests/support/cluster.h"
#include "tests/support/etcd_server.h"
#include "tests/support/http_server.h"
#include "tests/support/raw_http.h"

namespace ddprun::test {
namespace {

using namespace std::chrono_literals;
using ::testing::_;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr seconds kLease{2};
constexpr const char* kConf = "lease_time=2";
constexpr int kUsage = 2;

// In a network of its own, if it can be had: elsewhere another test's leader may get the port of one that was killed, and
// in etcd its address stands until its lease ends.
void leave_the_network_of_other_tests() {
  if (::unshare(CLONE_NEWNET) != 0) return;
  const rdzv::UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq loopback{};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP | IFF_RUNNING;
  ASSERT_EQ(::ioctl(socket.get(), SIOCSIFFLAGS, &loopback), 0);
}

class Etcd : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { leave_the_network_of_other_tests(); }
  void SetUp() override {
    if (const std::string obstacle = EtcdServers::obstacle(); !obstacle.empty()) {
      GTEST_SKIP() << obstacle;
    }
  }
};

ClusterSetup setup(const EtcdServers& etcd, ClusterSetup more = {}) {
  more.meeting = Meeting::kEtcd;
  more.etcd = etcd.endpoints();
  more.conf = more.conf.empty() ? kConf : kConf + ("," + more.conf);
  return more;
}

int await_leader(const Cluster& cluster, const EtcdServers& etcd, int other_than = -1) {
  int node = -1;
  eventually([&] {
    node = leading_node(cluster, etcd);
    return node >= 0 && node != other_than;
  });
  return node;
}

void expect_good_end(Cluster& cluster) {
  cluster.let_finish();
  EXPECT_THAT(cluster.wait(), Each(Pair(_, exited(0)))) << cluster.told();
  EXPECT_THAT(cluster.left_over(), IsEmpty());
}

// What one agent on its own has to say.
Job& lonely(Cluster& cluster) { return cluster.start(0); }

// ---- the job

TEST_F(Etcd, AJobRunsAndLeavesItsEnd) {
  const EtcdServers etcd;
  Cluster cluster(setup(etcd, {.nnodes = "3", .nproc = 2}));
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(6), 0) << cluster.told();
  EXPECT_THAT(etcd.get("/ddprun/job/job"), HasSubstr(R"("round":0,"nodes":3,"restarts":0)"));
  expect_good_end(cluster);
  EXPECT_THAT(etcd.get("/ddprun/job/job"), HasSubstr(R"("ended":"succeeded")"));
  EXPECT_EQ(etcd.get("/ddprun/job/leader"), "");
}

TEST_F(Etcd, AnIdMayBeUsedAgain) {
  const EtcdServers etcd;
  for (int run = 0; run < 2; ++run) {
    Cluster cluster(setup(etcd, {.options = {"--max-restarts=1"}}));
    cluster.start_all(2);
    ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
    ::kill(cluster.workers(0).at(1).pid, SIGKILL);
    ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
    EXPECT_THAT(etcd.get("/ddprun/job/job"), HasSubstr(R"("restarts":1)"));
    expect_good_end(cluster);
  }
}

TEST_F(Etcd, AFailureEndsTheJobOnAllNodesAlike) {
  const EtcdServers etcd;
  Cluster cluster(setup(etcd, {.actions = {"on-rank", "1", "exit", "7", "wait"}}));
  cluster.start_all(2);
  EXPECT_THAT(cluster.wait(), Each(Pair(_, exited(7)))) << cluster.told();
  EXPECT_THAT(etcd.get("/ddprun/job/job"), HasSubstr(R"("ended":"failed")"));
}

TEST_F(Etcd, DdpctlReachesAllNodesAlsoAfterTheLossOfTheLeader) {
  const EtcdServers etcd;
  const TemporaryTree sockets;
  const JobSetup here{.environment = {{"XDG_RUNTIME_DIR", sockets.path()}}};
  Cluster cluster(setup(etcd, {.nnodes = "2:3", .environment = here.environment}));
  const auto ask = [&](const Command& arguments) {
    Job command(ddpctl(arguments), here);
    EXPECT_EQ(command.wait(), exited(0)) << command.err() << cluster.told();
    return command.out();
  };
  const auto nodes_seen_by = [&](int node) {
    const auto status =
        boost::json::parse(ask({"status", "--json", std::to_string(cluster[node].pid())}));
    return status.at("nodes").as_array().size();
  };
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(3), 0) << cluster.told();
  for (const int node : {0, 1, 2}) EXPECT_EQ(nodes_seen_by(node), 3U) << node;
  const int leader = await_leader(cluster, etcd);
  cluster[leader].signal(SIGKILL);
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  const int other = (leader + 1) % 3;
  EXPECT_EQ(nodes_seen_by(other), 2U);
  EXPECT_EQ(ask({"restart", std::to_string(cluster[other].pid())}), "round 2 runs\n");
  ASSERT_EQ(cluster.next_round(2), 2) << cluster.told();
  EXPECT_THAT(etcd.get("/ddprun/job/job"), HasSubstr(R"("restarts":0)")) << "it costs nothing";
  EXPECT_EQ(ask({"stop", std::to_string(cluster[other].pid())}),
            "the job has ended with exit code 143\n");
  EXPECT_EQ(cluster[(leader + 2) % 3].wait(), exited(143)) << cluster.told();
  EXPECT_THAT(etcd.get("/ddprun/job/job"), HasSubstr(R"("ended":"stopped")"));
}

// ---- the leader goes

TEST_F(Etcd, TheOthersGoOnWhenTheLeaderIsKilled) {
  const EtcdServers etcd;
  Cluster cluster(setup(etcd, {.nnodes = "2:3"}));
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(3), 0) << cluster.told();
  const int leader = await_leader(cluster, etcd);
  cluster[leader].signal(SIGKILL);
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  EXPECT_NE(await_leader(cluster, etcd), leader);
  cluster.start(leader);
  ASSERT_EQ(cluster.next_round(3), 2) << cluster.told();
  EXPECT_THAT(etcd.get("/ddprun/job/job"), HasSubstr(R"("restarts":0)")) << "a loss costs nothing";
  expect_good_end(cluster);
}

TEST_F(Etcd, TheBudgetSurvivesTheLeader) {
  const EtcdServers etcd;
  Cluster cluster(setup(etcd, {.nnodes = "1:2", .options = {"--max-restarts=1"}}));
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  ::kill(cluster.workers(0).at(0).pid, SIGKILL);
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  const int leader = await_leader(cluster, etcd);
  cluster[leader].signal(SIGKILL);
  ASSERT_EQ(cluster.next_round(1), 2) << cluster.told();
  ::kill(cluster.workers(2).at(0).pid, SIGKILL);
  EXPECT_EQ(cluster[1 - leader].wait(), exited(128 + SIGKILL)) << cluster.told();
}

TEST_F(Etcd, NodesThatAreLeftOutSurviveTheLeader) {
  const EtcdServers etcd;
  const TemporaryTree sockets;
  const JobSetup here{.environment = {{"XDG_RUNTIME_DIR", sockets.path()}}};
  Cluster cluster(setup(etcd, {.nnodes = "2", .environment = here.environment}));
  const auto address = [](int node) { return "127.0.0." + std::to_string(node + 1); };
  const auto start = [&](int node) { cluster.start(node, {"--local-addr=" + address(node)}); };
  for (const int node : {0, 1}) start(node);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  for (const int node : {2, 3}) {
    start(node);
    ASSERT_TRUE(cluster[node].reaches([&] {
      return cluster[node].err().find("this node waits") != std::string::npos;
    })) << cluster.told();
  }
  const int leader = await_leader(cluster, etcd);
  ASSERT_LT(leader, 2) << cluster.told();
  const int drained = 1 - leader;
  Job drain(ddpctl({"drain", address(drained), std::to_string(cluster[drained].pid())}), here);
  EXPECT_EQ(drain.wait(), exited(0)) << drain.err() << cluster.told();
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  EXPECT_FALSE(cluster.first_ranks(1).contains(drained)) << cluster.told();
  cluster[leader].signal(SIGKILL);
  ASSERT_EQ(cluster.next_round(2), 2) << cluster.told();
  EXPECT_THAT(cluster.first_ranks(2), ElementsAre(Pair(2, _), Pair(3, _))) << cluster.told();
  cluster.forget(leader);
  expect_good_end(cluster);
}

TEST_F(Etcd, ALeaderThatIsKilledAndStartedAgainAtOnceIsAnyNode) {
  const EtcdServers etcd;
  Cluster cluster(setup(etcd, {.options = {"--max-restarts=1"}}));
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  ::kill(cluster.workers(0).at(0).pid, SIGKILL);
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  const int leader = await_leader(cluster, etcd);
  cluster[leader].signal(SIGKILL);
  cluster[leader].wait();
  cluster.start(leader);
  const int round = cluster.next_round(2);
  ASSERT_GE(round, 2) << cluster.told();
  EXPECT_THAT(etcd.get("/ddprun/job/job"), HasSubstr(R"("restarts":1)"));
  ::kill(cluster.workers(round).at(0).pid, SIGKILL);
  EXPECT_THAT(cluster.wait(), Each(Pair(_, exited(128 + SIGKILL)))) << cluster.told();
}

TEST_F(Etcd, APausedLeaderFindsItselfDeposedAndHarmsNothing) {
  const EtcdServers etcd;
  Cluster cluster(setup(etcd, {.nnodes = "2:3"}));
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(3), 0) << cluster.told();
  const int leader = await_leader(cluster, etcd);
  cluster[leader].signal(SIGSTOP);
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  const std::string record = etcd.get("/ddprun/job/job");
  EXPECT_THAT(record, HasSubstr(R"("round":1,"nodes":2)"));
  cluster[leader].signal(SIGCONT);
  ASSERT_EQ(cluster.next_round(3), 2) << cluster.told();
  EXPECT_THAT(cluster[leader].err(), HasSubstr("this node no longer leads"));
  EXPECT_NE(await_leader(cluster, etcd), leader);
  expect_good_end(cluster);
}

// Leases are etcd's to measure, and everything else is measured by clocks that cannot be set.
TEST_F(Etcd, ClocksThatDifferChangeNothing) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "what is preloaded has to come after the sanitizer";
#endif
  const std::map<std::string, std::string> environment{{"LD_PRELOAD", DDPRUN_WRONG_CLOCK}};
  Job date({"/bin/date", "+%s"}, {.environment = environment});
  ASSERT_EQ(date.wait(), exited(0)) << date.err();
  ASSERT_GT(std::abs(std::stoll(date.out()) - static_cast<long long>(std::time(nullptr))), 60)
      << "the clocks are right";

  const EtcdServers etcd;
  Cluster cluster(setup(etcd, {.nnodes = "2:3", .environment = environment}));
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(3), 0) << cluster.told();
  const int leader = await_leader(cluster, etcd);
  cluster[leader].signal(SIGKILL);
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  const int next_leader = await_leader(cluster, etcd, leader);
  cluster.start(leader);
  ASSERT_EQ(cluster.next_round(3), 2) << cluster.told();
  cluster[next_leader].signal(SIGSTOP);
  ASSERT_EQ(cluster.next_round(2), 3) << cluster.told();
  cluster[next_leader].signal(SIGCONT);
  ASSERT_EQ(cluster.next_round(3), 4) << cluster.told();
  expect_good_end(cluster);
}

TEST_F(Etcd, ALeaderThatLeavesHandsOverAtOnce) {
  const EtcdServers etcd;
  Cluster cluster(setup(etcd, {.nnodes = "2:3", .conf = "lease_time=20"}));
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(3), 0) << cluster.told();
  const int leader = await_leader(cluster, etcd);
  cluster[leader].signal(SIGTERM);
  ASSERT_EQ(cluster.next_round(2, 10s), 1) << cluster.told();
  EXPECT_EQ(cluster[leader].wait(), exited(128 + SIGTERM)) << cluster.told();
  cluster.forget(leader);
  expect_good_end(cluster);
}

TEST_F(Etcd, AJobThatIsStoppedOnAllNodesHasEnded) {
  const EtcdServers etcd;
  Cluster cluster(setup(etcd, {.nnodes = "2:3"}));
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(3), 0) << cluster.told();
  for (int node = 0; node < 3; ++node) cluster[node].signal(SIGTERM);
  EXPECT_THAT(cluster.wait(), Each(Pair(_, exited(128 + SIGTERM)))) << cluster.told();
  EXPECT_THAT(etcd.get("/ddprun/job/job"), HasSubstr(R"("ended":"stopped")"));
  EXPECT_EQ(etcd.get("/ddprun/job/leader"), "");
}

TEST_F(Etcd, AJobThatWasKilledOnAllNodesGoesOnWhenItIsStartedAgain) {
  const EtcdServers etcd;
  Cluster cluster(setup(etcd, {.options = {"--max-restarts=1"}}));
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  ::kill(cluster.workers(0).at(0).pid, SIGKILL);
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  for (int node = 0; node < 2; ++node) {
    cluster[node].signal(SIGKILL);
    cluster[node].wait();
  }
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 2) << cluster.told();
  EXPECT_THAT(etcd.get("/ddprun/job/job"), HasSubstr(R"("restarts":1)"));
  expect_good_end(cluster);
}

// ---- etcd goes

TEST_F(Etcd, WorkersRunOnWhileEtcdRestarts) {
  EtcdServers etcd;
  Cluster cluster(setup(etcd));
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  etcd.kill(0);
  etcd.start(0);
  ASSERT_TRUE(eventually([&] { return etcd.answers(); })) << etcd.told();
  EXPECT_GE(await_leader(cluster, etcd), 0);
  expect_good_end(cluster);
  EXPECT_EQ(cluster.last_round(), 0) << cluster.told();
}

TEST_F(Etcd, WhatIsDecidedWaitsForEtcd) {
  EtcdServers etcd;
  Cluster cluster(setup(etcd, {.options = {"--max-restarts=1"}}));
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  etcd.kill(0);
  ::kill(cluster.workers(0).at(0).pid, SIGKILL);
  ASSERT_TRUE(eventually([&] {
    return cluster.told().find("waits for etcd") != std::string::npos;
  })) << cluster.told();
  EXPECT_EQ(cluster.last_round(), 0) << "round 1 has begun, and etcd does not know";
  etcd.start(0);
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  EXPECT_THAT(etcd.get("/ddprun/job/job"), HasSubstr(R"("round":1,"nodes":2,"restarts":1)"));
  expect_good_end(cluster);
}

TEST_F(Etcd, EveryMajorityOfEtcdWillDo) {
  EtcdServers etcd({.members = 3});
  Cluster cluster(setup(etcd, {.nnodes = "2:3"}));
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(3), 0) << cluster.told();
  const int member = etcd.leader();
  ASSERT_GE(member, 0) << etcd.told();
  etcd.kill(member);
  ASSERT_TRUE(eventually([&] { return !etcd.get("/ddprun/job/job").empty(); })) << etcd.told();
  const int leader = await_leader(cluster, etcd);
  EXPECT_EQ(cluster.last_round(), 0) << cluster.told();
  cluster[leader].signal(SIGKILL);
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  cluster.forget(leader);
  expect_good_end(cluster);
}

// It keeps its connections and says nothing: only time tells.
TEST_F(Etcd, AMemberThatHangsIsPassedBy) {
  EtcdServers etcd({.members = 3});
  Cluster cluster(setup(etcd, {.nnodes = "2:3"}));
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(3), 0) << cluster.told();
  const int leader = await_leader(cluster, etcd);
  etcd.signal(0, SIGSTOP);  // the one that all of them ask first, and watch
  cluster[leader].signal(SIGKILL);
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  etcd.signal(0, SIGCONT);
  cluster.forget(leader);
  expect_good_end(cluster);
}

// ---- what may be wrong with it

// Stands between the agents and etcd: the connection breaks before the answer of a claim is through.
// Every request has a connection of its own to etcd; a watch is over when this is.
class ClaimsUnanswered {
 public:
  ClaimsUnanswered(std::uint16_t etcd, int count)
      : etcd_(etcd), left_(count), server_([this](auto& client) { serve(client); }) {}
  ~ClaimsUnanswered() { is_over_ = true; }

  std::string endpoint() const { return server_.endpoint().to_string(); }
  int swallowed() const { return swallowed_; }
  int revoked() const { return revoked_; }

 private:
  void serve(HttpServer::Connection& client) {
    while (const auto request = client.read()) {
      revoked_ += request->target == "/v3/lease/revoke" ? 1 : 0;
      RawHttp etcd(etcd_);
      etcd.send("POST " + request->target + " HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n" +
                "Content-Length: " + std::to_string(request->body.size()) + "\r\n\r\n" +
                request->body);
      const bool is_claim = request->body.find(R"("target":"CREATE")") != std::string::npos &&
                            request->body.find(R"("createRevision":"0")") != std::string::npos;
      if (is_claim && left_ > 0) {
        left_ -= 1;
        swallowed_ += 1;
        etcd.read_all();
        return;
      }
      char bytes[16'384];
      while (!is_over_) {
        pollfd ready{etcd.fd(), POLLIN, 0};
        if (::poll(&ready, 1, 50) == 0) continue;
        const ssize_t count = ::recv(etcd.fd(), bytes, sizeof bytes, 0);
        if (count <= 0) return;
        if (!client.write({bytes, static_cast<std::size_t>(count)})) return;
      }
    }
  }

  const std::uint16_t etcd_;
  std::atomic<int> left_;
  std::atomic<int> swallowed_{0};
  std::atomic<int> revoked_{0};
  std::atomic<bool> is_over_{false};
  HttpServer server_;  // its threads use what stands before it
};

TEST_F(Etcd, AClaimWhoseAnswerIsLostHasWon) {
  const EtcdServers etcd;
  const std::string direct = etcd.endpoint(0);
  const ClaimsUnanswered between(
      static_cast<std::uint16_t>(std::stoi(direct.substr(direct.rfind(':') + 1))), 1);
  ClusterSetup through = setup(etcd);
  through.etcd = between.endpoint() + "," + between.endpoint();
  Cluster cluster(through);
  cluster.start(0);
  ASSERT_EQ(await_leader(cluster, etcd), 0) << cluster.told();
  cluster.start(1);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  EXPECT_EQ(between.swallowed(), 1);
  EXPECT_EQ(between.revoked(), 0) << "the lease of the claim that has won";
  expect_good_end(cluster);
}

TEST_F(Etcd, PasswordsAreAskedForAndChecked) {
  const TemporaryTree folder;
  const EtcdServers etcd({.password = "sesame"});
  write_file(folder / "right", "sesame\n", 0600);
  write_file(folder / "wrong", "mustard\n", 0600);
  // A request may take a third of a lease, and etcd needs its time for a password where processors are busy.
  const std::string patient = "lease_time=10";
  const auto end_with = [&](const std::string& conf) {
    Cluster cluster(setup(etcd, {.conf = patient + conf}));
    Job& job = lonely(cluster);
    EXPECT_EQ(job.wait(), exited(kUsage)) << job.err();
    return job.err();
  };
  EXPECT_THAT(end_with(",user=root,password_file=" + (folder / "wrong")),
              HasSubstr("invalid user ID or password"));
  EXPECT_THAT(end_with(""), HasSubstr("user name is empty"));
  Cluster cluster(
      setup(etcd, {.conf = patient + ",user=root,password_file=" + (folder / "right")}));
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  expect_good_end(cluster);
}

TEST_F(Etcd, CertificatesAreAskedForAndChecked) {
  const TemporaryTree folder;
  const Certificates certificates(folder.path());
  const EtcdServers etcd({.certificates = &certificates, .wants_client_certificate = true});
  const std::string ours = ",cert=" + certificates.client + ",key=" + certificates.client_key;
  {
    Cluster cluster(setup(etcd, {.conf = "ca_cert=" + certificates.other_ca + ours}));
    Job& job = lonely(cluster);
    EXPECT_EQ(job.wait(), exited(kUsage)) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("is not trusted"));
  }
  {
    Cluster cluster(setup(etcd, {.conf = "ca_cert=" + certificates.ca}));
    Job& job = lonely(cluster);
    EXPECT_EQ(job.wait(), exited(kUsage)) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("certificate"));
  }
  {
    Cluster cluster(setup(etcd, {.conf = "ca_cert=/no/such/file"}));
    Job& job = lonely(cluster);
    EXPECT_EQ(job.wait(), exited(kUsage)) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("the CA file /no/such/file: No such file"));
  }
  Cluster cluster(setup(etcd, {.conf = "ca_cert=" + certificates.ca + ours}));
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  expect_good_end(cluster);
}

TEST_F(Etcd, ItIsSaidThatNobodyAnswers) {
  Cluster cluster({.meeting = Meeting::kEtcd, .conf = "join_timeout=1", .etcd = "127.0.0.1:1"});
  Job& job = lonely(cluster);
  EXPECT_EQ(job.wait(), exited(kRendezvousTimeout)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("127.0.0.1:1: Connection refused"));
}

TEST_F(Etcd, AFullEtcdIsWaitedFor) {
  const EtcdServers etcd({.quota_bytes = "400000"});
  Cluster cluster(setup(etcd, {.options = {"--max-restarts=1"}}));
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  const TemporaryTree folder;
  while (!etcd.etcdctl({"put", "waste", std::string(100'000, 'x')}).empty()) {
  }
  ASSERT_THAT(etcd.etcdctl({"alarm", "list"}), HasSubstr("NOSPACE"));
  ::kill(cluster.workers(0).at(0).pid, SIGKILL);
  ASSERT_TRUE(eventually([&] {
    return cluster.told().find("database space exceeded") != std::string::npos;
  })) << cluster.told();
  EXPECT_EQ(cluster.last_round(), 0);
  {
    Cluster other(setup(etcd, {.conf = "join_timeout=1,etcd_prefix=/other"}));
    Job& job = lonely(other);
    EXPECT_EQ(job.wait(), exited(kRendezvousTimeout)) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("accepts no more writes"));
  }
  // As its administrator would make room.
  etcd.etcdctl({"del", "waste"});
  const std::string status = etcd.etcdctl({"endpoint", "status", "-w", "json"});
  const auto at = status.find("\"revision\":") + 11;
  etcd.etcdctl({"compact", status.substr(at, status.find_first_of(",}", at) - at)});
  etcd.etcdctl({"defrag"});
  etcd.etcdctl({"alarm", "disarm"});
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told() << etcd.etcdctl({"alarm", "list"});
  expect_good_end(cluster);
}

TEST_F(Etcd, ForeignDataUnderTheJobsKeysIsRefused) {
  const EtcdServers etcd;
  for (const std::string text : {"hello", "{\"a\":1}", "{\"ddprun\":2}", "{\"ddprun\":1}"}) {
    etcd.etcdctl({"put", "/ddprun/job/job", text});
    Cluster cluster(setup(etcd));
    Job& job = lonely(cluster);
    EXPECT_EQ(job.wait(), exited(kUsage)) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("etcd has something else under /ddprun/job/job"));
  }
}

TEST_F(Etcd, AnotherJobOfTheSameIdIsRefused) {
  const EtcdServers etcd;
  Cluster cluster(setup(etcd));
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  Cluster other(setup(etcd, {.nnodes = "5"}));
  Job& job = lonely(other);
  EXPECT_EQ(job.wait(), exited(kUsage)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("--nnodes"));
  expect_good_end(cluster);
}

// ---- many times

// Every round as the agents that ran it noted it: who of it agrees with whom.
void expect_no_round_twice(const std::vector<std::string>& event_files) {
  struct Seen {
    std::string place;
    std::int64_t world = 0;
    std::set<std::int64_t> nodes;
  };
  std::map<std::int64_t, Seen> rounds;
  for (const std::string& file : event_files) {
    std::istringstream lines(read_file(file));
    for (std::string line; std::getline(lines, line);) {
      boost::system::error_code ec;
      const auto event = boost::json::parse(line, ec);
      if (ec || event.at("event") != "round_started") continue;
      Seen& seen = rounds[event.at("round").as_int64()];
      const std::string place = std::string(event.at("master_addr").as_string()) + " " +
                                std::to_string(event.at("master_port").as_int64());
      if (seen.place.empty()) seen = {place, event.at("world_size").as_int64(), {}};
      EXPECT_EQ(seen.place, place) << line;
      EXPECT_EQ(seen.world, event.at("world_size").as_int64()) << line;
      EXPECT_TRUE(seen.nodes.insert(event.at("node_rank").as_int64()).second) << line;
    }
  }
}

TEST_F(Etcd, NoRoundIsLostOrDoubledByKillsAtAnyMoment) {
  const int kills = full_tests() ? 50 : 6;
  const EtcdServers etcd;
  for (int seed = 0; seed < kills; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(static_cast<unsigned>(seed));
    Cluster cluster(setup(etcd, {.nnodes = "2:3",
                                 .options = {"--max-restarts=5"},
                                 .conf = "etcd_prefix=/seed" + std::to_string(seed)}));
    std::vector<std::string> files;
    for (int node = 0; node < 3; ++node) {
      files.push_back(cluster.folder() / ("events." + std::to_string(node)));
      cluster.start(node, {"--events=" + files.back()});
    }
    // While the group forms, or just when it runs: the time is what the seed is about.
    std::this_thread::sleep_for(milliseconds(random() % 1500));
    const auto victim = static_cast<int>(random() % 3);
    cluster[victim].signal(SIGKILL);
    cluster[victim].wait();
    cluster.forget(victim);
    ASSERT_GE(cluster.next_round(2), 0) << cluster.told();
    expect_good_end(cluster);
    expect_no_round_twice(files);
  }
}

milliseconds median(std::vector<milliseconds> times) {
  std::ranges::sort(times);
  return times[times.size() / 2];
}

// From the signal to the first instruction of the next round's last worker.
milliseconds time_to_next_round(const EtcdServers& etcd, int signal) {
  Cluster cluster(setup(etcd, {.nnodes = "2:3"}));
  cluster.start_all(3);
  EXPECT_EQ(cluster.next_round(3), 0) << cluster.told();
  const int leader = await_leader(cluster, etcd);
  const auto since = std::chrono::steady_clock::now();
  cluster[leader].signal(signal);
  EXPECT_EQ(cluster.next_round(2), 1) << cluster.told();
  std::int64_t last = 0;
  for (const auto& [rank, stamp] : cluster.workers(1)) last = std::max(last, stamp.at_ns);
  if (signal == SIGSTOP) cluster[leader].signal(SIGKILL);
  cluster[leader].wait();
  cluster.forget(leader);
  expect_good_end(cluster);
  return std::chrono::duration_cast<milliseconds>(std::chrono::nanoseconds(last) -
                                                  since.time_since_epoch());
}

TEST_F(Etcd, TheNextRoundRunsSoonAfterTheLeadersLoss) {
  const int count = full_tests() ? 15 : 3;
  const EtcdServers etcd;
  for (const int signal : {SIGKILL, SIGSTOP}) {
    std::vector<milliseconds> times;
    times.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) times.push_back(time_to_next_round(etcd, signal));
    const auto figure = median(times);
    const char* how = signal == SIGKILL ? "its agent was killed" : "its machine fell silent";
    std::cout << "from the leader's loss (" << how << ") to the next round, lease 2 s: median "
              << figure.count() << " ms of " << count << "\n";
    EXPECT_LE(figure, kLease + 1s) << how;
  }
}

}  // namespace
}  // namespace ddprun::test
