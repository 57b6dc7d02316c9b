// A job that reports to Kubeflow Trainer: the test is the status endpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <boost/json.hpp>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/certificates.h"
#include "tests/support/cluster.h"
#include "tests/support/http_server.h"
#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kPath[] = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/llm/status";
constexpr char kForbidden[] =
    R"({"status":"Failure","message":"Forbidden","reason":"Forbidden","code":403})";

// Keeps what it is told.
class Endpoint {
 public:
  using Answer = std::function<void(HttpServer::Connection&)>;
  explicit Endpoint(
      const Certificates& certificates,
      Answer answer = [](auto& client) { client.reply(200, "{}"); })
      : server_(
            [this, answer](HttpServer::Connection& client) {
              while (auto request = client.read()) {
                {
                  const std::lock_guard lock(mutex_);
                  requests_.push_back(*request);
                }
                answer(client);
              }
            },
            &certificates) {}

  std::string url() const { return server_.url(kPath); }
  int connections() const { return server_.connections(); }
  std::vector<HttpServer::Request> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  bool gets(std::size_t count, milliseconds deadline = kDeadline) const {
    return eventually([&] { return requests().size() >= count; }, deadline);
  }

 private:
  mutable std::mutex mutex_;
  std::vector<HttpServer::Request> requests_;
  HttpServer server_;
};

std::string metric(const HttpServer::Request& request, const std::string& name) {
  const auto body = boost::json::parse(request.body);
  for (const auto& each : body.at("trainerStatus").at("metrics").as_array()) {
    if (each.at("name").as_string() == name) return std::string(each.at("value").as_string());
  }
  return "none";
}

class Kubeflow : public ::testing::Test {
 protected:
  Kubeflow() : certificates_(folder_.path()) { write_file(token(), "first-token\n"); }

  std::string token() const { return folder_ / "token"; }
  std::string finish() const { return folder_ / "finish"; }
  std::map<std::string, std::string> environment(const std::string& url) const {
    return {{"KUBEFLOW_TRAINER_SERVER_URL", url},
            {"KUBEFLOW_TRAINER_SERVER_TOKEN", token()},
            {"KUBEFLOW_TRAINER_SERVER_CA_CERT", certificates_.ca}};
  }

  const TemporaryTree folder_;
  const Certificates certificates_;
};

TEST_F(Kubeflow, HearsHowFarTheJobIs) {
  Endpoint endpoint(certificates_);
  Job job(ddprun({"--nproc-per-node=2"},
                 worker({"link", "on-rank", "0", "progress", "412/1000", "on-rank", "1", "progress",
                         "1/2", "until", finish()})),
          {.environment = environment(endpoint.url())});
  ASSERT_TRUE(endpoint.gets(1)) << job.err();
  const auto request = endpoint.requests().front();
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.target, kPath);
  EXPECT_EQ(request.headers.at("authorization"), "Bearer first-token");
  EXPECT_EQ(request.headers.at("content-type"), "application/json");
  const auto status = boost::json::parse(request.body).at("trainerStatus");
  EXPECT_EQ(status.at("progressPercentage").as_int64(), 41);
  EXPECT_EQ(metric(request, "step"), "412");
  EXPECT_EQ(metric(request, "world_size"), "2");
  write_file(finish(), "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(job.err(), "");
  EXPECT_THAT(endpoint.requests(), SizeIs(1));  // nothing has changed since
}

