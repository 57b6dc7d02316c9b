// A job whose machine is about to be taken back (--preempt-notice). The test is the metadata service of a cloud, at the
// address that it has in every cloud, in a network of its own; or the command.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/http_server.h"
#include "tests/support/job.h"
#include "tests/support/network.h"

namespace ddprun::test {
namespace {

using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int kPreempted = 113;
constexpr char kAddress[] = "169.254.169.254";
constexpr char kAction[] = "/latest/meta-data/spot/instance-action";

// Answers what the test has put there, as a provider does: AWS only with its token, the others only with their header.
// Anything else is not found.
class MetadataService {
 public:
  explicit MetadataService(const Network& network) {
    Job ip({"ip", "addr", "add", std::string(kAddress) + "/32", "dev", "lo"}, network.on(0));
    if (ip.wait() != exited(0)) throw std::runtime_error("ip addr add: " + ip.err());
    network.within(0, [this] {
      server_ =
          std::make_unique<HttpServer>([this](HttpServer::Connection& client) { serve(client); },
                                       nullptr, false, rdzv::Endpoint{kAddress, 80});
    });
  }

  void put(const std::string& target, const std::string& body, unsigned status = 200) {
    const std::lock_guard lock(mutex_);
    pages_[target] = {status, body};
  }
  void become_silent() {
    const std::lock_guard lock(mutex_);
    is_silent_ = true;
  }
  std::size_t asked(const std::string& target) const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::ranges::count(asked_, target));
  }

 private:
  void serve(HttpServer::Connection& client) {
    while (const auto request = client.read()) {
      const auto [status, body] = answer(*request);
      if (status == 0) return client.await_end();
      client.reply(status, body);
    }
  }
  std::pair<unsigned, std::string> answer(const HttpServer::Request& request) {
    const auto header = [&](const std::string& name) {
      const auto found = request.headers.find(name);
      return found == request.headers.end() ? "" : found->second;
    };
    const std::lock_guard lock(mutex_);
    asked_.push_back(request.target);
    if (is_silent_) return {0, ""};
    if (request.target == "/latest/api/token" && !pages_.contains(request.target)) {
      const bool is_right =
          request.method == "PUT" && !header("x-aws-ec2-metadata-token-ttl-seconds").empty();
      return is_right ? std::pair(200U, std::string("TOKEN==")) : std::pair(400U, std::string());
    }
    if (request.method != "GET") return {405, ""};
    if (request.target.starts_with("/latest/") && header("x-aws-ec2-metadata-token") != "TOKEN==")
      return {401, ""};
    if (request.target.starts_with("/computeMetadata/") && header("metadata-flavor") != "Google")
      return {403, ""};
    if (request.target.starts_with("/metadata/") && header("metadata") != "true") return {400, ""};
    const auto page = pages_.find(request.target);
    return page == pages_.end() ? std::pair(404U, std::string("Not Found")) : page->second;
  }

  mutable std::mutex mutex_;
  std::map<std::string, std::pair<unsigned, std::string>> pages_;
  std::vector<std::string> asked_;
  bool is_silent_ = false;
  std::unique_ptr<HttpServer> server_;
};

std::string utc_in(std::chrono::seconds left, const char* format) {
  const std::time_t when =
      std::chrono::system_clock::to_time_t(std::chrono::system_clock::now() + left);
  char text[64];
  std::tm fields{};
  return {text, std::strftime(text, sizeof text, format, ::gmtime_r(&when, &fields))};
}

bool are_there(const TemporaryTree& folder, const std::vector<std::string>& names) {
  return std::ranges::all_of(
      names, [&](const std::string& name) { return std::filesystem::exists(folder / name); });
}

std::vector<boost::json::object> events_of(const std::string& file, const std::string& name) {
  std::vector<boost::json::object> found;
  std::istringstream lines(read_file(file));
  for (std::string line; std::getline(lines, line);) {
    boost::json::object event = boost::json::parse(line).as_object();
    if (event.at("event").as_string() == name) found.push_back(std::move(event));
  }
  return found;
}

class OfAProvider : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto& why = Network::obstacle()) GTEST_SKIP() << *why;
    network_.emplace(1);
    service_.emplace(*network_);
  }

  // Two workers that leave when they are asked over their links.
  Job& start(const std::string& provider) {
    job_.emplace(ddprun({"--nproc-per-node=2", "--preempt-notice=" + provider,
                         "--events=" + (folder_ / "events")},
                        worker({"link", "take-leave", "touch", folder_ / "{rank}", "until-told",
                                "touch", folder_ / "told{rank}"})),
                 network_->on(0));
    return *job_;
  }
  bool run() {
    return job_->reaches([&] { return are_there(folder_, {"0", "1"}); });
  }
  void expect_preempted(const std::string& sentence) {
    EXPECT_EQ(job_->wait(), exited(kPreempted)) << job_->err();
    EXPECT_TRUE(are_there(folder_, {"told0", "told1"}));
    EXPECT_EQ(count_of("the metadata service says that " + sentence, job_->err()), 1U)
        << job_->err();
    EXPECT_THAT(job_->err(), AllOf(HasSubstr("the job is preempted, workers are asked to leave"),
                                   HasSubstr("PREEMPTED by a notice: " + sentence + "\n")));
    EXPECT_THAT(job_->left_over(), IsEmpty());
  }

  const TemporaryTree folder_;
  std::optional<Network> network_;
  std::optional<MetadataService> service_;
  std::optional<Job> job_;
};

