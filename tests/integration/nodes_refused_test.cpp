// Nodes with other settings, of other jobs or without the token, and endpoints that are not a
// leader: each is refused with a sentence that says what to change, and the running job continues.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/net/listener.h"
#include "tests/support/cluster.h"

namespace ddprun::test {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

constexpr int kRefused = 2;

void expect_good_end(Cluster& cluster) {
  cluster.let_finish();
  EXPECT_THAT(cluster.wait(), Each(Pair(_, exited(0)))) << cluster.told();
  EXPECT_THAT(cluster.left_over(), IsEmpty());
}

bool has_said(const Job& job, const std::string& words) {
  return job.err().find(words) != std::string::npos;
}

class RefusedNode : public ::testing::TestWithParam<Meeting> {
 protected:
  // Starts node 0 of two, this one, and then the real node 1; returns what the refused one said.
  std::string refused_of(Cluster& cluster, const Command& stranger) {
    // The first one says what the job is.
    Job& first = cluster.start(0);
    EXPECT_TRUE(first.reaches([&] { return has_said(first, "1 of 2 are here"); })) << first.err();
    Job refused(stranger);
    EXPECT_EQ(refused.wait(), exited(kRefused)) << refused.err() << cluster.told();
    EXPECT_TRUE(cluster.leader().reaches([&] { return has_said(cluster.leader(), "turned away"); }))
        << cluster.told();
    EXPECT_THAT(refused.left_over(), IsEmpty());
    cluster.start(1);
    EXPECT_EQ(cluster.next_round(2), 0) << cluster.told();
    expect_good_end(cluster);
    return refused.err();
  }
};
INSTANTIATE_TEST_SUITE_P(By, RefusedNode,
                         ::testing::Values(Meeting::kStatic, Meeting::kC10d, Meeting::kLeader),
                         [](const auto& which) { return ::testing::PrintToString(which.param); });

TEST_P(RefusedNode, AsksForAnotherNumberOfNodes) {
  Cluster cluster({.meeting = GetParam()});
  EXPECT_THAT(refused_of(cluster, cluster.command(1, {"--nnodes=3"})),
              AllOf(HasSubstr("--nnodes=3"), HasSubstr("--nnodes=2"), HasSubstr("the same")));
}

TEST_P(RefusedNode, AsksForAnotherNumberOfRestarts) {
  Cluster cluster({.meeting = GetParam(), .options = {"--max-restarts=2"}});
  EXPECT_THAT(
      refused_of(cluster, cluster.command(1, {"--max-restarts=5"})),
      AllOf(HasSubstr("--max-restarts=5"), HasSubstr("--max-restarts=2"), HasSubstr("the same")));
}

TEST_P(RefusedNode, BelongsToAnotherJob) {
  Cluster cluster({.meeting = GetParam(), .options = {"--rdzv-id=job"}});
  EXPECT_THAT(refused_of(cluster, cluster.command(1, {"--rdzv-id=another"})),
              AllOf(HasSubstr("'another'"), HasSubstr("'job'"), HasSubstr("--rdzv-id")));
}

TEST_P(RefusedNode, RunsAnotherProgram) {
  Cluster cluster({.meeting = GetParam()});
  Command stranger = cluster.command(1);
  const auto program = std::find_if(stranger.begin() + 1, stranger.end(),
                                    [](const std::string& word) { return word[0] != '-'; });
  stranger.erase(program, stranger.end());
  stranger.insert(stranger.end(), {"/bin/sleep", "1000"});
  EXPECT_THAT(refused_of(cluster, stranger),
              AllOf(HasSubstr("program sleep"), HasSubstr("ddprun_meeting_worker")));
}

TEST_P(RefusedNode, IsAnotherUsers) {
  Cluster cluster({.meeting = GetParam()});
  const Command as_another{"setpriv", "--reuid=65534", "--clear-groups", "--"};
  const auto by_another = [&](const Command& command) {
    Command whole = as_another;
    whole.insert(whole.end(), command.begin(), command.end());
    return whole;
  };
  if (Job(by_another(ddprun({"--version"}))).wait() != exited(0)) {
    GTEST_SKIP() << "only root can start a program as another user, who must be able to read it";
  }
  EXPECT_THAT(refused_of(cluster, by_another(cluster.command(1))), HasSubstr("as user 65534"));
}

// The job that waits for it says so: at once, in its waiting lines, and in the end.
TEST(RefusedStaticNode, IsNamedWhereItIsAwaited) {
  Cluster cluster({.meeting = Meeting::kStatic, .conf = "timeout=12"});
  Job& first = cluster.start(0);
  ASSERT_TRUE(first.reaches([&] { return has_said(first, "1 of 2 are here"); })) << first.err();
  Job refused(cluster.command(1, {"--max-restarts=5"}));
  EXPECT_EQ(refused.wait(), exited(kRefused)) << refused.err();
  EXPECT_EQ(first.wait(), exited(kRendezvousTimeout)) << first.err();
  const std::string why =
      ": it asks for --max-restarts=5, the job was started with --max-restarts=0; give every node "
      "the same";
  EXPECT_THAT(first.err(), ContainsRegex("leader: turned away .+ \\(127.0.0.1\\)" + why));
  EXPECT_THAT(first.err(),
              ContainsRegex("1 of 2 are here, 2 s left; node rank 1 is missing; .+ was "
                            "turned away" +
                            why));
  EXPECT_THAT(first.err(),
              ContainsRegex("CANNOT RUN: 1 of 2 nodes came within 12 s; node rank 1 is "
                            "missing; .+ was turned away" +
                            why + "\n"));
  EXPECT_EQ(count_of("nodes on other hosts", first.err()), 1U) << first.err();
}

// A leader of its own has the lines of node 0, from before the first node comes.
TEST(NodeRefusedByALeaderThatIsNone, IsNamedWhereItIsAwaited) {
  Cluster cluster({.meeting = Meeting::kLeader, .conf = "join_timeout=14"});
  cluster.start_leader();
  Job& leader = cluster.leader();
  const std::string first =
      "ddpctl: this process leads at 127.0.0.1:" + std::to_string(cluster.port()) +
      "; waiting for nodes: 0 of 2 are here, 14 s left; nodes on other hosts "
      "cannot reach 127.0.0.1: give --listen this host's name\n";
  ASSERT_TRUE(leader.reaches([&] { return has_said(leader, first); })) << leader.err();
  Job& node = cluster.start(0);
  ASSERT_TRUE(node.reaches([&] { return has_said(node, "1 of 2 are here"); })) << node.err();
  Job refused(cluster.command(1, {"--max-restarts=5"}));
  EXPECT_EQ(refused.wait(), exited(kRefused)) << refused.err();
  EXPECT_EQ(leader.wait(), exited(kRendezvousTimeout)) << leader.err();
  EXPECT_THAT(leader.err(), ContainsRegex("\nddpctl: turned away .+ \\(127.0.0.1\\): it asks for"));
  EXPECT_THAT(leader.err(),
              ContainsRegex("\nddpctl: waiting for nodes: 1 of 2 are here, [0-9]+ s "
                            "left; .+ was turned away: it asks for --max-restarts=5"));
  EXPECT_EQ(count_of("waiting for nodes", leader.err()), 2U) << leader.err();
}

TEST(RefusedStaticNode, HasARankThatIsTakenOrOutOfRange) {
  Cluster cluster({.meeting = Meeting::kStatic, .nnodes = "3"});
  cluster.start(0);
  cluster.start(1);
  // Rank 1 is taken once its node has come; before that the stranger would be it.
  ASSERT_TRUE(cluster[1].reaches([&] { return has_said(cluster[1], "2 of 3 are here"); }))
      << cluster.told();
  EXPECT_THAT(cluster[0].err(), HasSubstr("; nodes on other hosts cannot reach 127.0.0.1: give "
                                          "--master-addr or --rdzv-endpoint this host's name"));
  const std::string port = std::to_string(cluster.port());
  for (const auto& [rank, says] :
       {std::pair{"0", port.c_str()}, {"1", "taken"}, {"3", "node-rank"}, {"-1", "node-rank"}}) {
    SCOPED_TRACE(rank);
    Job refused(cluster.command(2, {std::string("--node-rank=") + rank}));
    const Ended ended = refused.wait();
    EXPECT_TRUE(ended.code && *ended.code != 0) << ended << "\n" << refused.err();
    EXPECT_THAT(refused.err(), HasSubstr(says));
    EXPECT_THAT(refused.left_over(), IsEmpty());
  }
  cluster.start(2);
  ASSERT_EQ(cluster.next_round(3), 0) << cluster.told();
  expect_good_end(cluster);
}

// ---- the token

class Token : public ::testing::TestWithParam<Meeting> {
 protected:
  std::string file(const std::string& name, const std::string& content, int mode = 0600) {
    write_file(folder_ / name, content, mode);
    return folder_ / name;
  }
  TemporaryTree folder_;
};
INSTANTIATE_TEST_SUITE_P(By, Token, ::testing::Values(Meeting::kStatic, Meeting::kC10d),
                         [](const auto& which) { return ::testing::PrintToString(which.param); });

constexpr char kSecret[] = "correct horse battery staple";

TEST_P(Token, LetsThoseInWhoKnowItAndNobodyElse) {
  const std::string right = file("right", kSecret);
  Cluster cluster({.meeting = GetParam()});
  cluster.start(0, {"--token-file=" + right});
  const std::vector<std::vector<std::string>> strangers{
      {}, {"--token-file=" + file("wrong", "wrong horse")}};
  for (const auto& options : strangers) {
    SCOPED_TRACE(::testing::PrintToString(options));
    Job stranger(cluster.command(1, options));
    EXPECT_EQ(stranger.wait(), exited(kRefused)) << stranger.err() << cluster.told();
    EXPECT_THAT(stranger.err(), AllOf(HasSubstr("token"), Not(HasSubstr("horse"))));
  }
  cluster.start(
      1, {"--token-file=" + file("the same with a line's end", kSecret + std::string("\n"))});
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  EXPECT_THAT(cluster.told(), Not(HasSubstr("horse")));
  expect_good_end(cluster);
}

// A node with a token does not join a leader that has none, or another: it could be anybody.
TEST_P(Token, IsAskedOfTheLeaderToo) {
  Cluster cluster({.meeting = GetParam()});
  cluster.start(0);
  Job careful(cluster.command(1, {"--token-file=" + file("token", kSecret)}));
  EXPECT_EQ(careful.wait(), exited(kRefused)) << careful.err();
  EXPECT_THAT(careful.err(), HasSubstr("token"));
  cluster.start(1);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  expect_good_end(cluster);
}

TEST_P(Token, ThatOthersMayReadIsNone) {
  Cluster cluster({.meeting = GetParam()});
  for (const auto& path : {file("open", kSecret, 0644), file("empty", ""), folder_ / "absent"}) {
    Job job(cluster.command(0, {"--token-file=" + path}));
    EXPECT_EQ(job.wait(), exited(kRefused)) << path << job.err();
    EXPECT_THAT(job.err(), HasSubstr(path));
  }
}

// A process of another user. In a user namespace anybody is root, and so it can say that it is the
// job's user; only a token shows that it is not.
class StrangersNode : public ::testing::Test {
 protected:
  static Command by_another(const Command& command) {
    Command whole{
        "setpriv", "--reuid=65534", "--clear-groups", "unshare", "--user", "--map-root-user", "--"};
    whole.insert(whole.end(), command.begin(), command.end());
    return whole;
  }
  void SetUp() override {
    if (::getuid() != 0 || Job(by_another(ddprun({"--version"}))).wait() != exited(0))
      GTEST_SKIP() << "only root can be another user here, in a user namespace";
  }
  TemporaryTree folder_;
};

TEST_F(StrangersNode, TakesPartInAJobWithoutAToken) {
  Cluster cluster({.meeting = Meeting::kC10d});
  // Its worker notes there that it runs.
  std::filesystem::permissions(cluster.folder().path(), std::filesystem::perms::all);
  cluster.start(0);
  Job stranger(by_another(cluster.command(1)));
  EXPECT_EQ(cluster.next_round(2), 0) << stranger.err() << cluster.told();
  cluster.let_finish();
  EXPECT_EQ(stranger.wait(), exited(0)) << stranger.err();
  EXPECT_THAT(cluster.wait(), Each(Pair(_, exited(0)))) << cluster.told();
}

TEST_F(StrangersNode, IsRefusedWhereThereIsAToken) {
  const std::string token = folder_ / "token";
  ASSERT_EQ(Job(ddpctl({"token", token})).wait(), exited(0));
  EXPECT_EQ(Job(ddpctl({"token", token})).wait(), exited(1)) << "it is there already";
  Cluster cluster({.meeting = Meeting::kC10d});
  cluster.start(0, {"--token-file=" + token});
  Job stranger(by_another(cluster.command(1)));
  EXPECT_EQ(stranger.wait(), exited(kRefused)) << stranger.err();
  EXPECT_THAT(stranger.err(), HasSubstr("this job asks for a token"));
  Job reader(by_another(cluster.command(1, {"--token-file=" + token})));
  EXPECT_EQ(reader.wait(), exited(kRefused)) << reader.err();
  EXPECT_THAT(reader.err(), HasSubstr("ermission denied"));
  cluster.start(1, {"--token-file=" + token});
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  expect_good_end(cluster);
}

// ---- endpoints that are no leader

// Somebody else's server: says `greeting` to whoever has said something.
class OtherServer {
 public:
  explicit OtherServer(std::string answer)
      : listener_(rdzv::open_listener({}).value()), thread_([this, answer] { serve(answer); }) {}
  ~OtherServer() {
    is_over_ = true;
    thread_.join();
  }
  std::uint16_t port() const { return listener_.bound.port; }

