// The answers are those that the providers' documentation shows.
#include "agent/notice/provider_answers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using From = NoticeSpec::From;

constexpr std::chrono::system_clock::time_point at(std::int64_t seconds) {
  return std::chrono::system_clock::time_point(std::chrono::seconds(seconds));
}

// One question, with these answers; what was asked is in `asked`.
Answer answer(MetadataTalk& talk, const std::vector<rdzv::HttpReply>& replies,
              std::vector<std::string>* asked = nullptr) {
  rdzv::HttpRequest request = talk.begin();
  for (const rdzv::HttpReply& reply : replies) {
    if (asked != nullptr) asked->push_back(request.method + " " + request.target);
    auto next = talk.on_reply(reply);
    if (auto* found = std::get_if<Answer>(&next)) {
      EXPECT_EQ(&reply, &replies.back()) << "this was not asked for";
      return *found;
    }
    request = std::get<rdzv::HttpRequest>(next);
  }
  ADD_FAILURE() << "one more is asked: " << request.target;
  return NoNotice{};
}
Answer answer(From from, const std::vector<rdzv::HttpReply>& replies) {
  MetadataTalk talk(from);
  return answer(talk, replies);
}
rdzv::HttpReply ok(const std::string& body) { return {200, body, ""}; }

std::string sentence(const Answer& answer) {
  const auto* notice = std::get_if<Notice>(&answer);
  return notice == nullptr ? "" : notice->sentence;
}
bool is_unclear(const Answer& answer) { return std::holds_alternative<Unclear>(answer); }
bool is_none(const Answer& answer) { return std::holds_alternative<NoNotice>(answer); }

// ---- AWS

Answer of_aws(const rdzv::HttpReply& action) {
  return answer(From::kAws, {ok("TOKEN=="), ok("i-0abc"), action});
}

TEST(ProviderAnswers, AwsSaysWhatHappensToWhichInstanceAndWhen) {
  const Answer told = of_aws(ok(R"({"action": "terminate", "time": "2017-09-18T08:22:00Z"})"));
  ASSERT_TRUE(std::holds_alternative<Notice>(told));
  EXPECT_EQ(std::get<Notice>(told),
            (Notice{"the metadata service says that", "i-0abc",
                    "instance i-0abc is terminated at 2017-09-18T08:22:00Z", at(1505722920)}));
  EXPECT_EQ(sentence(of_aws(ok(R"({"action":"stop","time":"2017-09-18T08:22:00Z"})"))),
            "instance i-0abc is stopped at 2017-09-18T08:22:00Z");
  EXPECT_EQ(sentence(of_aws(ok(R"({"action":"hibernate"})"))), "instance i-0abc is hibernated");
  EXPECT_EQ(sentence(of_aws(ok(R"({"action":"stop","time":"soon"})"))),
            "instance i-0abc is stopped");
}

TEST(ProviderAnswers, AwsHasNoNoticeAsLongAsThePageIsMissing) {
  EXPECT_TRUE(is_none(of_aws({404, "<?xml version=\"1.0\"?><html>404 - Not Found</html>", ""})));
}

TEST(ProviderAnswers, WhatAwsDoesNotDocumentIsUnclear) {
  for (const rdzv::HttpReply& reply :
       {ok(""), ok("<html>"), ok("[]"), ok("null"), ok(R"({"action":1})"),
        ok(R"({"action":"rebalance"})"), ok(R"({"noticeTime":"2020-10-27T08:22:00Z"})"),
        ok(std::string(1000, '[')), rdzv::HttpReply{500, R"({"action":"terminate"})", ""},
        rdzv::HttpReply{302, "", ""}}) {
    EXPECT_TRUE(is_unclear(of_aws(reply))) << reply.body;
  }
}

TEST(ProviderAnswers, AwsIsAskedForTokenAndInstanceOnce) {
  MetadataTalk talk(From::kAws);
  std::vector<std::string> asked;
  answer(talk, {ok("TOKEN=="), ok("i-0abc"), {404, "", ""}}, &asked);
  answer(talk, {{404, "", ""}}, &asked);
  const std::string action = "GET /latest/meta-data/spot/instance-action";
  EXPECT_EQ(asked, (std::vector<std::string>{"PUT /latest/api/token",
                                             "GET /latest/meta-data/instance-id", action, action}));
  const auto request = talk.begin();
  EXPECT_EQ(request.headers, (decltype(request.headers){{"X-aws-ec2-metadata-token", "TOKEN=="}}));
}

