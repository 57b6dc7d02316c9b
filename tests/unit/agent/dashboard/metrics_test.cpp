// The text of /metrics: as Prometheus reads it, and what stands in it. `promtool check metrics` has
// the last word where it is installed.
#include "agent/dashboard/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>

#include "agent/dashboard/dashboard_feed.h"
#include "agent/dashboard/prometheus_text.h"
#include "tests/unit/agent/status/sample_status.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;
using ::testing::HasSubstr;
using ::testing::Not;

const steady_clock::time_point kNow{1000s};

std::string text_of(const NodeStatus& status) {
  return metrics_text(status, {"llm-7", "train.py", "0.1.0"});
}

// The value of one sample, spelled as it is in the text.
std::string value_in(const std::string& text, const std::string& sample) {
  const std::size_t at = text.find("\n" + sample + " ");
  if (at == std::string::npos) return "none";
  const std::size_t begin = at + sample.size() + 2;
  return text.substr(begin, text.find('\n', begin) - begin);
}

TEST(PrometheusText, IsTheExpositionFormat) {
  PrometheusText text;
  text.gauge("a_ratio", "What it is.", 0.25);
  text.family("b_total", PrometheusText::Type::kCounter, "More.");
  text.sample(3, {{"reason", "x"}, {"rank", "0"}});
  text.sample(1e9, {{"reason", "say \"hi\"\\\n"}});
  EXPECT_EQ(text.take(),
            "# HELP a_ratio What it is.\n"
            "# TYPE a_ratio gauge\n"
            "a_ratio 0.25\n"
            "# HELP b_total More.\n"
            "# TYPE b_total counter\n"
            "b_total{reason=\"x\",rank=\"0\"} 3\n"
            "b_total{reason=\"say \\\"hi\\\"\\\\\\n\"} 1000000000\n");
}

TEST(PrometheusText, SpellsNumbersThatAreNoneAsPrometheusDoes) {
  PrometheusText text;
  text.family("a", PrometheusText::Type::kGauge, "A.");
  text.sample(std::nan(""));
  text.sample(std::numeric_limits<double>::infinity());
  text.sample(-std::numeric_limits<double>::infinity());
  EXPECT_THAT(text.take(), HasSubstr("a NaN\na +Inf\na -Inf\n"));
}

TEST(StepTimes, AreTheMeanBetweenTwoLooks) {
  StepTimes times;
  EXPECT_FALSE(times.look(Round{1}, 0, 100, kNow));
  EXPECT_FALSE(times.look(Round{1}, 0, 100, kNow)) << "no step since";
  EXPECT_DOUBLE_EQ(times.look(Round{1}, 0, 104, kNow + 2s)->count(), 0.5);
  EXPECT_DOUBLE_EQ(times.look(Round{1}, 0, 104, kNow + 2s)->count(), 0.5) << "still the last one";
  EXPECT_FALSE(times.look(Round{1}, 1, 104, kNow)) << "of a rank that was not looked at before";
  EXPECT_FALSE(times.look(Round{1}, 0, 50, kNow + 3s)) << "it began again";
  EXPECT_DOUBLE_EQ(times.look(Round{1}, 0, 51, kNow + 4s)->count(), 1);
  EXPECT_FALSE(times.look(Round{2}, 0, 60, kNow + 5s)) << "another process";
}

TEST(Metrics, SayWhatTheStatusSays) {
  const std::string text = text_of(sample_node());
  for (const auto& [sample, value] : std::vector<std::pair<std::string, std::string>>{
           {"ddprun_world_size", "4"},
           {"ddprun_nodes", "2"},
           {"ddprun_node_rank", "1"},
           {"ddprun_round", "3"},
           {"ddprun_node_state{state=\"running\"}", "1"},
           {"ddprun_node_state{state=\"waiting\"}", "0"},
           {"ddprun_workers{state=\"running\"}", "1"},
           {"ddprun_workers{state=\"failed\"}", "1"},
           {"ddprun_restarts_total{reason=\"worker_failed\"}", "2"},
           {"ddprun_restarts_total{reason=\"node_lost\"}", "1"},
           {"ddprun_restarts_total{reason=\"requested\"}", "0"},
           {"ddprun_restarts_in_place_total", "1"},
           {"ddprun_prepared_standbys", "1"},
           {"ddprun_restart_budget", "5"},
           {"ddprun_restart_budget_spent", "2"},
           {"ddprun_downtime_seconds_total{cause=\"worker_failed\"}", "0.5"},
           {"ddprun_downtime_seconds_total{cause=\"node_lost\"}", "8"},
           {"ddprun_downtime_part_seconds_total{part=\"stopped\"}", "0.5"},
           {"ddprun_downtime_part_seconds_total{part=\"started\"}", "1"},
           {"ddprun_downtime_part_seconds_total{part=\"joined\"}", "4"},
           {"ddprun_downtime_part_seconds_total{part=\"repeated\"}", "3"},
           {"ddprun_steps_repeated_total", "42"},
           {"ddprun_uptime_seconds", "100"},
           {"ddprun_start_seconds", "1.5"},
           {"ddprun_goodput_ratio", "0.9"},
           {"ddprun_store_requests_total", "18204"},
           {"ddprun_store_memory_bytes", "91000"},
           {"ddprun_worker_step{rank=\"2\",local_rank=\"0\"}", "412"},
           {"ddprun_worker_steps_planned{rank=\"2\",local_rank=\"0\"}", "1000"},
           {"ddprun_worker_seconds_since_step{rank=\"2\",local_rank=\"0\"}", "0.25"},
           {"ddprun_worker_value{rank=\"2\",local_rank=\"0\",name=\"loss\"}", "0.25"},
           {"ddprun_worker_collectives_total{rank=\"2\",local_rank=\"0\"}", "900"}}) {
    EXPECT_EQ(value_in(text, sample), value) << sample;
  }
  EXPECT_THAT(text, Not(HasSubstr("cause=\"start\"")));
  EXPECT_THAT(text, HasSubstr("ddprun_info{run_id=\"llm-7\",program=\"train.py\",host=\"b7\""));
  EXPECT_THAT(text, Not(HasSubstr("rank=\"3\""))) << "which has not said anything";
}

