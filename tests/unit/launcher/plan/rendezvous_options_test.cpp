#include "launcher/plan/rendezvous_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/cli/text.h"

namespace ddprun::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

struct Read {
  Result<Rendezvous> rendezvous;
  std::vector<std::string> warnings;
};

Read read(std::vector<std::string> words) {
  words.push_back("prog");
  const auto line = parse_command_line(words);
  EXPECT_TRUE(line);
  std::vector<std::string> warnings;
  auto rendezvous = read_rendezvous(resolve(*line, {}, {}), warnings);
  return {std::move(rendezvous), std::move(warnings)};
}

Rendezvous good(const std::vector<std::string>& words) {
  const Read outcome = read(words);
  EXPECT_TRUE(outcome.rendezvous) << outcome.rendezvous.error().to_string();
  return outcome.rendezvous.value_or(Rendezvous{});
}

std::string refusal(const std::vector<std::string>& words) {
  const Read outcome = read(words);
  EXPECT_FALSE(outcome.rendezvous) << testing::PrintToString(words);
  return outcome.rendezvous ? "" : outcome.rendezvous.error().to_string();
}

TEST(RendezvousOptions, EndpointsAreReadByTorchrunsRules) {
  struct Case {
    std::string text;
    std::optional<HostAndPort> parsed;
  };
  constexpr std::uint16_t kDefault = 29400;
  const std::vector<Case> cases = {
      {"", HostAndPort{"localhost", kDefault}},
      {"  ", HostAndPort{"localhost", kDefault}},
      {"node0", HostAndPort{"node0", kDefault}},
      {" node0:1 ", HostAndPort{"node0", 1}},
      {"node_0.site-1:65535", HostAndPort{"node_0.site-1", 65535}},
      {"node0:0", HostAndPort{"node0", 0}},
      {"node0:00080", HostAndPort{"node0", 80}},
      {"[fe80::1]", HostAndPort{"fe80::1", kDefault}},
      {"[fe80::1]:99", HostAndPort{"fe80::1", 99}},
      {"::1:29400", HostAndPort{"::1", 29400}},
      {"::1", {}},
      {"fe80::1", {}},
      {"a:b:80", {}},
      {"node0:", {}},
      {"node0:65536", {}},
      {"node0:000080", {}},
      {"node0:-1", {}},
      {"node0:http", {}},
      {":80", {}},
      {"[]", {}},
      {"no de:80", {}},
      {"http://node0:80", {}},
  };
  for (const Case& c : cases) EXPECT_EQ(parse_host_and_port(c.text, kDefault), c.parsed) << c.text;
  EXPECT_EQ(parse_host_and_port("node0", std::nullopt), (HostAndPort{"node0", std::nullopt}));
}

TEST(RendezvousOptions, QuotesAroundTheConfItsPairsAndItsValuesAreTakenOff) {
  const RdzvConf both = {{"join_timeout", "5"}, {"timeout", "3"}};
  for (const std::string conf :
       {"'join_timeout=5,timeout=3'", "\"join_timeout=5,timeout=3\"",
        " ' join_timeout=5, timeout=3 ' ", "'join_timeout=5','timeout=3'",
        "join_timeout='5',timeout=\"3\"", "join_timeout = ' 5 ',timeout=3"}) {
    const Read outcome = read({"--rdzv-conf=" + conf});
    ASSERT_TRUE(outcome.rendezvous) << conf << ": " << outcome.rendezvous.error().to_string();
    EXPECT_EQ(outcome.rendezvous->conf, both) << conf;
    EXPECT_THAT(outcome.warnings, IsEmpty()) << conf;
  }
  EXPECT_TRUE(good({"--rdzv-conf=''"}).conf.empty());
  EXPECT_EQ(good({"--rdzv-conf='user=u,password=p'"}).conf["password"], "p");
  EXPECT_EQ(good({"--rdzv-conf=user='u',password='p'"}).conf,
            (RdzvConf{{"user", "u"}, {"password", "'p'"}}))
      << "quotes may be a part of a password";
  EXPECT_THAT(refusal({"--rdzv-conf=timeout=3'"}),
              HasSubstr("timeout must be a whole number of 1 or more, without a quote"));
  EXPECT_THAT(refusal({"--nnodes='2'"}), HasSubstr("the quotes are a part of the value"));
  EXPECT_THAT(refusal({"--rdzv-backend='c10d'"}), HasSubstr("the quotes are a part of the value"));
}