TEST(ProviderAnswers, ATokenThatIsOverIsReplaced) {
  MetadataTalk talk(From::kAws);
  answer(talk, {ok("old"), ok("i-0abc"), {404, "", ""}});
  EXPECT_TRUE(is_none(answer(talk, {{401, "Unauthorized", ""}})));
  std::vector<std::string> asked;
  EXPECT_EQ(sentence(answer(talk, {ok("new"), ok(R"({"action":"stop"})")}, &asked)),
            "instance i-0abc is stopped");
  EXPECT_EQ(asked.front(), "PUT /latest/api/token");
}

TEST(ProviderAnswers, AwsWithoutATokenIsUnclear) {
  for (const rdzv::HttpReply& reply :
       {rdzv::HttpReply{404, "", ""}, rdzv::HttpReply{403, "", ""}, ok(""), ok("two words"),
        ok("a\r\nHeader: b"), ok(std::string(2000, 'x'))}) {
    EXPECT_TRUE(is_unclear(answer(From::kAws, {reply}))) << reply.body;
  }
}

TEST(ProviderAnswers, TheNameOfAnInstanceMayBeMissing) {
  EXPECT_EQ(sentence(answer(From::kAws, {ok("TOKEN"), {500, "", ""}, ok(R"({"action":"stop"})")})),
            "this instance is stopped");
  EXPECT_EQ(sentence(answer(From::kGcp, {{404, "", ""}, ok("TRUE")})),
            "this instance is preempted within 30 s");
}

// ---- GCP

TEST(ProviderAnswers, GcpSaysThatAnInstanceIsPreempted) {
  MetadataTalk talk(From::kGcp);
  std::vector<std::string> asked;
  EXPECT_TRUE(is_none(answer(talk, {ok("spot-1"), ok("FALSE\n"), ok("NONE\n")}, &asked)));
  EXPECT_EQ(sentence(answer(talk, {ok("TRUE\n")}, &asked)),
            "instance spot-1 is preempted within 30 s");
  const std::string instance = "GET /computeMetadata/v1/instance/";
  EXPECT_EQ(asked,
            (std::vector<std::string>{instance + "name", instance + "preempted",
                                      instance + "maintenance-event", instance + "preempted"}));
  const auto request = talk.begin();
  EXPECT_EQ(request.headers, (decltype(request.headers){{"Metadata-Flavor", "Google"}}));
}

TEST(ProviderAnswers, GcpSaysThatAnInstanceIsTerminatedForMaintenance) {
  const auto maintained = [](const rdzv::HttpReply& reply) {
    return answer(From::kGcp, {ok("gpu-1"), ok("FALSE"), reply});
  };
  EXPECT_EQ(sentence(maintained(ok("TERMINATE_ON_HOST_MAINTENANCE"))),
            "instance gpu-1 is terminated for the maintenance of its host");
  EXPECT_TRUE(is_none(maintained(ok("MIGRATE_ON_HOST_MAINTENANCE"))));
  EXPECT_TRUE(is_unclear(maintained({503, "TERMINATE_ON_HOST_MAINTENANCE", ""})));
  EXPECT_TRUE(is_unclear(maintained(ok(""))));
}

TEST(ProviderAnswers, WhatGcpDoesNotDocumentIsUnclear) {
  for (const rdzv::HttpReply& reply :
       {ok(""), ok("true"), ok("1"), ok("TRUE TRUE"), ok("<html>"),
        rdzv::HttpReply{403, "TRUE", ""}, rdzv::HttpReply{500, "TRUE", ""}}) {
    EXPECT_TRUE(is_unclear(answer(From::kGcp, {ok("spot-1"), reply}))) << reply.body;
  }
}

// ---- Azure

std::string event(const std::string& type, const std::string& resources,
                  const std::string& not_before = "Mon, 19 Sep 2016 18:29:47 GMT") {
  return R"({"EventId":"602d9444-d2cd-49c7-8624-8643e7171297","EventType":")" + type +
         R"(","ResourceType":"VirtualMachine","Resources":[)" + resources +
         R"(],"EventStatus":"Scheduled","NotBefore":")" + not_before +
         R"(","Description":"","EventSource":"Platform","DurationInSeconds":-1})";
}
Answer of_azure(const std::string& events) {
  return answer(From::kAzure,
                {ok("spot_1"), ok(R"({"DocumentIncarnation":1,"Events":[)" + events + "]}")});
}

