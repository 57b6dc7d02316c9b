// The pure parts of the election under etcd, each by itself; tests/sim has them together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "rendezvous/etcd/election_core.h"
#include "rendezvous/etcd/etcd_messages.h"
#include "rendezvous/etcd/job_keys.h"
#include "rendezvous/etcd/job_record.h"
#include "rendezvous/etcd/round_ledger.h"
#include "rendezvous/round/round_core.h"

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// ---- etcd's gateway

TEST(EtcdMessages, ATransactionIsSpelledAsTheGatewayWantsIt) {
  wire::EtcdTxn txn;
  txn.compares = {{wire::EtcdCompare::What::kCreateRevision, "a", 0},
                  {wire::EtcdCompare::What::kModRevision, "b", 7}};
  txn.puts = {{"a", "x", 12}};
  txn.deletes = {"c"};
  txn.reads = {"b"};
  EXPECT_EQ(wire::etcd_txn(txn),
            R"({"compare":[{"result":"EQUAL","target":"CREATE","key":"YQ==","createRevision":"0"},)"
            R"({"result":"EQUAL","target":"MOD","key":"Yg==","modRevision":"7"}],)"
            R"("success":[{"requestPut":{"key":"YQ==","value":"eA==","lease":"12"}},)"
            R"({"requestDeleteRange":{"key":"Yw=="}},{"requestRange":{"key":"Yg=="}}],)"
            R"("failure":[{"requestRange":{"key":"Yg=="}}]})");
}

// As etcd 3.4.23 has answered.
TEST(EtcdMessages, AnswersAreRead) {
  wire::EtcdTxn txn;
  txn.reads = {"a", "b"};
  const auto answer = wire::read_etcd_txn(
      R"({"header":{"cluster_id":"1","revision":"9"},"succeeded":true,"responses":[)"
      R"({"response_range":{"header":{"revision":"9"},"kvs":[{"key":"YQ==","create_revision":"2",)"
      R"("mod_revision":"3","version":"1","value":"Yg==","lease":"5"}],"count":"1"}},)"
      R"({"response_range":{"header":{"revision":"9"}}}]})",
      txn);
  ASSERT_TRUE(answer) << answer.error().to_string();
  EXPECT_EQ(answer->revision, 9);
  EXPECT_TRUE(answer->has_succeeded);
  EXPECT_THAT(answer->reads,
              ElementsAre(wire::EtcdKeyValue{"a", "b", 2, 3, 5}, wire::EtcdKeyValue{}));

  EXPECT_EQ(wire::read_etcd_lease(R"({"result":{"ID":"12345"}})")->seconds, 0);
  EXPECT_EQ(wire::read_etcd_lease(R"({"ID":"2324035530347201285","TTL":"2"})")->lease,
            2324035530347201285);
  const auto watched = wire::read_etcd_watch(
      R"({"result":{"header":{"revision":"3"},"events":[{"kv":{"key":"YQ==","create_revision":"2",)"
      R"("mod_revision":"2","value":"Yg=="}},{"type":"DELETE","kv":{"key":"YQ==","mod_revision":"3"}}]}})");
  ASSERT_TRUE(watched) << watched.error().to_string();
  ASSERT_THAT(watched->events, SizeIs(2));
  EXPECT_FALSE(watched->events[0].is_delete);
  EXPECT_TRUE(watched->events[1].is_delete);
  EXPECT_EQ(watched->events[1].entry.mod_revision, 3);
  const auto refusal = wire::read_etcd_refusal(R"({"error":"x","message":"no space","code":8})");
  EXPECT_EQ(refusal.code, 8);
  EXPECT_EQ(refusal.message, "no space");
}