TEST(RendezvousOptions, NodeCounts) {
  EXPECT_EQ(good({}).max_nodes, 1);
  EXPECT_EQ(good({"--nnodes=3"}).min_nodes, 3);
  EXPECT_EQ(good({"--nnodes=3"}).max_nodes, 3);
  const Rendezvous elastic = good({"--nnodes=2:4", "--rdzv-backend=c10d"});
  EXPECT_EQ(elastic.min_nodes, 2);
  EXPECT_EQ(elastic.max_nodes, 4);
  for (const std::string text : {"1:2:3", "x", "", "1:", ":2", "1.5"}) {
    EXPECT_THAT(refusal({"--nnodes=" + text}), HasSubstr("or MIN:MAX")) << text;
  }
  for (const std::string text : {"0", "2:1", "-1:1", "0:2"}) {
    EXPECT_THAT(refusal({"--nnodes=" + text}), HasSubstr("MAX at least MIN")) << text;
  }
}

TEST(RendezvousOptions, StaticMeetsAtTheMastersAddressOrAtTheEndpoint) {
  const Rendezvous plain = good({});
  EXPECT_EQ(plain.backend, Backend::kStatic);
  EXPECT_EQ(plain.host, "127.0.0.1");
  EXPECT_EQ(plain.port, 29500);
  EXPECT_EQ(plain.node_rank, 0);
  const Rendezvous named =
      good({"--master-addr=node0", "--master-port=7", "--nnodes=2", "--node-rank=1"});
  EXPECT_EQ(named.host, "node0");
  EXPECT_EQ(named.port, 7);
  EXPECT_EQ(named.node_rank, 1);
  const Read both = read({"--rdzv-endpoint=node1:8", "--master-port=7"});
  EXPECT_EQ(both.rendezvous->host, "node1");
  EXPECT_EQ(both.rendezvous->port, 8);
  EXPECT_THAT(both.warnings, ElementsAre(HasSubstr("--master-port is ignored")));

  EXPECT_THAT(refusal({"--rdzv-endpoint=node0"}), HasSubstr("the port is missing"));
  EXPECT_THAT(refusal({"--rdzv-endpoint=node0:x"}), HasSubstr("give HOST:PORT"));
  EXPECT_THAT(refusal({"--master-port=65536"}), HasSubstr("from 0 to 65535"));
  EXPECT_THAT(refusal({"--master-port=x"}), HasSubstr("from 0 to 65535"));
  EXPECT_THAT(refusal({"--master-addr="}), HasSubstr("give the host name"));
  EXPECT_THAT(read({"--local-addr=h"}).warnings, ElementsAre(HasSubstr("--local-addr is ignored")));
}

TEST(RendezvousOptions, AnAddressIsAHostAloneAndAnIpv6AddressMayHaveBrackets) {
  for (const std::string option : {"--master-addr=", "--rdzv-backend=c10d --local-addr="}) {
    const auto words = [&option](const std::string& host) {
      std::vector<std::string> all;
      const std::string text = option + host;
      for (const std::string_view word : split(text, ' ')) all.emplace_back(word);
      return all;
    };
    const auto host_of = [&](const std::string& text) {
      const Rendezvous made = good(words(text));
      return option.starts_with("--master") ? made.host : made.local_addr;
    };
    for (const auto& [text, host] : {std::pair{"[::1]", "::1"},
                                     {"::1", "::1"},
                                     {"[fe80::1%lo]", "fe80::1%lo"},
                                     {"10.0.0.1", "10.0.0.1"},
                                     {"node_0.site-1", "node_0.site-1"}}) {
      EXPECT_EQ(host_of(text), host);
    }
    for (const std::string text :
         {"node0:29500", "10.0.0.1:29500", "[::1]:29500", "tcp://node0", "tcp://node0:29500",
          "http://[::1]:80", "[::1", "node0/", "a,b", "[]"}) {
      EXPECT_THAT(refusal(words(text)), HasSubstr("alone")) << text;
      EXPECT_THAT(refusal(words(text)),
                  HasSubstr(option.starts_with("--master") ? "the port is --master-port"
                                                           : "without a port"));
    }
  }
  EXPECT_THAT(refusal({"--rdzv-backend=c10d", "--rdzv-endpoint=tcp://node0:29400"}),
              HasSubstr("without tcp://"));
  EXPECT_THAT(refusal({"--rdzv-backend=etcd", "--rdzv-endpoint=e1,https://e2:2379"}),
              AllOf(HasSubstr("without https://"), HasSubstr("protocol=https")));
}