TEST(ProviderAnswers, AzureSaysThatThisMachineIsPreemptedOrTerminated) {
  const Answer told = of_azure(event("Preempt", R"("spot_0","SPOT_1")"));
  ASSERT_TRUE(std::holds_alternative<Notice>(told));
  EXPECT_EQ(std::get<Notice>(told),
            (Notice{"the metadata service says that", "spot_1",
                    "instance spot_1 is preempted at 2016-09-19T18:29:47Z", at(1474309787)}));
  EXPECT_EQ(sentence(of_azure(event("Freeze", R"("spot_1")") + "," +
                              event("Terminate", R"("spot_1")", ""))),
            "instance spot_1 is terminated");
}

TEST(ProviderAnswers, AzureHasEventsThatAreNoNotice) {
  EXPECT_TRUE(is_none(of_azure("")));
  EXPECT_TRUE(is_none(of_azure(event("Preempt", R"("spot_0")")))) << "another machine's";
  EXPECT_TRUE(is_none(of_azure(event("Preempt", ""))));
  EXPECT_TRUE(is_none(of_azure("1,null,{}," + event("Preempt", "1"))));
  for (const std::string type : {"Reboot", "Redeploy", "Freeze", "Other"}) {
    EXPECT_TRUE(is_none(of_azure(event(type, R"("spot_1")")))) << type;
  }
}

TEST(ProviderAnswers, AzureIsUnclearWithoutTheNameOrTheEvents) {
  EXPECT_TRUE(is_unclear(answer(From::kAzure, {{400, "Bad request", ""}})));
  EXPECT_TRUE(is_unclear(answer(From::kAzure, {ok("")})));
  for (const rdzv::HttpReply& reply :
       {ok(""), ok("{}"), ok(R"({"Events":{}})"), ok("[]"), rdzv::HttpReply{410, "{}", ""},
        rdzv::HttpReply{500, R"({"Events":[]})", ""}}) {
    EXPECT_TRUE(is_unclear(answer(From::kAzure, {ok("spot_1"), reply}))) << reply.body;
  }
}

TEST(ProviderAnswers, AzureMayTakeTwoMinutesForItsFirstAnswer) {
  EXPECT_EQ(patience(From::kAzure) * 5s, 2min);
  for (const From other : {From::kAws, From::kGcp, From::kCommand}) EXPECT_EQ(patience(other), 1);
}

// ---- a command

TEST(ProviderAnswers, ACommandSaysWhatHappensInItsFirstLine) {
  const Answer told = answer_of_command(ExitStatus::exited(0), "  the queue wants node 7\nmore\n");
  EXPECT_EQ(sentence(told), "the queue wants node 7");
  EXPECT_EQ(sentence(answer_of_command(ExitStatus::exited(0), "without an end")), "without an end");
}

TEST(ProviderAnswers, ACommandThatFailsOrSaysNothingIsNoNotice) {
  EXPECT_TRUE(is_none(answer_of_command(ExitStatus::exited(1), "no\n")));
  EXPECT_TRUE(is_none(answer_of_command(ExitStatus::killed(SIGKILL), "yes\n")));
  EXPECT_TRUE(is_none(answer_of_command(ExitStatus::killed(127), "yes\n")));
  for (const int code : {126, 127}) {
    EXPECT_TRUE(is_unclear(answer_of_command(ExitStatus::exited(code), "yes\n")));
  }
  for (const std::string silent : {"", "\n", " \t\n", "\nsecond line\n"}) {
    EXPECT_TRUE(is_unclear(answer_of_command(ExitStatus::exited(0), silent)));
  }
}

TEST(ProviderAnswers, TheLineSaysHowMuchTimeIsLeft) {
  Notice notice{"the metadata service says that", "i-0abc", "instance i-0abc is stopped", at(1000)};
  EXPECT_EQ(in_words(notice, at(882)),
            "the metadata service says that instance i-0abc is stopped (in 118 s)");
  EXPECT_EQ(in_words(notice, at(1001)),
            "the metadata service says that instance i-0abc is stopped (now)");
  notice.at.reset();
  EXPECT_EQ(in_words(notice, at(1)), "the metadata service says that instance i-0abc is stopped");
}

}  // namespace
}  // namespace ddprun::agent