TEST(Metrics, SayHowLongWorkersHaveBeenInTheirCollective) {
  NodeStatus status = sample_node();
  const std::string name = "ddprun_worker_seconds_in_collective";
  EXPECT_THAT(text_of(status), Not(HasSubstr(name))) << "they keep no record";
  GroupCalls group{"ddprun", 1, 4, 2, 17};
  group.at = GroupCall{{}, 17, /*is_over=*/false, 1500ms};
  status.workers[0].calls = {group};
  const std::string sample = name + "{rank=\"2\",local_rank=\"0\"}";
  EXPECT_EQ(value_in(text_of(status), sample), "1.5");
  status.workers[0].calls[0].at->is_over = true;
  EXPECT_EQ(value_in(text_of(status), sample), "0");
}

TEST(Metrics, SayHowManyRanksHang) {
  NodeStatus status = sample_node();
  EXPECT_EQ(value_in(text_of(status), "ddprun_hung_ranks"), "0");
  status.hung = {{rdzv::Hung::Why::kStopped, {3, 5}, "", 4s},
                 {rdzv::Hung::Why::kTimeout, {5}, "", 9s}};
  EXPECT_EQ(value_in(text_of(status), "ddprun_hung_ranks"), "2");
}

TEST(Metrics, SayWhatGpusSay) {
  NodeStatus status = sample_node();
  const std::string text = text_of(status);
  const std::string its = R"({gpu="5",uuid="GPU-1"})";
  EXPECT_EQ(value_in(text, "ddprun_gpu_memory_used_bytes" + its),
            std::to_string(std::uint64_t{61} << 30));
  EXPECT_EQ(value_in(text, "ddprun_gpu_utilization_ratio" + its), "0.98");
  EXPECT_EQ(value_in(text, "ddprun_gpu_temperature_celsius" + its), "61");
  EXPECT_EQ(value_in(text, "ddprun_gpu_ecc_uncorrected" + its), "2");
  EXPECT_EQ(value_in(text, "ddprun_gpu_xids" + its), "1");
  EXPECT_THAT(text, Not(HasSubstr(R"(ddprun_gpu_memory_used_bytes{gpu="6")"))) << "it is lost";
  status.gpus.clear();
  EXPECT_THAT(text_of(status), Not(HasSubstr("ddprun_gpu")));
}

TEST(Metrics, SayWhichRanksAreSlowAndWhereTheTimeGoes) {
  NodeStatus status = sample_node();
  status.slow.clear();
  status.rank_times.clear();
  EXPECT_EQ(value_in(text_of(status), "ddprun_slow_ranks"), "0");
  EXPECT_THAT(text_of(status), Not(HasSubstr("ddprun_rank_late_ratio")));
  status.slow = {{5, 0.75, 40ms, 340ms, "", ""}};
  status.rank_times = {{0, 0.5, 0.25, 0.5, 0.0, 0us}, {5, {}, 0.0, {}, 0.75, 40ms}};
  const std::string text = text_of(status);
  EXPECT_EQ(value_in(text, "ddprun_slow_ranks"), "1");
  EXPECT_EQ(value_in(text, "ddprun_rank_late_ratio{rank=\"5\"}"), "0.75");
  EXPECT_EQ(value_in(text, "ddprun_rank_lag_seconds{rank=\"5\"}"), "0.04");
  EXPECT_EQ(value_in(text, "ddprun_rank_waiting_ratio{rank=\"0\"}"), "0.25");
  EXPECT_EQ(value_in(text, "ddprun_rank_in_collectives_ratio{rank=\"0\"}"), "0.5");
  EXPECT_THAT(text, Not(HasSubstr("ddprun_rank_in_collectives_ratio{rank=\"5\"}")));
}

TEST(Metrics, OfAJobThatHasNotBegunHaveNoGoodput) {
  NodeStatus status;
  status.wall = 30s;
  const std::string text = text_of(status);
  EXPECT_THAT(text, Not(HasSubstr("ddprun_goodput_ratio"))) << "no step is known";
  EXPECT_EQ(value_in(text, "ddprun_world_size"), "0");
  EXPECT_THAT(text, Not(HasSubstr("ddprun_store"))) << "another node may serve it";
}

TEST(Metrics, AreCleanWhateverTheNamesAre) {
  const std::string text = metrics_text(sample_node(), {"a\"b\n", "\xff\xfe", "\\"});
  EXPECT_THAT(text, HasSubstr("run_id=\"a\\\"b\\n\",program=\"\xEF\xBF\xBD\xEF\xBF\xBD\""));
}

TEST(Metrics, SatisfyPromtool) {
  if (std::system("command -v promtool >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "promtool is not installed; scripts/setup installs it";
  }
  const std::string text = metrics_text(sample_node(), {"a\"b\n", "\xff", "\\"});
  FILE* const promtool = ::popen("promtool check metrics 2>&1", "w");
  ASSERT_NE(promtool, nullptr);
  std::fwrite(text.data(), 1, text.size(), promtool);
  EXPECT_EQ(::pclose(promtool), 0) << text;
}

}  // namespace
}  // namespace ddprun::agent