TEST(EtcdMessages, WhatIsNoAnswerIsAnError) {
  wire::EtcdTxn txn;
  txn.reads = {"a"};
  for (const std::string body :
       {"", "404 page not found", "[]", "{}", R"({"header":{"revision":"x"}})",
        R"({"header":{"revision":"1"},"responses":[]})",
        R"({"header":{"revision":"1"},"responses":[{"response_put":{}}]})",
        R"({"header":{"revision":"1"},"responses":[{"response_range":{"kvs":[1]}}]})",
        R"({"header":{"revision":"1"},"responses":[{"response_range":{"kvs":[{"key":"*"}]}}]})"}) {
    EXPECT_FALSE(wire::read_etcd_txn(body, txn)) << body;
    EXPECT_FALSE(wire::read_etcd_lease(body)) << body;
    EXPECT_FALSE(wire::read_etcd_watch(body)) << body;
    EXPECT_FALSE(wire::read_etcd_token(body)) << body;
    EXPECT_EQ(wire::read_etcd_refusal(body).code, -1) << body;
  }
}

// ---- what outlives a leader

JobRecord a_record() {
  JobRecord record;
  record.incarnation = "3f-1";
  record.round = Round{4};
  record.nodes = 2;
  record.history = {1, 2, 3, 4, 500, StepKind::kOptimizer};
  return record;
}

TEST(JobRecords, AreReadAsTheyAreWritten) {
  EXPECT_EQ(
      to_text(a_record()),
      R"({"ddprun":1,"incarnation":"3f-1","round":4,"nodes":2,"restarts":1,)"
      R"("quick_failures":2,"quick_losses":3,"without_progress":4,"step":500,"step_kind":1})");
  JobRecord record = a_record();
  EXPECT_EQ(read_job_record(to_text(record)).value(), record);
  record.left_out = {{{"b3", "10.0.0.3"}, LeftOutHost::Cause::kUnfit, "a GPU is gone"},
                     {{"b4", "10.0.0.4"}, LeftOutHost::Cause::kDrained, "Ann"}};
  EXPECT_THAT(to_text(record),
              HasSubstr(R"("left_out":[{"host":"b3","address":"10.0.0.3","cause":1,)"
                        R"("why":"a GPU is gone"},)"));
  EXPECT_EQ(read_job_record(to_text(record)).value(), record);
  record.round.reset();
  record.outcome.emplace();
  record.outcome->kind = JobOutcome::Kind::kFailed;
  record.outcome->exit_code = 7;
  record.outcome->cause.emplace();
  record.outcome->cause->host = "b12";
  EXPECT_EQ(read_job_record(to_text(record)).value(), record);
  record.outcome->consequences.resize(3);
  const auto read = read_job_record(to_text(record)).value();
  EXPECT_THAT(read.outcome->consequences, IsEmpty());
  EXPECT_EQ(read.outcome->consequences_left_out, 3);
}

TEST(JobRecords, AndNothingElseIsRead) {
  for (
      const std::string text :
      {"", "hello", "{}", "[]", R"({"ddprun":2})", R"({"ddprun":1})", R"({"ddprun":"1"})",
       R"({"ddprun":1,"incarnation":"","nodes":0,"restarts":0,"quick_failures":0,"quick_losses":0,"without_progress":0})",
       R"({"ddprun":1,"incarnation":"a","nodes":-1,"restarts":0,"quick_failures":0,"quick_losses":0,"without_progress":0})",
       R"({"ddprun":1,"incarnation":"a","nodes":1,"restarts":0,"quick_failures":0,"quick_losses":0,"without_progress":0,"round":-1})",
       R"({"ddprun":1,"incarnation":"a","nodes":1,"restarts":0,"quick_failures":0,"quick_losses":0,"without_progress":0,"outcome":"AAAA"})",
       R"({"ddprun":1,"incarnation":"a","nodes":1,"restarts":0,"quick_failures":0,"quick_losses":0,"without_progress":1})",
       R"({"ddprun":1,"incarnation":"a","nodes":1,"restarts":0,"quick_failures":0,"quick_losses":0,"without_progress":0,"step":"a"})",
       R"({"ddprun":1,"incarnation":"a","nodes":1,"restarts":0,"quick_failures":0,"quick_losses":0,"left_out":7})",
       R"({"ddprun":1,"incarnation":"a","nodes":1,"restarts":0,"quick_failures":0,"quick_losses":0,"left_out":[{"host":"b3","address":"a","cause":3,"why":""}]})",
       R"({"ddprun":1,"incarnation":"a","nodes":1,"restarts":0,"quick_failures":0,"quick_losses":0,"left_out":[{"host":"b3","cause":0,"why":""}]})",
       R"({"ddprun":1,"leadership":"a","incarnation":"b","address":"nowhere"})"}) {
    EXPECT_FALSE(read_job_record(text)) << text;
    EXPECT_FALSE(read_leader_key(text, 1)) << text;
  }
  EXPECT_THAT(read_job_record(R"({"ddprun":2})").error().message, HasSubstr("another version"));
}