TEST(RendezvousOptions, AnAddressInAVariableOrFileIsReadByTheSameRule) {
  const auto refusal_of = [](const Environment& environment, const FileValues& file) {
    const auto line = parse_command_line(std::vector<std::string>{"prog"});
    std::vector<std::string> warnings;
    const auto made = read_rendezvous(resolve(*line, environment, file), warnings);
    return made ? "" : made.error().to_string();
  };
  EXPECT_THAT(refusal_of({{"PET_MASTER_ADDR", "node0:1"}}, {}),
              AllOf(StartsWith("PET_MASTER_ADDR=node0:1: "), HasSubstr("--master-port")));
  EXPECT_THAT(
      refusal_of({}, {{OptionId::kMasterAddr, {"tcp://node0", {Source::kFile, "job.toml:3"}}}}),
      AllOf(StartsWith("job.toml:3: "), HasSubstr("--master-port")));
}

TEST(RendezvousOptions, NodeRankMustBeAmongTheNodes) {
  EXPECT_THAT(refusal({"--node-rank=1"}), HasSubstr("node ranks go from 0 to 0"));
  EXPECT_THAT(refusal({"--node-rank=2", "--nnodes=2"}), HasSubstr("node ranks go from 0 to 1"));
  EXPECT_THAT(refusal({"--node-rank=-1"}), HasSubstr("whole number of 0 or more"));
}

TEST(RendezvousOptions, C10dHasADefaultPortAndNoRankUnlessAsked) {
  const Rendezvous plain = good({"--rdzv-backend=c10d"});
  EXPECT_EQ(plain.host, "localhost");
  EXPECT_EQ(plain.port, 29400);
  EXPECT_EQ(plain.node_rank, std::nullopt);
  const Rendezvous named = good({"--rdzv-backend=c10d", "--rdzv-endpoint=node0", "--nnodes=1:2",
                                 "--node-rank=1", "--local-addr=10.0.0.2"});
  EXPECT_EQ(named.host, "node0");
  EXPECT_EQ(named.node_rank, 1);
  EXPECT_EQ(named.local_addr, "10.0.0.2");
  EXPECT_THAT(
      read({"--rdzv-backend=c10d", "--master-addr=h", "--master-port=1"}).warnings,
      ElementsAre(HasSubstr("--master-addr is ignored"), HasSubstr("--master-port is ignored")));
  EXPECT_EQ(good({"--rdzv-backend=etcd-v2", "--rdzv-endpoint=e"}).port, 2379);
  EXPECT_THAT(refusal({"--rdzv-backend=c10"}), HasSubstr("did you mean c10d?"));
  EXPECT_THAT(refusal({"--rdzv-backend=zookeeper"}),
              HasSubstr("give static, c10d, etcd-v2 or etcd"));
}

TEST(RendezvousOptions, StandaloneOverridesTheOthersSilently) {
  const Read outcome = read({"--standalone", "--rdzv-backend=etcd", "--rdzv-endpoint=h:1",
                             "--master-port=5", "--rdzv-id=x"});
  ASSERT_TRUE(outcome.rendezvous);
  EXPECT_THAT(outcome.warnings, IsEmpty());
  EXPECT_TRUE(outcome.rendezvous->is_standalone);
  EXPECT_EQ(outcome.rendezvous->backend, Backend::kC10d);
  EXPECT_EQ(outcome.rendezvous->host, "localhost");
  EXPECT_EQ(outcome.rendezvous->port, 0);
}