 private:
  void serve(const std::string& answer) {
    std::vector<pollfd> polled{{listener_.socket.get(), POLLIN, 0}};
    std::vector<UniqueFd> clients;
    while (!is_over_) {
      poll(polled.data(), polled.size(), 10);
      for (std::size_t i = 1; i < polled.size(); ++i) {
        char heard[4096];
        if (polled[i].revents == 0) continue;
        const ssize_t size = recv(polled[i].fd, heard, sizeof heard, MSG_DONTWAIT);
        if (size > 0 && !answer.empty()) {
          send(polled[i].fd, answer.data(), answer.size(), MSG_NOSIGNAL);
          shutdown(polled[i].fd, SHUT_WR);
        }
        if (size <= 0) polled[i].fd = -1;
      }
      if (polled[0].revents != 0) {
        clients.emplace_back(accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
        polled.push_back({clients.back().get(), POLLIN, 0});
      }
    }
  }

  rdzv::Listener listener_;
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

class NoLeader : public ::testing::TestWithParam<Meeting> {
 protected:
  // Node 1 of a job whose node 0 is said to be at this port.
  static Command node_of(std::uint16_t port) {
    const std::string where = "127.0.0.1:" + std::to_string(port);
    std::vector<std::string> options{"--nnodes=2"};
    if (GetParam() == Meeting::kStatic) {
      options.insert(options.end(),
                     {"--node-rank=1", "--rdzv-endpoint=" + where, "--rdzv-conf=timeout=3"});
    } else {
      options.insert(options.end(), {"--rdzv-backend=c10d", "--rdzv-endpoint=" + where,
                                     "--rdzv-conf=join_timeout=3,is_host=0"});
    }
    return ddprun(options, worker({"wait"}));
  }
  // It has to end soon, with a sentence that names the endpoint.
  static std::string refusal_of(std::uint16_t port) {
    Job node(node_of(port));
    const Ended ended = node.wait();
    EXPECT_TRUE(ended.code == kRendezvousTimeout || ended.code == kRefused) << ended << "\n"
                                                                            << node.err();
    EXPECT_THAT(node.err(), HasSubstr("127.0.0.1:" + std::to_string(port)));
    EXPECT_THAT(node.left_over(), IsEmpty());
    return node.err();
  }
};
INSTANTIATE_TEST_SUITE_P(For, NoLeader, ::testing::Values(Meeting::kStatic, Meeting::kC10d),
                         [](const auto& which) { return ::testing::PrintToString(which.param); });

TEST_P(NoLeader, IsWhereNobodyListens) {
  const auto held = rdzv::reserve_port({}).value();
  EXPECT_THAT(refusal_of(held.bound.port), HasSubstr("3 s"));
}

TEST_P(NoLeader, IsAnHttpServer) {
  const OtherServer server("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
  EXPECT_THAT(refusal_of(server.port()), HasSubstr("ddprun"));
}

TEST_P(NoLeader, IsAServerThatNeverAnswers) {
  const OtherServer server("");
  refusal_of(server.port());
}

TEST_P(NoLeader, IsAStoreOfC10d) {
  const auto held = rdzv::reserve_port({}).value();
  const std::string where = "127.0.0.1:" + std::to_string(held.bound.port);
  Job store(ddpctl({"store", "--listen", where}));
  ASSERT_TRUE(store.reaches([&] { return !store.out().empty(); })) << store.err();
  EXPECT_THAT(refusal_of(held.bound.port), HasSubstr("ddprun"));
}

TEST_P(NoLeader, IsNoLongerAwaitedByWhoIsToldToStop) {
  const auto held = rdzv::reserve_port({}).value();
  Job node(node_of(held.bound.port));
  ASSERT_TRUE(node.reaches([&] { return handles(node.pid(), SIGTERM); })) << node.err();
  node.signal(SIGTERM);
  EXPECT_EQ(node.wait(), exited(143)) << node.err();
}

}  // namespace
}  // namespace ddprun::test