TEST(JobKeysTest, NoIdIsAPartOfAnother) {
  EXPECT_EQ(JobKeys("/ddprun", "a").leader, "/ddprun/a/leader");
  EXPECT_EQ(JobKeys("/ddprun/", "a/b%").job, "/ddprun/a%2Fb%25/job");
}

NodeHello hello(const std::string& host) {
  NodeHello hello;
  hello.host = hello.address = host;
  hello.min_nodes = 1;
  hello.max_nodes = 2;
  return hello;
}

RoundConfig config() {
  RoundConfig config;
  config.max_nodes = 2;
  config.own_node.reset();
  return config;
}

// Asked twice, because the first answer was lost.
TEST(JobKeysTest, AClaimThatFailsOnItsOwnKeyHasWon) {
  const JobKeys keys("/ddprun", "job");
  Claim claim;
  claim.key = {"3f-2", "3f-1", "", 0};
  claim.record = a_record();
  const auto put = claim_txn(keys, claim, "h:1", {71, 72}).puts;
  wire::EtcdTxnAnswer answer;
  answer.reads = {{put[0].key, put[0].value, 9, 9, put[0].lease},
                  {put[1].key, put[1].value, 4, 9, put[1].lease}};
  const auto own = leases_of_won_claim(keys, claim, answer);
  ASSERT_TRUE(own.has_value());
  EXPECT_EQ(own->leader, 71);
  EXPECT_EQ(own->job, 72);
  claim.key.leadership = "3f-3";
  EXPECT_FALSE(leases_of_won_claim(keys, claim, answer)) << "another one leads";
  answer.reads[0] = {};
  EXPECT_FALSE(leases_of_won_claim(keys, claim, answer)) << "nobody leads";
}

TEST(JobKeysTest, AWriteThatFailsOnItsOwnRecordIsWritten) {
  const JobRecord record = a_record();
  wire::EtcdTxnAnswer answer;
  answer.reads = {{"l", "", 5, 5, 71}, {"j", to_text(record), 3, 9, 72}};
  using Kind = RecordWrite::Kind;
  EXPECT_EQ(result_of_write(5, record, answer).kind, Kind::kWritten);
  EXPECT_EQ(result_of_write(5, record, answer).job_revision, 9);
  JobRecord newer = record;
  newer.round = Round{5};
  EXPECT_EQ(result_of_write(5, newer, answer).kind, Kind::kOvertaken);
  EXPECT_EQ(result_of_write(4, record, answer).kind, Kind::kFenced) << "another one leads";
}