TEST_F(OfAProvider, AwsEndsTheJobAsThePreemptionSignalDoes) {
  service_->put("/latest/meta-data/instance-id", "i-0abc");
  service_->put("/latest/meta-data/events/recommendations/rebalance",
                R"({"noticeTime":"2026-11-30T12:00:00Z"})");
  start("aws");
  ASSERT_TRUE(run()) << job_->err();
  ASSERT_TRUE(job_->reaches([&] { return service_->asked(kAction) >= 1; })) << job_->err();
  const std::string when = utc_in(seconds(118), "%FT%TZ");
  service_->put(kAction, R"({"action":"terminate","time":")" + when + "\"}");
  const std::string sentence = "instance i-0abc is terminated at " + when;
  expect_preempted(sentence);
  EXPECT_THAT(job_->err(), HasSubstr(when + " (in 11"));
  const auto notices = events_of(folder_ / "events", "preempt_notice");
  ASSERT_THAT(notices, SizeIs(1));
  EXPECT_EQ(notices[0].at("from"), "aws");
  EXPECT_EQ(notices[0].at("instance"), "i-0abc");
  EXPECT_EQ(notices[0].at("sentence"), boost::json::string(sentence));
  const auto finished = events_of(folder_ / "events", "finished");
  ASSERT_THAT(finished, SizeIs(1));
  EXPECT_EQ(finished[0].at("outcome"), "preempted");
  EXPECT_EQ(finished[0].at("why"), boost::json::string("a notice: " + sentence));
  EXPECT_TRUE(finished[0].at("signal").is_null());
}

TEST_F(OfAProvider, GcpAndItsThirtySeconds) {
  const std::string instance = "/computeMetadata/v1/instance/";
  service_->put(instance + "name", "spot-1");
  service_->put(instance + "preempted", "FALSE");
  service_->put(instance + "maintenance-event", "NONE");
  start("gcp");
  ASSERT_TRUE(run()) << job_->err();
  ASSERT_TRUE(job_->reaches([&] { return service_->asked(instance + "maintenance-event") >= 1; }));
  service_->put(instance + "preempted", "TRUE");
  expect_preempted("instance spot-1 is preempted within 30 s");
}

TEST_F(OfAProvider, AzureWithEventsOfOtherMachines) {
  const std::string events = "/metadata/scheduledevents?api-version=2020-07-01";
  const auto document = [](const std::string& machine) {
    return R"({"DocumentIncarnation":2,"Events":[{"EventId":"1","EventType":"Preempt",)"
           R"("ResourceType":"VirtualMachine","Resources":[")" +
           machine +
           R"("],"EventStatus":"Scheduled","NotBefore":"Mon, 19 Sep 2016 18:29:47 GMT"}]})";
  };
  service_->put("/metadata/instance/compute/name?api-version=2020-06-01&format=text", "set_1");
  service_->put(events, document("set_0"));
  start("azure");
  ASSERT_TRUE(run()) << job_->err();
  ASSERT_TRUE(job_->reaches([&] { return service_->asked(events) >= 2; })) << job_->err();
  EXPECT_EQ(job_->err(), "");
  service_->put(events, document("set_1"));
  expect_preempted("instance set_1 is preempted at 2016-09-19T18:29:47Z");
}

TEST_F(OfAProvider, ANoticeThatIsThereAtTheStartEndsTheJob) {
  service_->put(kAction, R"({"action":"stop"})");
  start("aws");
  EXPECT_EQ(job_->wait(), exited(kPreempted)) << job_->err();
  EXPECT_THAT(job_->err(), HasSubstr("PREEMPTED by a notice: this instance is stopped\n"));
}