TEST(RendezvousOptions, ConfIsKeyValuePairs) {
  using Conf = RdzvConf;
  EXPECT_EQ(good({}).conf, Conf{});
  EXPECT_EQ(good({"--rdzv-conf=cas_backoff_max_seconds=0.5"}).conf.size(), 1);
  for (const std::string value : {"-1", "inf", "nan", "x"}) {
    EXPECT_THAT(refusal({"--rdzv-conf=cas_backoff_max_seconds=" + value}),
                HasSubstr("cas_backoff_max_seconds must be a number of 0 or more"));
  }
  EXPECT_EQ(good({"--rdzv-conf= join_timeout = 60 ,read_timeout=5"}).conf,
            (Conf{{"join_timeout", "60"}, {"read_timeout", "5"}}));
  const RdzvConf times = good({"--rdzv-conf=join_timeout=10m,timeout=1h30m,lease_time=90s"}).conf;
  EXPECT_EQ(seconds_of(times, "join_timeout"), std::chrono::minutes(10));
  EXPECT_EQ(seconds_of(times, "timeout"), std::chrono::minutes(90));
  EXPECT_EQ(seconds_of(times, "lease_time"), std::chrono::seconds(90));
  for (const std::string text : {"1500ms", "5x", "m", "5m3", "1e2s"}) {
    EXPECT_THAT(refusal({"--rdzv-conf=join_timeout=" + text}), HasSubstr("whole number")) << text;
  }
  EXPECT_THAT(refusal({"--rdzv-conf=keep_alive_max_attempt=5m"}), HasSubstr("whole number"));
  EXPECT_EQ(good({"--rdzv-conf=cert=a=b"}).conf, (Conf{{"cert", "a=b"}}));
  for (const std::string text : {"a", "a=", "=b", "a=b,", ","}) {
    EXPECT_THAT(refusal({"--rdzv-conf=" + text}), HasSubstr("give KEY=VALUE pairs")) << text;
  }
  for (const std::string key :
       {"backend", "endpoint", "run_id", "min_nodes", "max_nodes", "local_addr"}) {
    EXPECT_THAT(refusal({"--rdzv-conf=" + key + "=1"}), HasSubstr("has an option of its own"));
  }
  for (const std::string value : {"0", "-1", "x", "1.5"}) {
    EXPECT_THAT(refusal({"--rdzv-conf=join_timeout=" + value}),
                HasSubstr("join_timeout must be a whole number of 1 or more"));
  }
  EXPECT_THAT(refusal({"--rdzv-conf=store_type=file"}), HasSubstr("is not supported"));
  EXPECT_THAT(refusal({"--rdzv-conf=store_type=x"}), HasSubstr("store_type must be tcp"));
  EXPECT_THAT(read({"--rdzv-conf=join_timout=1"}).warnings,
              ElementsAre(HasSubstr("did you mean join_timeout?")));
  EXPECT_THAT(read({"--rdzv-conf=use_libuv=0"}).warnings, IsEmpty());
}

TEST(RendezvousOptions, TokenFileIsThatOfTheOriginThatCountsMost) {
  EXPECT_EQ(good({}).token_file, "");
  EXPECT_EQ(good({"--token-file=/a"}).token_file, "/a");
  EXPECT_EQ(good({"--rdzv-conf=token_file=/b"}).token_file, "/b");
  EXPECT_EQ(good({"--token-file=/a", "--rdzv-conf=token_file=/b"}).token_file, "/a");
  const auto from = [](const Environment& environment, std::vector<std::string> words) {
    words.push_back("prog");
    std::vector<std::string> warnings;
    return read_rendezvous(resolve(*parse_command_line(words), environment, {}), warnings)
        ->token_file;
  };
  EXPECT_EQ(from({{"DDPRUN_TOKEN_FILE", "/c"}}, {}), "/c");
  EXPECT_EQ(from({{"DDPRUN_TOKEN_FILE", "/c"}}, {"--rdzv-conf=token_file=/b"}), "/b");
  EXPECT_EQ(from({{"PET_RDZV_CONF", "token_file=/b"}}, {"--token-file=/a"}), "/a");
}

TEST(RendezvousOptions, IsHostIsTrueFalseOrUnknown) {
  EXPECT_EQ(good({}).is_host, std::nullopt);
  for (const std::string yes : {"1", "true", "T", "YES", "y"}) {
    EXPECT_EQ(good({"--rdzv-conf=is_host=" + yes}).is_host, true) << yes;
  }
  for (const std::string no : {"0", "False", "f", "no", "n"}) {
    EXPECT_EQ(good({"--rdzv-conf=is_host=" + no}).is_host, false) << no;
  }
  EXPECT_THAT(refusal({"--rdzv-conf=is_host=2"}), HasSubstr("is_host must be 1 or 0"));
}

}  // namespace
}  // namespace ddprun::cli