TEST(Ledger, HoldsARoundAndAllAfterItUntilItIsWritten) {
  const CoreTime now{};
  RoundCore core(config());
  JobRecord record;
  record.incarnation = "i";
  RoundLedger ledger(record);
  EXPECT_THAT(ledger.pass(core, core.step(now, NodeId{1}, hello("a"))), SizeIs(1)) << "a wait";
  EXPECT_THAT(ledger.pass(core, core.step(now, NodeId{2}, hello("b"))), SizeIs(1)) << "OpenStore";
  EXPECT_EQ(ledger.due(), nullptr);
  EXPECT_THAT(ledger.pass(core, core.step(now, NodeId{1}, StoreOpened{Round{0}, 1})), IsEmpty());
  ASSERT_NE(ledger.due(), nullptr);
  EXPECT_EQ(ledger.due()->round, Round{0});
  EXPECT_EQ(ledger.due()->nodes, 2);
  EXPECT_THAT(ledger.pass(core, core.step(now, NodeId{1}, WorkerFailed{Round{0}, {}})), IsEmpty());
  const auto released = ledger.written();
  std::string order;
  for (const auto& each : released) {
    order += std::holds_alternative<RoundStart>(each.message)    ? 's'
             : std::holds_alternative<GroupBroken>(each.message) ? 'b'
             : std::holds_alternative<RoundStop>(each.message)   ? 'e'
                                                                 : '?';
  }
  EXPECT_EQ(order, "ssbee") << "starts, the word to the other node, stops";
  EXPECT_EQ(ledger.due(), nullptr);
  // No budget: the end is held, too.
  core.step(now, NodeId{1}, RoundStopped{Round{0}, {}});
  EXPECT_THAT(ledger.pass(core, core.step(now, NodeId{2}, RoundStopped{Round{0}, {}})), IsEmpty());
  ASSERT_NE(ledger.due(), nullptr);
  EXPECT_TRUE(ledger.due()->outcome.has_value());
  EXPECT_THAT(ledger.written(), SizeIs(2));
}

TEST(ResumedRounds, BeginAfterTheLastOneWhenTheSurvivorsAreBack) {
  Resumption resumption;
  resumption.next = Round{5};
  resumption.history.restarts = 2;
  resumption.goes_on = true;
  resumption.nodes_expected = 2;
  RoundConfig three = config();
  three.max_nodes = 3;
  RoundCore core(three, resumption);
  const CoreTime now{};
  NodeHello a = hello("a");
  a.max_nodes = 3;
  NodeHello b = a;
  EXPECT_THAT(core.step(now, NodeId{1}, a), SizeIs(1)) << "it waits for the other";
  const auto out = core.step(now, NodeId{2}, b);
  ASSERT_FALSE(out.empty());
  EXPECT_EQ(out.back().message, ToAgent(OpenStore{Round{5}}));
  EXPECT_EQ(core.restarts(), 2);
}

TEST(ResumedRounds, DoNotWaitForEverForThoseWhoDiedToo) {
  Resumption resumption;
  resumption.next = Round{1};
  resumption.goes_on = true;
  resumption.nodes_expected = 2;
  RoundConfig three = config();
  three.max_nodes = 3;
  RoundCore core(three, resumption);
  NodeHello a = hello("a");
  a.max_nodes = 3;
  core.step(CoreTime{}, NodeId{1}, a);
  ASSERT_EQ(core.deadline(), CoreTime(10s));
  EXPECT_THAT(core.tick(CoreTime(10s)), ElementsAre(ToNode{NodeId{1}, OpenStore{Round{1}}}));
}

// ---- the election

template <typename Action>
const Action* find(const ElectionCore::Out& out) {
  for (const ElectionAction& each : out) {
    if (const auto* action = std::get_if<Action>(&each)) return action;
  }
  return nullptr;
}

class Election : public testing::Test {
 protected:
  EtcdView led_by(const std::string& leadership, std::int64_t revision) {
    EtcdView view;
    view.leader = LeaderKey{leadership, a_record().incarnation, "h:1", revision};
    view.record = a_record();
    view.job_revision = revision;
    return view;
  }
  EtcdView deserted(std::int64_t job_revision) {
    EtcdView view;
    view.record = a_record();
    view.job_revision = job_revision;
    return view;
  }
  void follow(std::int64_t revision) {
    core_.begin(now_);
    ASSERT_NE(find<Follow>(core_.view(now_, led_by("other", revision))), nullptr);
  }
  // This agent has the record 3f-1 with round 4, and leads.
  void lead(std::int64_t revision) {
    core_.begin(now_);
    ASSERT_NE(find<Claim>(core_.view(now_, deserted(3))), nullptr);
    ASSERT_NE(find<Lead>(core_.claimed(now_, revision)), nullptr);
  }