// What answers is not a metadata service, or it fails.
TEST_F(OfAProvider, GarbageIsNoNoticeAndIsSaidOnce) {
  service_->put(kAction, "<html>terminate</html>");
  start("aws");
  ASSERT_TRUE(run()) << job_->err();
  ASSERT_TRUE(job_->reaches([&] { return service_->asked(kAction) >= 2; })) << job_->err();
  service_->put(kAction, R"({"action":"terminate"})", 500);
  ASSERT_TRUE(job_->reaches([&] { return service_->asked(kAction) >= 3; })) << job_->err();
  EXPECT_FALSE(std::filesystem::exists(folder_ / "told0"));
  EXPECT_EQ(count_of("this is no notice", job_->err()), 1U) << job_->err();
  EXPECT_THAT(job_->err(),
              HasSubstr("--preempt-notice=aws: it answers 200 '<html>terminate</html>' "
                        "to GET /latest/meta-data/spot/instance-action; this is no "
                        "notice, and it is asked again every 5 s"));
}

// Neither the workers nor the end of the job wait for the answer.
TEST_F(OfAProvider, SilenceIsNoNoticeAndHoldsNothingUp) {
  service_->become_silent();
  Job job(ddprun({"--preempt-notice=gcp"}, worker({"until", folder_ / "finish"})), network_->on(0));
  ASSERT_TRUE(job.reaches([&] {
    return service_->asked("/computeMetadata/v1/instance/name") >= 2;
  })) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("--preempt-notice=gcp: it did not answer within 1 s"));
  const auto before = steady_clock::now();
  write_file(folder_ / "finish", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_LT(steady_clock::now() - before, seconds(1)) << "a question was open";
  EXPECT_EQ(count_of("this is no notice", job.err()), 1U) << job.err();
}

TEST(PreemptNotice, WithoutAMetadataServiceTheJobRuns) {
  if (const auto& why = Network::obstacle()) GTEST_SKIP() << *why;
  Network network(1);
  Job job(ddprun({"--preempt-notice=aws"}, worker({"exit", "0"})), network.on(0));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.err(), AllOf(HasSubstr("--preempt-notice=aws: 169.254.169.254:80: "),
                               HasSubstr("this is no notice")));
}

// ---- a command

class OfACommand : public ::testing::Test {
 protected:
  // Writes down that it runs; yes: what is in the file `notice`.
  std::string command() const {
    return "echo run >>" + (folder_ / "runs") + "; cat " + (folder_ / "notice");
  }
  std::size_t runs() const { return count_of("run\n", read_file(folder_ / "runs")); }

  const TemporaryTree folder_;
};

TEST_F(OfACommand, ItsFirstLineIsTheReasonAndItIsNotRunAgain) {
  Job job(ddprun({"--preempt-notice=" + command()},
                 worker({"link", "take-leave", "touch", folder_ / "{rank}", "until-told", "touch",
                         folder_ / "told", "until", folder_ / "finish"})));
  ASSERT_TRUE(job.reaches([&] { return are_there(folder_, {"0"}) && runs() >= 1; })) << job.err();
  write_file(folder_ / "notice", "node 7 is \x1b[31mwanted\nnot this line\n");
  ASSERT_TRUE(job.reaches([&] { return are_there(folder_, {"told"}); })) << job.err();
  const std::size_t before = runs();
  EXPECT_FALSE(job.reaches([&] { return runs() > before; }, seconds(6)));
  write_file(folder_ / "finish", "");
  EXPECT_EQ(job.wait(), exited(kPreempted)) << job.err();
  const std::string sentence = "node 7 is \\x1b[31mwanted";
  EXPECT_THAT(job.err(),
              AllOf(HasSubstr("the command of --preempt-notice says: " + sentence + ": the job"),
                    HasSubstr("PREEMPTED by a notice: " + sentence + "\n"),
                    Not(HasSubstr("not this line"))));
}

