// --metrics-port from the outside, with a job that a test makes up.
#include "agent/dashboard/metrics_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/json.hpp>
#include <future>
#include <thread>

#include "agent/dashboard/health.h"
#include "agent/dashboard/page.h"
#include "tests/support/job.h"
#include "tests/support/raw_http.h"
#include "tests/unit/agent/status/sample_status.h"

namespace ddprun::agent {
namespace {

namespace json = boost::json;
using namespace std::chrono_literals;
using test::eventually;
using test::get_request;
using test::http_get;
using test::RawHttp;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class FakeJob final : public JobView {
 public:
  explicit FakeJob(boost::asio::io_context& io) : io_(io) {}

  NodeStatus node_status() const override {
    ++looks_at_node;
    return node;
  }
  void job_status(std::function<void(JobStatus)> done) override {
    ++questions;
    boost::asio::post(io_, [this, done = std::move(done)] { done(job); });
  }
  std::shared_ptr<void> on_event(std::function<void(const std::string&)> told) override {
    told_ = std::make_shared<std::function<void(const std::string&)>>(std::move(told));
    return told_;
  }
  void happen() {
    if (const auto told = told_) (*told)("{}\n");
  }

  JobStatus job = sample_job();
  NodeStatus node = sample_node();
  std::atomic<int> questions = 0;
  mutable std::atomic<int> looks_at_node = 0;

 private:
  boost::asio::io_context& io_;
  std::shared_ptr<std::function<void(const std::string&)>> told_;
};

class Watch : public ::testing::Test {
 protected:
  Watch() {
    auto started =
        MetricsServer::start(io_, {"127.0.0.1", 0}, job_, {"llm-7", "train.py", "0.1.0"});
    if (!started) throw std::runtime_error(started.error().to_string());
    server_ = *std::move(started);
    thread_ = std::thread([this] { io_.run(); });
  }
  ~Watch() override {
    do_there([this] { server_.reset(); });
    work_.reset();
    thread_.join();
  }

  void do_there(const std::function<void()>& what) {
    std::promise<void> done;
    boost::asio::post(io_, [&] {
      what();
      done.set_value();
    });
    done.get_future().get();
  }
  std::uint16_t port() const { return server_->bound().port; }