  CoreTime now_{};
  ElectionCore core_{{"me", 2s, 60s}};
};

TEST_F(Election, BeginsAJobWhereThereIsNone) {
  EXPECT_NE(find<ReadEtcd>(core_.begin(now_)), nullptr);
  const auto out = core_.view(now_, {});
  const auto* claim = find<Claim>(out);
  ASSERT_NE(claim, nullptr);
  EXPECT_EQ(claim->job_revision, 0);
  EXPECT_EQ(claim->record.round, std::nullopt);
  const auto won = core_.claimed(now_, 7);
  ASSERT_NE(find<Lead>(won), nullptr);
  EXPECT_FALSE(find<Lead>(won)->goes_on);
  EXPECT_TRUE(core_.leads());
}

TEST_F(Election, GoesOnWithTheRecordOfADeadLeader) {
  follow(5);
  EXPECT_NE(find<ReadEtcd>(core_.leader_deleted(now_, 8)), nullptr);
  const auto claimed = core_.view(now_, deserted(6));
  ASSERT_NE(find<Claim>(claimed), nullptr);
  EXPECT_EQ(find<LoseLeader>(claimed), nullptr) << "it may be back before this claim";
  EXPECT_EQ(find<Claim>(claimed)->job_revision, 6);
  const auto out = core_.claimed(now_, 9);
  EXPECT_NE(find<LoseLeader>(out), nullptr);
  const auto* lead = find<Lead>(out);
  ASSERT_NE(lead, nullptr);
  EXPECT_TRUE(lead->goes_on);
  EXPECT_EQ(lead->nodes_expected, 1);
  EXPECT_EQ(resumption_of(*lead).next, Round{5});
}

TEST_F(Election, KeepsALeaderThatClaimsItsLeaseAgain) {
  follow(5);
  core_.leader_deleted(now_, 8);
  core_.view(now_, deserted(6));
  EXPECT_THAT(core_.view(now_, led_by("other", 9)), IsEmpty());
  EXPECT_EQ(core_.leader()->revision, 9);
}

TEST_F(Election, ALeaderWithoutItsLeaseClaimsItAgainIfNobodyElseHasLed) {
  lead(5);
  core_.written(6, a_record());
  EXPECT_NE(find<ReadEtcd>(core_.leadership_uncertain()), nullptr);
  const auto out = core_.view(now_, deserted(6));
  ASSERT_NE(find<Claim>(out), nullptr);
  EXPECT_EQ(find<StopLeading>(out), nullptr);
  EXPECT_THAT(core_.claimed(now_, 9), IsEmpty());
  EXPECT_EQ(core_.leader()->revision, 9) << "by which it writes from now on";
}

TEST_F(Election, ALeaderAfterWhomAnotherHasLedBeginsAnew) {
  lead(5);
  core_.written(6, a_record());
  core_.leadership_uncertain();
  const auto out = core_.view(now_, deserted(8));
  EXPECT_NE(find<StopLeading>(out), nullptr);
  EXPECT_NE(find<LoseLeader>(out), nullptr);
}

TEST_F(Election, ADeposedLeaderFollowsTheOther) {
  lead(5);
  const auto out = core_.leader_put(now_, *led_by("other", 8).leader);
  ASSERT_THAT(out, SizeIs(3));
  EXPECT_TRUE(std::holds_alternative<StopLeading>(out[0]));
  EXPECT_TRUE(std::holds_alternative<LoseLeader>(out[1]));
  EXPECT_TRUE(std::holds_alternative<Follow>(out[2]));
  EXPECT_FALSE(core_.leads());
}

TEST_F(Election, NeverGoesBackToAnEarlierLeader) {
  follow(5);
  EXPECT_THAT(core_.leader_put(now_, *led_by("older", 4).leader), IsEmpty());
  EXPECT_THAT(core_.leader_deleted(now_, 4), IsEmpty());
  EXPECT_EQ(core_.leader()->leadership, "other");
}