// It has no handler for SIGUSR1, so nothing is sent, and it goes on as long as the machine does.
TEST_F(OfACommand, AProgramThatTakesNoRequestsGoesOnAndIsNamed) {
  Job job(ddprun({"--nproc-per-node=2", "--preempt-notice=" + command()},
                 worker({"touch", folder_ / "{rank}", "until", folder_ / "finish"})));
  ASSERT_TRUE(job.reaches([&] { return are_there(folder_, {"0", "1"}); })) << job.err();
  write_file(folder_ / "notice", "wanted\n");
  ASSERT_TRUE(job.reaches([&] {
    return job.err().find("ranks 0 and 1 do not react to the preemption, and run on") !=
           std::string::npos;
  })) << job.err();
  EXPECT_THAT(job.workers(), SizeIs(2)) << "they run";
  write_file(folder_ / "finish", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

TEST_F(OfACommand, AProgramThatTakesNoRequestsGetsThePreemptSignal) {
  Job job(ddprun({"--preempt-notice=" + command(), "--preempt-signal=USR2"},
                 worker({"end-well-on", "12", "touch", folder_ / "{rank}", "wait"})));
  ASSERT_TRUE(job.reaches([&] { return are_there(folder_, {"0"}); })) << job.err();
  write_file(folder_ / "notice", "wanted\n");
  EXPECT_EQ(job.wait(), exited(kPreempted)) << job.err();
  EXPECT_THAT(job.err(),
              AllOf(HasSubstr("PREEMPTED by a notice: wanted\n"), Not(HasSubstr("do not react"))));
}

TEST_F(OfACommand, OneThatIsLateIsKilledWithItsChildren) {
  Job job(ddprun({"--preempt-notice=echo $$ >" + (folder_ / "pid") + "; sleep 1000 & echo $! >" +
                  (folder_ / "child") + "; wait; echo yes"},
                 worker({"until", folder_ / "finish"})));
  ASSERT_TRUE(job.reaches([&] {
    return job.err().find("it did not end within 1 s, and was killed with its children") !=
           std::string::npos;
  })) << job.err();
  for (const std::string file : {"pid", "child"}) {
    const auto pid = static_cast<pid_t>(std::stol(read_file(folder_ / file)));
    EXPECT_TRUE(eventually([&] {
      const auto info = process(pid);
      return !info || info->state == 'Z';
    })) << file;
  }
  write_file(folder_ / "finish", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

TEST_F(OfACommand, ItDoesNotOutliveAKilledAgent) {
  Job job(ddprun({"--preempt-notice=sleep 1000 & echo $! >" + (folder_ / "new") + "; mv " +
                  (folder_ / "new") + " " + (folder_ / "child") + "; wait"},
                 worker({"wait"})));
  ASSERT_TRUE(job.reaches([&] { return are_there(folder_, {"child"}); })) << job.err();
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), killed_by(SIGKILL));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_F(OfACommand, ItsEndIsNoticedWhereThereAreNoPidfds) {
  Job job(with_calls_denied(
      {"pidfd_open:deny=ENOSYS,process=ddprun*", "clone3:deny=ENOSYS,process=ddprun*"},
      ddprun({"--preempt-notice=" + command()},
             worker({"link", "take-leave", "touch", folder_ / "{rank}", "until-told"}))));
  ASSERT_TRUE(job.reaches([&] { return are_there(folder_, {"0"}) && runs() >= 1; })) << job.err();
  write_file(folder_ / "notice", "wanted\n");
  EXPECT_EQ(job.wait(), exited(kPreempted)) << job.err();
}

TEST_F(OfACommand, OneThatCannotBeExecutedIsSaidOnceAndTheJobRuns) {
  Job job(ddprun({"--preempt-notice=" + command() + "; /nowhere/asker --now"},
                 worker({"until", folder_ / "finish"})));
  ASSERT_TRUE(job.reaches([&] { return runs() >= 2; })) << job.err();
  write_file(folder_ / "finish", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(count_of("it cannot be executed (exit code 127)", job.err()), 1U) << job.err();
}

TEST_F(OfACommand, OneThatAnswersNoIsSilent) {
  write_file(folder_ / "notice", "a line alone is no notice\n");
  Job job(ddprun({"--preempt-notice=" + command() + "; exit 1"},
                 worker({"until", folder_ / "finish"})));
  ASSERT_TRUE(job.reaches([&] { return runs() >= 2; })) << job.err();
  write_file(folder_ / "finish", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(job.err(), "");
}

TEST_F(OfACommand, ItHasNoInputAndItsErrorsGoNowhere) {
  Job job(ddprun({"--preempt-notice=echo complaint >&2; cat; echo run >>" + (folder_ / "runs") +
                  "; exit 1"},
                 worker({"until", folder_ / "finish"})),
          {.stdin_text = "for the job\n"});
  ASSERT_TRUE(job.reaches([&] { return runs() >= 1; })) << job.err();
  write_file(folder_ / "finish", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(job.err(), "");
}

// ---- several nodes

// The leader's node goes, and with it the job; the other node's report says why.
TEST(PreemptNotice, OfOneNodeIsInTheReportsOfAll) {
  Cluster cluster(
      {.actions = {"link", "take-leave", "touch", "{folder}/ready.{rank}", "until-told"}});
  const std::string notice = cluster.folder() / "notice";
  cluster.start(0, {"--preempt-notice=cat " + notice});
  cluster.start(1);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  ASSERT_TRUE(cluster[0].reaches([&] { return are_there(cluster.folder(), {"ready.0"}); }));
  write_file(notice, "wanted\n");
  EXPECT_THAT(cluster.wait(),
              ElementsAre(std::pair(0, exited(kPreempted)), std::pair(1, exited(kPreempted))))
      << cluster.told();
  EXPECT_THAT(cluster[0].err(), HasSubstr("PREEMPTED by a notice: wanted\n"));
  EXPECT_THAT(cluster[1].err(), HasSubstr("PREEMPTED by a notice that a node is taken back\n"));
}

}  // namespace
}  // namespace ddprun::test