TEST_F(Kubeflow, HearsTheLastStepAndNotEveryStep) {
  Endpoint endpoint(certificates_);
  const auto began = steady_clock::now();
  Job job(
      ddprun({}, worker({"link", "progress", "1/900", "until", folder_ / "go", "progress", "2/900",
                         "progress", "3/900", "until", finish(), "progress", "900/900"})),
      {.environment = environment(endpoint.url())});
  ASSERT_TRUE(endpoint.gets(1)) << job.err();
  write_file(folder_ / "go", "");
  write_file(finish(), "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  ASSERT_THAT(endpoint.requests(), SizeIs(::testing::Ge(2U)));
  EXPECT_EQ(metric(endpoint.requests().back(), "step"), "900");
  const auto seconds_taken = std::chrono::duration_cast<seconds>(steady_clock::now() - began);
  EXPECT_LE(endpoint.requests().size(), 2U + static_cast<unsigned>(seconds_taken.count()) / 5);
}

// Kubernetes exchanges it every hour.
TEST_F(Kubeflow, GetsTheTokenThatIsValidNow) {
  Endpoint endpoint(certificates_);
  Job job(ddprun({}, worker({"link", "progress", "1/900", "until", folder_ / "go", "progress",
                             "2/900", "until", finish()})),
          {.environment = environment(endpoint.url())});
  ASSERT_TRUE(endpoint.gets(1)) << job.err();
  write_file(token(), "second-token");
  write_file(folder_ / "go", "");
  ASSERT_TRUE(endpoint.gets(2)) << job.err();
  EXPECT_EQ(endpoint.requests().back().headers.at("authorization"), "Bearer second-token");
  EXPECT_EQ(endpoint.connections(), 1);
  write_file(finish(), "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

// A report would wipe out what such a program has reported by itself.
TEST_F(Kubeflow, HearsNothingOfAProgramThatSaysNothing) {
  Endpoint endpoint(certificates_);
  Job job(ddprun({"--nproc-per-node=2"}, worker({"link", "on-rank", "1", "progress", "1/2", "stamp",
                                                 folder_.path(), "until", finish()})),
          {.environment = environment(endpoint.url())});
  ASSERT_TRUE(job.reaches([&] { return stamps(folder_.path(), 0).size() == 2; })) << job.err();
  EXPECT_FALSE(endpoint.gets(1, milliseconds(1500)));
  write_file(finish(), "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(job.err(), "");
}

TEST_F(Kubeflow, HearsTheNodeOfRank0Only) {
  Endpoint first(certificates_);
  Endpoint second(certificates_);
  const Cluster cluster({.program = worker({"link", "progress", "1/2", "until", finish()})});
  Job node0(cluster.command(0, {"--node-rank=0"}),
            cluster.on(0, {.environment = environment(first.url())}));
  Job node1(cluster.command(1, {"--node-rank=1"}),
            cluster.on(1, {.environment = environment(second.url())}));
  ASSERT_TRUE(first.gets(1)) << node0.err() << node1.err();
  EXPECT_EQ(metric(first.requests().front(), "world_size"), "2");
  write_file(finish(), "");
  EXPECT_EQ(node0.wait(), exited(0)) << node0.err();
  EXPECT_EQ(node1.wait(), exited(0)) << node1.err();
  EXPECT_THAT(second.requests(), IsEmpty());
}

// ---- what cannot work: one sentence, and a job that goes on

TEST_F(Kubeflow, ThatCannotBeToldIsNamedOnceAndHarmsNothing) {
  Endpoint good(certificates_);
  Endpoint forbidding(certificates_, [](auto& client) { client.reply(403, kForbidden); });
  Endpoint broken(certificates_, [](auto& client) { client.reply(500, "<html>\xff"); });
  Endpoint cut(certificates_, [](auto& client) { client.close(); });
  const auto with = [&](const Endpoint& endpoint, const std::string& name,
                        const std::string& value) {
    auto variables = environment(endpoint.url());
    variables["KUBEFLOW_TRAINER_SERVER_" + name] = value;
    return variables;
  };
  const std::string empty = folder_ / "empty";
  const std::string evil = folder_ / "evil";
  const std::string not_pem = folder_ / "not_pem";
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  write_file(empty, "\n");
  write_file(evil, "token\r\nX-Other: 1\n");
  write_file(not_pem, "no certificate\n");
  struct Case {
    std::map<std::string, std::string> environment;
    std::string sentence;
    std::unique_ptr<Job> job{};
  };
  std::vector<Case> cases;
  const auto add = [&](std::map<std::string, std::string> variables, const std::string& sentence) {
    cases.push_back({std::move(variables), sentence});
  };
  add(with(good, "TOKEN", ""), "KUBEFLOW_TRAINER_SERVER_TOKEN names no file");
  add(with(good, "TOKEN", folder_ / "nowhere"), "the token's file " + (folder_ / "nowhere"));
  add(with(good, "TOKEN", folder_.path()), "it is no regular file");
  add(with(good, "TOKEN", pipe), "it is no regular file");
  add(with(good, "TOKEN", empty), "it is empty");
  add(with(good, "TOKEN", evil), "bytes that a token cannot have");
  add(with(good, "CA_CERT", folder_ / "nowhere"), "CA file " + (folder_ / "nowhere"));
  add(with(good, "CA_CERT", not_pem), "not a good PEM file");
  add(with(good, "CA_CERT", certificates_.other_ca), "certificate");
  add(with(good, "URL", "http://localhost:1/status"), "over https only");
  add(with(good, "URL", "nonsense"), "KUBEFLOW_TRAINER_SERVER_URL=nonsense");
  add(with(good, "URL", "https://127.0.0.1:1/status"), "refused");
  add(environment(forbidding.url()), "it answers 403: Forbidden");
  add(environment(broken.url()), "it answers 500");
  add(environment(cut.url()), "KUBEFLOW_TRAINER_SERVER_URL=" + cut.url());
  for (Case& each : cases) {
    each.job = std::make_unique<Job>(
        ddprun({}, worker({"link", "progress", "1/2", "until", finish(), "progress", "2/2"})),
        JobSetup{.environment = each.environment});
  }
  for (const Case& each : cases) {
    EXPECT_TRUE(each.job->reaches([&] {
      return each.job->err().find(each.sentence) != std::string::npos;
    })) << each.sentence
        << "\n"
        << each.job->err();
  }
  write_file(finish(), "");
  for (const Case& each : cases) {
    EXPECT_EQ(each.job->wait(), exited(0)) << each.job->err();
    const std::string err = each.job->err();
    EXPECT_EQ(std::ranges::count(err, '\n'), 1) << err;
    EXPECT_THAT(err,
                AllOf(HasSubstr("KUBEFLOW_TRAINER_SERVER_URL="), HasSubstr("the job continues")));
  }
  EXPECT_THAT(good.requests(), IsEmpty());
}

TEST_F(Kubeflow, ThatNeverAnswersHoldsUpNothing) {
  Endpoint endpoint(certificates_, [](auto& client) { client.await_end(); });
  Job job(ddprun({}, worker({"link", "progress", "1/2", "until", finish()})),
          {.environment = environment(endpoint.url())});
  ASSERT_TRUE(endpoint.gets(1)) << job.err();
  const auto began = steady_clock::now();
  write_file(finish(), "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_LT(steady_clock::now() - began, seconds(5));  // which is the request's own limit
}

// The volume of its token does not answer.
TEST_F(Kubeflow, WhoseTokenCannotBeReadHoldsUpNothing) {
  Endpoint endpoint(certificates_);
  Job job(with_calls_denied({"openat:delay=600000,path=" + token() + ",process=ddprun"},
                            ddprun({}, worker({"link", "progress", "1/2", "until", finish()}))),
          {.environment = environment(endpoint.url())});
  ASSERT_TRUE(job.reaches([&] {
    return job.err().find("the file system of its token does not answer") != std::string::npos;
  })) << job.err();
  write_file(finish(), "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

TEST_F(Kubeflow, IsToldAgainWhenItIsBack) {
  int calls = 0;
  Endpoint endpoint(certificates_, [&calls](auto& client) {
    ++calls == 1 ? client.reply(503, "") : client.reply(200, "{}");
  });
  Job job(ddprun({}, worker({"link", "progress", "1/2", "until", finish()})),
          {.environment = environment(endpoint.url())});
  EXPECT_TRUE(endpoint.gets(2)) << job.err();
  EXPECT_EQ(metric(endpoint.requests().back(), "step"), "1");
  write_file(finish(), "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

}  // namespace
}  // namespace ddprun::test