TEST_F(Election, DeposesOnlyALeaderWhosePortRefuses) {
  follow(5);
  const auto silent = core_.connection_gone(now_, /*was_refused=*/false);
  EXPECT_NE(find<LoseLeader>(silent), nullptr);
  EXPECT_EQ(find<Depose>(silent), nullptr);
  core_.view(now_, led_by("other", 5));
  const auto refused = core_.connection_gone(now_, /*was_refused=*/true);
  ASSERT_NE(find<Depose>(refused), nullptr);
  EXPECT_EQ(find<Depose>(refused)->revision, 5);
}

TEST_F(Election, AClaimWhoseAnswerWasLostIsSeenLater) {
  core_.begin(now_);
  const auto claimed = core_.view(now_, deserted(3));
  const std::string leadership = find<Claim>(claimed)->key.leadership;
  core_.failed(now_, "no answer", false);
  core_.tick(*core_.deadline());
  EXPECT_NE(find<Lead>(core_.view(now_, led_by(leadership, 4))), nullptr);
}

TEST_F(Election, EndsWithAnOutcomeThatNobodyIsLeftToTell) {
  follow(5);
  core_.connection_gone(now_, true);
  EtcdView view = deserted(6);
  view.record->outcome.emplace();
  const auto out = core_.view(now_, view);
  EXPECT_NE(find<EndJob>(out), nullptr);
  EXPECT_EQ(find<Claim>(out), nullptr);
}

TEST_F(Election, ALateComerBeginsANewLifeOfAnEndedJobWhenItsLeaderIsGone) {
  core_.begin(now_);
  EtcdView view = led_by("other", 5);
  view.record->outcome.emplace();
  EXPECT_THAT(core_.view(now_, view), IsEmpty()) << "its leader still tells the others";
  core_.leader_deleted(now_, 6);
  view.leader.reset();
  const auto out = core_.view(now_, view);
  ASSERT_NE(find<Claim>(out), nullptr);
  EXPECT_NE(find<Claim>(out)->record.incarnation, a_record().incarnation);
  EXPECT_EQ(find<Claim>(out)->record.round, std::nullopt);
}

TEST_F(Election, IsOfOneLifeOfTheJobOnly) {
  follow(5);
  auto key = *led_by("other life", 9).leader;
  key.incarnation = "another";
  const auto out = core_.leader_put(now_, key);
  ASSERT_NE(find<GiveUp>(out), nullptr);
  EXPECT_EQ(find<GiveUp>(out)->why, GiveUp::Why::kLost);
}

TEST_F(Election, WhoLeavesClaimsNothing) {
  follow(5);
  core_.leave();
  core_.leader_deleted(now_, 8);
  EXPECT_THAT(core_.view(now_, deserted(6)), IsEmpty());
}

TEST_F(Election, WhatIsWrongFromTheStartEndsItAndLaterItDoesNot) {
  core_.begin(now_);
  const auto out = core_.failed(now_, "wrong password", /*is_final=*/true);
  ASSERT_NE(find<GiveUp>(out), nullptr);
  EXPECT_EQ(find<GiveUp>(out)->sentence, "wrong password");
  ElectionCore other({"other", 2s, 60s});
  other.begin(now_);
  other.view(now_, led_by("x", 5));
  other.connection_gone(now_, true);
  EXPECT_EQ(find<GiveUp>(other.failed(now_, "wrong password", true)), nullptr);
  EXPECT_TRUE(other.deadline().has_value());
}

TEST_F(Election, GivesUpInTime) {
  core_.begin(now_);
  core_.failed(now_, "Connection refused", false);
  const auto out = core_.tick(now_ + 60s);
  ASSERT_NE(find<GiveUp>(out), nullptr);
  EXPECT_EQ(find<GiveUp>(out)->why, GiveUp::Why::kNeverReached);
  EXPECT_THAT(find<GiveUp>(out)->sentence, HasSubstr("Connection refused"));
  EXPECT_EQ(core_.deadline(), std::nullopt);
}

}  // namespace
}  // namespace ddprun::rdzv
