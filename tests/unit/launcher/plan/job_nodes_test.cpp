// What the options under "Nodes" come to for one node of several.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "rendezvous/common/limits.h"
#include "tests/unit/launcher/plan/planning.h"

namespace ddprun::cli {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Leader = rdzv::LeaderSpec::Where;
using Words = std::vector<std::string>;

class PlanningNodes : public Planning {
 protected:
  static Words with(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  agent::Nodes nodes(const Words& base, const Words& more = {}) {
    return job(with(base, more)).nodes;
  }

  const Words static_ = {"--nnodes=2", "--master-addr=node0"};
  const Words c10d_ = {"--nnodes=2:4", "--rdzv-backend=c10d", "--rdzv-endpoint=node0:1234"};
};

TEST_F(PlanningNodes, OneNodeIsAloneWhateverItsBackend) {
  const agent::Nodes alone;
  EXPECT_EQ(nodes({}), alone);
  EXPECT_EQ(nodes({"--standalone"}), alone);
  EXPECT_EQ(nodes({"--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"}), alone);
  EXPECT_EQ(nodes({"--nnodes=1:1", "--rdzv-backend=c10d"}), alone);
  EXPECT_EQ(alone.leader.where, Leader::kAlone);
  EXPECT_THAT(refusal({"--standalone", "--nnodes=2"}), HasSubstr("--standalone is for one node"));
}

TEST_F(PlanningNodes, StaticIsLedByNodeZeroAtTheMastersPort) {
  agent::Nodes expected;
  expected.leader.where = Leader::kHere;
  expected.leader.endpoint = {"node0", 29500};
  expected.min_nodes = expected.max_nodes = 2;
  expected.node_rank = 0;
  expected.has_exact_ranks = true;
  expected.shares_store_port = true;
  expected.leader.join_timeout = 900s;
  expected.leader.leads_by_default = true;
  EXPECT_EQ(nodes(static_), expected);
  expected.leader.where = Leader::kElsewhere;
  expected.leader.leads_by_default = false;
  expected.node_rank = 1;
  expected.leader.endpoint.port = 7;
  EXPECT_EQ(nodes(static_, {"--node-rank=1", "--master-port=7"}), expected);
  expected.leader.endpoint = {"fe80::1", 8};
  EXPECT_EQ(nodes({"--nnodes=2", "--rdzv-endpoint=[fe80::1]:8", "--node-rank=1"}), expected);
  const agent::StoreEndpoint place = job(static_).store_endpoint;
  EXPECT_EQ(place.address, "node0");
  EXPECT_EQ(place.first_port, 29500);
  EXPECT_EQ(place.last_port, 29500);
}

TEST_F(PlanningNodes, StaticIgnoresMinWithOneWarning) {
  const auto made = plan({"--nnodes=2:4", "--master-addr=node0"});
  ASSERT_TRUE(made);
  EXPECT_EQ(made->job.nodes.min_nodes, 4);
  EXPECT_EQ(made->job.nodes.max_nodes, 4);
  EXPECT_THAT(made->warnings, ElementsAre(HasSubstr("--nnodes=2:4: static takes no fewer")));
  EXPECT_THAT(plan(static_)->warnings, IsEmpty());
}

TEST_F(PlanningNodes, C10dIsLedByWhoIsAtTheEndpoint) {
  agent::Nodes expected;
  expected.leader.where = Leader::kToBeFound;
  expected.leader.endpoint = {"node0", 1234};
  expected.min_nodes = 2;
  expected.max_nodes = 4;
  EXPECT_EQ(nodes(c10d_), expected);
  EXPECT_EQ(nodes(c10d_, {"--rdzv-conf=is_host=1"}).leader.where, Leader::kHere);
  EXPECT_EQ(nodes(c10d_, {"--rdzv-conf=is_host=no"}).leader.where, Leader::kElsewhere);
  EXPECT_EQ(
      nodes({"--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=h"}).leader.endpoint.port,
      29400);
  const agent::StoreEndpoint place = job(c10d_).store_endpoint;
  EXPECT_EQ(place.address, "") << "of group rank 0, as the leader sees it";
  EXPECT_EQ(place.first_port, 0);
  EXPECT_EQ(job(with(c10d_, {"--master-port-range=5:9"})).store_endpoint.last_port, 9);
}

TEST_F(PlanningNodes, ARankUnderC10dIsOnlyAWish) {
  EXPECT_EQ(nodes(c10d_).node_rank, std::nullopt) << "not given is not 0";
  EXPECT_EQ(nodes(c10d_, {"--node-rank=0"}).node_rank, 0);
  EXPECT_EQ(nodes(c10d_, {"--node-rank=3"}).node_rank, 3);
  EXPECT_FALSE(nodes(c10d_, {"--node-rank=3"}).has_exact_ranks);
}

TEST_F(PlanningNodes, LocalAddressIsTheNodesOwn) {
  const agent::Job made = job(with(c10d_, {"--local-addr=10.0.0.2"}));
  EXPECT_EQ(made.nodes.local_addr, "10.0.0.2");
  EXPECT_EQ(made.store_endpoint.address, "10.0.0.2");
  EXPECT_EQ(nodes(static_, {"--local-addr=10.0.0.2"}).local_addr, "") << "as under torchrun";
}

TEST_F(PlanningNodes, TimesAreOursUnlessGiven) {
  const agent::Nodes plain = nodes(c10d_);
  EXPECT_EQ(plain.leader.keep_alive, (rdzv::KeepAlive{2s, 3, 300ms}));
  EXPECT_EQ(plain.leader.join_timeout, 600s);
  EXPECT_EQ(plain.last_call_timeout, 30s);
  EXPECT_EQ(plain.replace_timeout, 30s);
  const agent::Nodes given = nodes(
      c10d_, {"--rdzv-conf=keep_alive_interval=5,keep_alive_max_attempt=4,reconnect_grace=1500,"
              "join_timeout=60,last_call_timeout=1,replace_timeout=7"});
  EXPECT_EQ(given.leader.keep_alive, (rdzv::KeepAlive{5s, 4, 1500ms}));
  EXPECT_EQ(given.leader.join_timeout, 60s);
  EXPECT_EQ(given.last_call_timeout, 1s);
  EXPECT_EQ(given.replace_timeout, 7s);
  EXPECT_EQ(nodes(static_, {"--rdzv-conf=timeout=60"}).leader.join_timeout, 60s);
}

TEST_F(PlanningNodes, TimesBeyondAllReasonFitAClock) {
  const agent::Nodes made = nodes(
      c10d_, {"--rdzv-conf=join_timeout=9223372036854775807,last_call_timeout=9223372036854775807,"
              "keep_alive_interval=9223372036854775807,"
              "keep_alive_max_attempt=9223372036854775807,reconnect_grace=9223372036854775807"});
  constexpr std::chrono::milliseconds kForEver = 1'000'000'000s;
  EXPECT_EQ(made.leader.join_timeout, kForEver);
  EXPECT_EQ(made.last_call_timeout, kForEver);
  EXPECT_EQ(made.leader.keep_alive.timeout(), kForEver);
  EXPECT_EQ(made.leader.keep_alive.reconnect_grace, 1'000'000s);
  for (const std::string key :
       {"reconnect_grace", "keep_alive_interval", "keep_alive_max_attempt"}) {
    EXPECT_THAT(refusal(with(c10d_, {"--rdzv-conf=" + key + "=0"})),
                HasSubstr(key + " must be a whole number of 1 or more"));
  }
}

TEST_F(PlanningNodes, TheOtherBackendsTimeoutIsWarnedOf) {
  const auto warnings = [this](const Words& words) { return plan(words)->warnings; };
  EXPECT_THAT(warnings(with(c10d_, {"--rdzv-conf=timeout=60"})),
              ElementsAre(HasSubstr("timeout has no effect with c10d, as under torchrun; give "
                                    "join_timeout")));
  EXPECT_THAT(warnings(with(static_, {"--rdzv-conf=join_timeout=60"})),
              ElementsAre(HasSubstr("join_timeout has no effect with static")));
  EXPECT_THAT(warnings(with(c10d_, {"--rdzv-conf=timeout=60,join_timeout=60"})), IsEmpty());
}

TEST_F(PlanningNodes, SeveralNodesNeedAnEndpointThatAllCanKnow) {
  EXPECT_THAT(refusal({"--nnodes=2", "--rdzv-backend=c10d"}),
              HasSubstr("--nnodes=2: several nodes need a place to meet; give "
                        "--rdzv-endpoint=HOST:PORT, the same on every node"));
  EXPECT_THAT(refusal({"--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-conf=is_host=1"}),
              HasSubstr("give --rdzv-endpoint=HOST:PORT"));
  EXPECT_THAT(refusal({"--nnodes=2", "--rdzv-backend=c10d", "--master-addr=node0"}),
              HasSubstr("--master-addr=node0: with --rdzv-backend=c10d nodes meet at "
                        "--rdzv-endpoint, and --master-addr is not used; give "
                        "--rdzv-endpoint=node0:29400, the same on every node"));
  EXPECT_THAT(refusal({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node0:0"}),
              HasSubstr("--rdzv-endpoint=node0:0: port 0 is any free one"));
  EXPECT_THAT(refusal({"--nnodes=2", "--rdzv-endpoint=node0:0"}),
              HasSubstr("--rdzv-endpoint=node0:0: port 0 is any free one"));
  EXPECT_THAT(refusal({"--nnodes=2", "--master-port=0"}),
              HasSubstr("--master-port=0: port 0 is any free one"));
}

TEST_F(PlanningNodes, APortRangeDoesNotGoWithTheLeadersPort) {
  EXPECT_THAT(refusal(with(static_, {"--master-port-range=5:9"})),
              HasSubstr("--master-port-range=5:9: with static, several nodes meet at node 0's"));
}

TEST_F(PlanningNodes, ARandomRunIdWouldKeepNodesApart) {
  EXPECT_THAT(refusal(with(c10d_, {"--rdzv-id="})), HasSubstr("give all nodes the same"));
  EXPECT_EQ(job(c10d_).run_id, "none") << "program and user are compared too";
  EXPECT_EQ(job(with(c10d_, {"--rdzv-id=job7"})).run_id, "job7");
}

TEST_F(PlanningNodes, NamesThatNoOtherNodeCouldBeToldAreRefused) {
  using rdzv::limits::kMaxHostBytes;
  using rdzv::limits::kMaxNameBytes;
  for (const auto& [option, bytes_max] :
       {std::pair<std::string, std::size_t>{"--rdzv-id", kMaxNameBytes},
        {"--role", kMaxNameBytes},
        {"--local-addr", kMaxHostBytes}}) {
    const std::string longest(bytes_max, 'x');
    EXPECT_TRUE(plan(with(c10d_, {option + "=" + longest}))) << option;
    EXPECT_THAT(
        refusal(with(c10d_, {option + "=" + longest + "x"})),
        HasSubstr(option + ": this text is longer than " + std::to_string(bytes_max) + " bytes"));
  }
  const std::string longest(kMaxNameBytes, 'x');
  const std::string longer(kMaxHostBytes + 1, 'x');
  EXPECT_THAT(refusal({"--nnodes=2", "--master-addr=" + longer}), HasSubstr("--master-addr: "));
  EXPECT_THAT(refusal({"--nnodes=2", "--rdzv-endpoint=" + longer + ":1"}),
              HasSubstr("--rdzv-endpoint: "));
  EXPECT_TRUE(plan({"--rdzv-id=" + longer})) << "one node tells nobody";

  const auto with_module = [&](const std::string& name) {
    const Words words = with(c10d_, {"-m", name});
    const Environment environment = {{"PYTHON_EXEC", tree_ / "cwd/prog"}};
    const auto line = parse_command_line(words);
    return make_plan(resolve(*line, environment, {}), line->command, environment, surroundings_);
  };
  EXPECT_TRUE(with_module(longest));
  const auto refused = with_module(longest + "x");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("the program's name is longer than 1024 bytes"));
}

TEST_F(PlanningNodes, TheTokenIsReadAndNeverPrinted) {
  const std::string file = tree_.write("token", "s3cret\n", 0600);
  for (const std::string& option : {"--token-file=" + file, "--rdzv-conf=token_file=" + file}) {
    const auto made = plan(with(c10d_, {option}));
    ASSERT_TRUE(made) << made.error().to_string();
    EXPECT_EQ(made->job.nodes.leader.proof.token, "s3cret");
    for (const std::string& text : {to_table(*made), to_json(*made)}) {
      EXPECT_THAT(text, Not(HasSubstr("s3cret")));
      EXPECT_THAT(text, HasSubstr(file));
    }
    const boost::json::value whole = boost::json::parse(to_json(*made));
    EXPECT_EQ(whole.at("job").at("nodes").at("proof"), "token");
    EXPECT_EQ(whole.at("rendezvous").at("token_file"), boost::json::string(file));
  }
  EXPECT_EQ(job(c10d_, {{"DDPRUN_TOKEN_FILE", file}}).nodes.leader.proof.token, "s3cret");
  EXPECT_EQ(job({"--token-file=/no/such/file"}).nodes, agent::Nodes{}) << "one node needs none";
}

TEST_F(PlanningNodes, NoTokenIsADecisionAndExcludesAToken) {
  EXPECT_FALSE(nodes(c10d_).leader.proof.is_waived);
  const auto made = plan(with(c10d_, {"--no-token"}));
  ASSERT_TRUE(made) << made.error().to_string();
  EXPECT_TRUE(made->job.nodes.leader.proof.is_waived);
  EXPECT_THAT(to_table(*made), HasSubstr("not at all, by --no-token"));
  const std::string file = tree_.write("token", "s3cret\n", 0600);
  EXPECT_THAT(refusal(with(c10d_, {"--no-token"}), {{"DDPRUN_TOKEN_FILE", file}}),
              HasSubstr("--no-token: DDPRUN_TOKEN_FILE names a token; leave one of the two out"));
}

TEST_F(PlanningNodes, NodeZeroByDefaultIsToldFromARankThatWasGiven) {
  EXPECT_TRUE(nodes(static_).leader.leads_by_default);
  EXPECT_FALSE(nodes(static_, {"--node-rank=0"}).leader.leads_by_default);
  EXPECT_FALSE(nodes(static_, {"--node-rank=1"}).leader.leads_by_default);
  EXPECT_FALSE(job(static_, {{"PET_NODE_RANK", "0"}}).nodes.leader.leads_by_default);
  EXPECT_FALSE(nodes(c10d_).leader.leads_by_default);
}

TEST_F(PlanningNodes, ATokenFileThatIsNoGoodIsWrongUsage) {
  EXPECT_THAT(refusal(with(c10d_, {"--token-file=/no/such/file"})),
              HasSubstr("--token-file=/no/such/file: "));
  const std::string open_to_all = tree_.write("token", "s3cret\n", 0644);
  EXPECT_THAT(refusal(with(c10d_, {"--rdzv-conf=token_file=" + open_to_all})),
              testing::AllOf(HasSubstr("--rdzv-conf=token_file=" + open_to_all + ": "),
                             HasSubstr("chmod 600")));
  EXPECT_THAT(refusal(c10d_, {{"DDPRUN_TOKEN_FILE", open_to_all}}),
              HasSubstr("DDPRUN_TOKEN_FILE=" + open_to_all + ": "));
}

TEST_F(PlanningNodes, TableTellsWhoLeadsAndForHowLongNodesAreAwaited) {
  const auto table = [this](const Words& words) {
    const auto made = plan(words);
    return made ? to_table(*made) : made.error().to_string();
  };
  using testing::ContainsRegex;
  const std::string elastic = table(with(c10d_, {"--max-restarts=3", "--restart-pause=1:60"}));
  EXPECT_THAT(elastic, ContainsRegex("nodes +2 to 4\n"));
  EXPECT_THAT(elastic, ContainsRegex("leader +at node0:1234; this node if the address is its own"));
  EXPECT_THAT(elastic, ContainsRegex("rank of this node +as it comes\n"));
  EXPECT_THAT(elastic, ContainsRegex("nodes are awaited +600 s for 2, then 30 s for more\n"));
  EXPECT_THAT(elastic, ContainsRegex("a node is lost +silent for 6 s, or disconnected for 300 ms"));
  EXPECT_THAT(elastic, ContainsRegex("nodes prove themselves +not at all: there is no token"));
  EXPECT_THAT(elastic, ContainsRegex("restarts +3; after 1 s, at most 60 s\n"));
  for (const std::string name : {"RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
                                 "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_THAT(elastic, HasSubstr("\n  " + name + "=(known when the nodes have met)\n"));
  }
  EXPECT_THAT(elastic, HasSubstr("\n  LOCAL_RANK=0\n"));

  const std::string fixed = table(with(static_, {"--node-rank=1"}));
  EXPECT_THAT(fixed, ContainsRegex("leader +at node0:29500\n"));
  EXPECT_THAT(fixed, ContainsRegex("nodes are awaited +900 s\n"));
  EXPECT_THAT(fixed, HasSubstr("\n  GROUP_RANK=1\n"));
  EXPECT_THAT(fixed, HasSubstr("\n  GROUP_WORLD_SIZE=2\n"));
  EXPECT_THAT(fixed, HasSubstr("\n  MASTER_ADDR=node0\n"));
  EXPECT_THAT(fixed, HasSubstr("\n  MASTER_PORT=29500\n"));
  EXPECT_THAT(fixed, HasSubstr("\n  RANK=(known when the nodes have met)\n"));
  EXPECT_THAT(table(static_), ContainsRegex("leader +this node, at node0:29500\n"));
  EXPECT_THAT(table({}), Not(HasSubstr("leader"))) << "one node has nobody to lead";
}

TEST_F(PlanningNodes, JsonHasTheNodesAndTheRestartRules) {
  const auto made = plan(with(c10d_, {"--node-rank=1", "--max-restarts=3", "--min-uptime=2",
                                      "--restart-pause=1:60", "--final-exit-codes=2"}));
  ASSERT_TRUE(made);
  const boost::json::value whole = boost::json::parse(to_json(*made));
  EXPECT_EQ(whole.at("job").at("nodes"),
            boost::json::parse(R"({"leader":"to_be_found","endpoint":"node0:1234","min_nodes":2,)"
                               R"("max_nodes":4,"node_rank":1,"has_exact_ranks":false,)"
                               R"("shares_store_port":false,"local_addr":"",)"
                               R"("keep_alive_interval_ms":2000,"keep_alive_max_attempt":3,)"
                               R"("node_timeout_ms":6000,"reconnect_grace_ms":300,)"
                               R"("join_timeout_ms":600000,"last_call_timeout_ms":30000,)"
                               R"("proof":"none"})"));
  EXPECT_EQ(
      whole.at("job").at("restarts"),
      boost::json::parse(
          R"({"max_restarts":3,"window_ms":0,"no_progress_restarts":0,"min_uptime_ms":2000,"pause_first_ms":1000,)"
          R"("pause_max_ms":60000,"final_exit_codes":[2]})"));
  const boost::json::value alone = boost::json::parse(to_json(*plan({})));
  EXPECT_EQ(alone.at("job").at("nodes").at("leader"), "alone");
  EXPECT_TRUE(alone.at("job").at("nodes").at("endpoint").is_null());
}

}  // namespace
}  // namespace ddprun::cli