  // A page that listens.
  std::unique_ptr<RawHttp> listen() {
    auto page = std::make_unique<RawHttp>(port());
    page->send(get_request("/events"));
    EXPECT_THAT(page->read_until("\r\n\r\n"), HasSubstr("200 OK"));
    return page;
  }
  static json::object event(RawHttp& page) {
    const std::string text = page.read_until("\n\n");
    EXPECT_THAT(text, StartsWith("data: "));
    return json::parse(text.substr(6)).as_object();
  }

  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      io_.get_executor()};
  FakeJob job_{io_};
  std::unique_ptr<MetricsServer> server_;
  std::thread thread_;
};

TEST_F(Watch, ServesMetricsOfThisNode) {
  const std::string reply = http_get(port(), "/metrics");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(reply, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(reply, HasSubstr("\nddprun_world_size 4\n"));
}

TEST(Health, IsWellWhileARoundRunsAndAliveUnlessRanksHang) {
  NodeStatus node;
  node.state = NodeState::kRunning;
  EXPECT_TRUE(health_of(node).is_alive && health_of(node).is_well);
  for (const NodeState state :
       {NodeState::kLooking, NodeState::kWaiting, NodeState::kStopping, NodeState::kEnded}) {
    node.state = state;
    EXPECT_TRUE(health_of(node).is_alive);
    EXPECT_FALSE(health_of(node).is_well);
    EXPECT_THAT(health_of(node).sentence, StartsWith("no round runs: "));
  }
  node.state = NodeState::kRunning;
  node.hung = {{rdzv::Hung::Why::kStopped, {1}, "rank 1 is stopped by a signal", 4s}};
  EXPECT_FALSE(health_of(node).is_alive || health_of(node).is_well);
  EXPECT_EQ(health_of(node).sentence, "hangs: rank 1 is stopped by a signal, for 4.0 s");
}

TEST_F(Watch, AnswersProbes) {
  for (const std::string path : {"/healthz", "/livez"}) {
    EXPECT_THAT(http_get(port(), path),
                AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("well: a round runs\n")));
  }
  do_there([this] { job_.node.hung = {{rdzv::Hung::Why::kStopped, {1}, "rank 1 is gone", 4s}}; });
  for (const std::string path : {"/healthz", "/livez"}) {
    EXPECT_THAT(http_get(port(), path), AllOf(StartsWith("HTTP/1.1 503 Service Unavailable\r\n"),
                                              HasSubstr("hangs: rank 1 is gone")));
  }
  do_there([this] {
    job_.node.hung.clear();
    job_.node.state = NodeState::kWaiting;
  });
  EXPECT_THAT(http_get(port(), "/healthz"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(http_get(port(), "/livez"), StartsWith("HTTP/1.1 200"));
}

TEST_F(Watch, AsksNoOtherNodeWhileNobodyWatches) {
  for (int i = 0; i < 20; ++i) http_get(port(), "/metrics");
  http_get(port(), "/");
  do_there([this] { job_.happen(); });
  const int scrapes = job_.looks_at_node;
  EXPECT_TRUE(eventually([&] { return job_.looks_at_node > scrapes; })) << "the tick";
  EXPECT_EQ(job_.questions, 0);
}

TEST_F(Watch, StopsAskingWhenTheLastPageHasGone) {
  {
    const auto page = listen();
    event(*page);
    EXPECT_TRUE(eventually([&] { return job_.questions >= 2; }));
  }
  const int scrapes = job_.looks_at_node;
  EXPECT_TRUE(eventually([&] { return job_.looks_at_node > scrapes; }))
      << "the tick of a server that nobody watches";
}

TEST_F(Watch, ServesAPageThatNothingButItselfMayScript) {
  const std::string reply = http_get(port(), "/");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(reply, HasSubstr("Content-Type: text/html; charset=utf-8\r\n"));
  const std::size_t at = reply.find("script-src 'nonce-");
  ASSERT_NE(at, std::string::npos);
  const std::string nonce = reply.substr(at + 18, 32);
  EXPECT_THAT(reply, HasSubstr("Content-Security-Policy: default-src 'none'; "));
  EXPECT_THAT(reply, HasSubstr("<script nonce=\"" + nonce + "\">"));
  EXPECT_THAT(reply, HasSubstr("<style nonce=\"" + nonce + "\">"));
  EXPECT_THAT(reply, Not(HasSubstr(std::string(kPageNonce))));
  EXPECT_THAT(http_get(port(), "/"), Not(HasSubstr(nonce))) << "each reply has its own";
}

TEST_F(Watch, ThePageNamesNothingOutside) {
  for (const std::string_view text :
       {"//cdn", "https://", "@import", "url(", "innerHTML", "eval("}) {
    EXPECT_EQ(kPage.find(text), std::string_view::npos) << text;
  }
  // The only address is the name of SVG's language.
  const std::string svg = "xmlns='http://www.w3.org/2000/svg'";
  std::string page(kPage);
  page.erase(page.find(svg), svg.size());
  EXPECT_THAT(page, Not(HasSubstr("http://")));
}

TEST_F(Watch, AnythingElseIsNotThere) {
  EXPECT_THAT(http_get(port(), "/favicon.ico"), StartsWith("HTTP/1.1 404 "));
}

TEST_F(Watch, APageHearsTheWholeFirstAndThenWhatChanges) {
  const auto page = listen();
  const auto whole = event(*page);
  EXPECT_EQ(whole.at("whole"), true);
  EXPECT_EQ(whole.at("live").as_array().size(), 2U);
  EXPECT_FALSE(event(*page).contains("whole"));
  const auto second = listen();
  EXPECT_TRUE(event(*second).contains("whole"));
}

TEST_F(Watch, APageHearsSoonOfWhatHappens) {
  const auto page = listen();
  event(*page);
  int heard = 0;
  do_there([this] {
    job_.job.nodes[0].restarts = 77;
    job_.happen();
  });
  while (true) {
    const auto change = event(*page);
    ASSERT_LT(++heard, 3);
    if (change.contains("job")) break;
  }
}

TEST_F(Watch, AThousandEventsAtOnceAreOneQuestion) {
  const auto page = listen();
  event(*page);
  const int before = job_.questions;
  do_there([this] {
    for (int i = 0; i < 1000; ++i) job_.happen();
  });
  event(*page);
  EXPECT_LE(job_.questions, before + 2);
}

TEST_F(Watch, TheLastWordReachesThePage) {
  const auto page = listen();
  event(*page);
  do_there([this] { server_->over("train.py succeeded"); });
  for (int i = 0; i < 3; ++i) {
    const auto change = event(*page);
    if (!change.contains("end")) continue;
    EXPECT_EQ(change.at("end"), "train.py succeeded");
    EXPECT_EQ(page->read_all(), "");
    return;
  }
  ADD_FAILURE() << "it did not come";
}

}  // namespace
}  // namespace ddprun::agent
