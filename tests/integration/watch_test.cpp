// --metrics-port of a real job: it can be found and scraped, its values are checked, and it never
// makes a job fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <optional>
#include <string>

#include "rendezvous/net/listener.h"
#include "tests/support/job.h"
#include "tests/support/raw_http.h"

namespace ddprun::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// What "metrics and a live page: http://127.0.0.1:PORT/" on stderr says.
std::uint16_t port_of(Job& job) {
  const std::string before = "http://127.0.0.1:";
  job.reaches([&] { return job.err().find(before) != std::string::npos; });
  const std::string err = job.err();
  const std::size_t at = err.find(before);
  return at == std::string::npos
             ? std::uint16_t{0}
             : static_cast<std::uint16_t>(std::stoi(err.substr(at + before.size())));
}

TEST(Watching, APortOfZeroIsAnyAndSaidAndScraped) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2", "--metrics-port=0", "--rdzv-id=llm-7"},
                 worker({"link", "progress", "412", "until", folder / "go"})));
  const std::uint16_t port = port_of(job);
  ASSERT_NE(port, 0) << job.err();
  std::string metrics;
  ASSERT_TRUE(job.reaches([&] {
    metrics = http_get(port, "/metrics");
    return metrics.find("ddprun_worker_step{rank=\"1\",local_rank=\"1\"} 412\n") !=
           std::string::npos;
  })) << metrics;
  EXPECT_THAT(metrics, AllOf(HasSubstr("\nddprun_world_size 2\n"), HasSubstr("\nddprun_round 0\n"),
                             HasSubstr("run_id=\"llm-7\""), HasSubstr("\nddprun_leads 1\n"),
                             HasSubstr("\nddprun_store_requests_total "),
                             HasSubstr("ddprun_workers{state=\"running\"} 2\n")));
  EXPECT_THAT(http_get(port, "/"), AllOf(StartsWith("HTTP/1.1 200 OK"), HasSubstr("</html>")));
  RawHttp page(port);
  page.send(get_request("/events"));
  page.read_until("\r\n\r\n");
  EXPECT_THAT(page.read_until("\n\n"), AllOf(StartsWith("data: {"), HasSubstr("\"whole\":true")));
  write_file(folder / "go", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(page.read_all(), HasSubstr("\"end\":")) << "an open page hears of the end";
  EXPECT_FALSE(is_listening(port));
}

TEST(Watching, RestartsAreCountedByTheirReason) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2", "--max-restarts=3", "--metrics-port=0"},
                 worker({"on-round", "0", "exit", "3", "until", folder / "go"})));
  const std::uint16_t port = port_of(job);
  ASSERT_NE(port, 0) << job.err();
  std::string metrics;
  ASSERT_TRUE(job.reaches([&] {
    metrics = http_get(port, "/metrics");
    return metrics.find("\nddprun_round 1\n") != std::string::npos;
  })) << metrics;
  EXPECT_THAT(metrics, AllOf(HasSubstr("ddprun_restarts_total{reason=\"worker_failed\"} 1\n"),
                             HasSubstr("\nddprun_restart_budget 3\n"),
                             HasSubstr("\nddprun_restart_budget_spent 1\n"),
                             Not(HasSubstr("cause=\"worker_failed\"} 0\n"))));
  write_file(folder / "go", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

TEST(Watching, PromtoolFindsNothingWrong) {
  if (std::system("command -v promtool >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "promtool is not installed; scripts/setup installs it";
  }
  const TemporaryTree folder;
  Job job(
      ddprun({"--metrics-port=0"}, worker({"link", "progress", "412", "until", folder / "go"})));
  const std::uint16_t port = port_of(job);
  ASSERT_NE(port, 0) << job.err();
  const std::string reply = http_get(port, "/metrics");
  write_file(folder / "metrics", reply.substr(reply.find("\r\n\r\n") + 4));
  const std::string check =
      "promtool check metrics <" + (folder / "metrics") + " >" + (folder / "said") + " 2>&1";
  EXPECT_EQ(std::system(check.c_str()), 0) << read_file(folder / "said");
  write_file(folder / "go", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

TEST(Watching, APortThatIsTakenIsASentenceAndTheJobRuns) {
  auto taken = rdzv::open_listener({});
  ASSERT_TRUE(taken);
  const std::string port = std::to_string(taken->bound.port);
  Job job(ddprun({"--metrics-port=" + port}, worker({"exit", "0"})));
  EXPECT_EQ(job.wait(), exited(0));
  EXPECT_THAT(job.err(),
              AllOf(HasSubstr("--metrics-port=" + port), HasSubstr("already in use"),
                    HasSubstr("or 0 for any"), HasSubstr("the job runs without metrics")));
}

TEST(Watching, TheVariableStandsForTheOptionAndNonsenseIsRefused) {
  Job job(ddprun({"--dry-run"}, worker({"exit", "0"})),
          {.environment = {{"DDPRUN_METRICS_PORT", "9400"}}});
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("http://127.0.0.1:9400/"));
  for (const std::string port : {"65536", "-1", "http", "80:90"}) {
    Job wrong(ddprun({"--metrics-port=" + port}, worker({"exit", "0"})));
    EXPECT_EQ(wrong.wait(), exited(2));
    EXPECT_THAT(wrong.err(), HasSubstr("--metrics-port=" + port + ": "));
  }
}

TEST(Watching, NothingListensUnlessItIsAskedFor) {
  const TemporaryTree folder;
  Job job(ddprun({}, worker({"stamp", folder.path(), "until", folder / "go"})));
  ASSERT_TRUE(job.reaches([&] { return stamps(folder.path(), 0).size() == 1; }));
  EXPECT_THAT(job.err(), Not(HasSubstr("http://")));
  write_file(folder / "go", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

}  // namespace
}  // namespace ddprun::test
