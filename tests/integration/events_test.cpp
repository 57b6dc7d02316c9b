// --events and --event-log-handler: the events of a job in machine-readable form.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <csignal>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/job.h"
#include "tests/support/temporary_tree.h"

namespace ddprun::test {
namespace {

namespace json = boost::json;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Every line must be JSON; those that are cut off at the end too.
std::vector<json::object> lines_of(const std::string& text) {
  std::vector<json::object> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);)
    lines.push_back(json::parse(line).as_object());
  return lines;
}

std::vector<json::object> events_named(const std::string& name,
                                       const std::vector<json::object>& all) {
  std::vector<json::object> found;
  for (const auto& each : all) {
    if (each.at("event").as_string() == name) found.push_back(each);
  }
  return found;
}

std::vector<std::string> names(const std::vector<json::object>& events, const char* field) {
  std::vector<std::string> out;
  for (const auto& each : events) out.emplace_back(each.at(field).as_string());
  return out;
}

TEST(Events, TellTheLifeOfAJobWithARestart) {
  const TemporaryTree folder;
  Job job(ddprun({"--max-restarts=1", "--rdzv-id=job-7", "--events=" + (folder / "events")},
                 worker({"on-round", "0", "exit", "3"})));
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  const auto events = lines_of(read_file(folder / "events"));
  EXPECT_THAT(names(events, "event"),
              ElementsAre("job_started", "round_started", "worker_exited", "round_stopping",
                          "round_started", "restarted", "worker_exited", "finished"));
  std::int64_t before = 0;
  for (const auto& each : events) {
    EXPECT_EQ(each.at("schema"), 3);
    EXPECT_EQ(each.at("job"), "job-7");
    EXPECT_GE(each.at("monotonic_us").as_int64(), before);
    before = each.at("monotonic_us").as_int64();
  }
  EXPECT_EQ(events[1].at("node_rank"), 0);
  EXPECT_EQ(events[1].at("node_count"), 1);
  EXPECT_EQ(events[1].at("world_size"), 1);
  EXPECT_EQ(events[2].at("exit_code"), 3);
  EXPECT_EQ(events[3].at("reason"), "worker_failed");
  EXPECT_EQ(events[5].at("failure").as_object().at("exit_code"), 3);
  EXPECT_TRUE(events[5].at("lost_node").is_null());
  EXPECT_EQ(events[6].at("exit_code"), 0);
  const auto& end = events.back();
  EXPECT_EQ(end.at("outcome"), "succeeded");
  EXPECT_EQ(end.at("reason"), "all_succeeded");
  EXPECT_EQ(end.at("restarts"), 1);
  EXPECT_EQ(end.at("downtime_us"), events[5].at("until_run_us")) << "no steps are known";
  EXPECT_EQ(end.at("until"), "workers_run");
  EXPECT_GT(end.at("downtime_us").as_int64(), 0);
  EXPECT_GT(end.at("wall_us").as_int64(), end.at("downtime_us").as_int64());
  EXPECT_THAT(job.err(),
              HasSubstr(" of it, counted until the workers had been started again, because "
                        "the program reports no training steps\n"));
}

// The worker does 43 steps and fails; after the restart it continues with step 42, when it is told to.
TEST(Events, CountADowntimeUntilTheStepAfterTheFailure) {
  const TemporaryTree folder;
  const auto first = folder / "first";
  const auto second = folder / "second";
  Job job(ddprun(
      {"--max-restarts=1", "--events=" + (folder / "events")},
      worker({"link", "on-round", "0", "progress", "43/100", "on-round", "0", "exit", "3", "until",
              first, "progress", "42/100", "until", second, "progress", "44/100"})));
  const auto is_there = [&](const char* event) {
    return job.reaches(
        [&] { return !events_named(event, lines_of(read_file(folder / "events"))).empty(); });
  };
  ASSERT_TRUE(is_there("restarted")) << job.err();
  write_file(first, "");
  write_file(second, "");
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  const auto events = lines_of(read_file(folder / "events"));
  const auto recovered = events_named("recovered", events);
  ASSERT_EQ(recovered.size(), 1U);
  const auto us = [&](const char* field) { return recovered[0].at(field).as_int64(); };
  EXPECT_EQ(us("round"), 1);
  EXPECT_EQ(recovered[0].at("until"), "step_after");
  EXPECT_EQ(us("steps_repeated"), 2);
  EXPECT_GT(us("joined_us"), 0);
  EXPECT_GT(us("repeated_us"), 0);
  EXPECT_EQ(us("downtime_us"),
            us("stopped_us") + us("started_us") + us("joined_us") + us("repeated_us"));
  const auto& end = events.back();
  EXPECT_EQ(end.at("downtime_us"), recovered[0].at("downtime_us"));
  EXPECT_LT(end.at("goodput").as_double(), 1.0);
  EXPECT_THAT(job.err(),
              ContainsRegex("1 restart cost .* of it: .* to stop, .* to start, .* to the "
                            "first step, .* for 2 steps again; goodput [0-9.]+ % since the first "
                            "step\n"));
}

TEST(Events, AreAppendedToTheFileOfAnEarlierJob) {
  const TemporaryTree folder;
  for (int run = 0; run < 2; ++run) {
    Job job(ddprun({"--events=" + (folder / "events")}, worker({"exit", "0"})));
    ASSERT_EQ(job.wait(), exited(0)) << job.err();
  }
  EXPECT_EQ(events_named("finished", lines_of(read_file(folder / "events"))).size(), 2U);
}

TEST(Events, GoToStdoutAndToAnInheritedDescriptor) {
  Job to_stdout(ddprun({"--events=-"}, worker({"exit", "0"})));
  ASSERT_EQ(to_stdout.wait(), exited(0)) << to_stdout.err();
  EXPECT_EQ(lines_of(to_stdout.out()).size(), 4U);

  const TemporaryTree folder;
  Command command{"sh", "-c", "exec \"$0\" \"$@\" 7>" + (folder / "events")};
  for (auto& word : ddprun({"--events=fd:7"}, worker({"exit", "0"}))) command.push_back(word);
  Job to_descriptor(command);
  ASSERT_EQ(to_descriptor.wait(), exited(0)) << to_descriptor.err();
  EXPECT_EQ(lines_of(read_file(folder / "events")).size(), 4U);
}

TEST(Events, TellOfSignalsAndOfWorkersKilledAfterTheirGrace) {
  const TemporaryTree folder;
  Job job(ddprun({"--events=" + (folder / "events"), "--shutdown-timeout=0.2"},
                 worker({"ignore", "15", "stamp", folder.path(), "wait"})));
  ASSERT_TRUE(eventually([&] { return stamps(folder.path(), 0).size() == 1; })) << job.err();
  job.signal(SIGTERM);
  ASSERT_EQ(job.wait(), exited(143)) << job.err();
  const auto events = lines_of(read_file(folder / "events"));
  EXPECT_THAT(names(events, "event"),
              ElementsAre("job_started", "round_started", "signal", "round_stopping",
                          "worker_killed_after_grace", "worker_exited", "finished"));
  EXPECT_EQ(events[2].at("signal_name"), "SIGTERM");
  EXPECT_EQ(events[3].at("reason"), "signal");
  EXPECT_EQ(events[4].at("grace_us"), 200'000);
  EXPECT_EQ(events[5].at("signal"), SIGKILL);
  EXPECT_EQ(events[5].at("was_told_to_stop"), true);
  EXPECT_EQ(events[6].at("outcome"), "stopped");
  EXPECT_EQ(events[6].at("exit_code"), 143);
}

TEST(Events, AFullDiskIsReportedAndHoldsUpNothing) {
  Job job(ddprun({"--events=/dev/full"}, worker({"exit", "0"})));
  EXPECT_EQ(job.wait(), exited(0));
  EXPECT_THAT(job.err(), HasSubstr("/dev/full"));
}

// A FIFO that nobody reads takes 64 KiB, and the queue 128 KiB more: then lines are dropped, while
// the job goes on; whoever reads at last is told how many.
TEST(Events, AReaderThatDoesNotReadHoldsUpNothing) {
  const TemporaryTree folder;
  const std::string fifo = folder / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  Job job(ddprun({"--events=" + fifo, "--max-restarts=600"},
                 worker({"on-round", "600", "stamp", folder.path(), "on-round", "600", "wait",  //
                         "exit", "1"})));
  ASSERT_TRUE(eventually([&] { return stamps(folder.path(), 600).size() == 1; })) << job.err();
  const int reader = open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  std::string text;
  EXPECT_TRUE(eventually([&] {
    char buffer[4096];
    for (ssize_t count; (count = read(reader, buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<std::size_t>(count));
    }
    return text.find("events_lost") != std::string::npos && text.back() == '\n';
  }));
  close(reader);
  const auto events = lines_of(text);
  ASSERT_EQ(events_named("events_lost", events).size(), 1U);
  EXPECT_GT(events_named("events_lost", events)[0].at("count").as_int64(), 0);
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), exited(143));
}

TEST(Events, AsTorchrunGoToStderr) {
  Job job(ddprun({"--event-log-handler=console", "--nproc-per-node=2"}, worker({"exit", "0"})));
  ASSERT_EQ(job.wait(), exited(0));
  std::vector<std::string> states;
  for (const auto& line : lines_of(job.err())) {
    states.emplace_back(line.at("metadata").as_object().at("state").as_string());
  }
  EXPECT_THAT(states, ElementsAre("RENDEZVOUS", "ASSIGN_WORKER_RANKS", "START", "START",
                                  "SUCCEEDED", "SUCCEEDED", "SUCCEEDED"));
}

TEST(Summary, StandsAtTheEndOfAJobThatWasRestarted) {
  Job restarted(ddprun({"--max-restarts=2"}, worker({"on-round", "0", "exit", "3"})));
  ASSERT_EQ(restarted.wait(), exited(0));
  EXPECT_THAT(restarted.err(), ContainsRegex("ddprun_test_worker took .*, 1 restart cost .* ms"));
  JobSetup talkative;
  talkative.environment["DDPRUN_LOG_LEVEL"] = "info";
  Job asked(ddprun({}, worker({"exit", "0"})), talkative);
  ASSERT_EQ(asked.wait(), exited(0));
  EXPECT_THAT(asked.err(), HasSubstr("without a restart"));
}

// ---- a command that is told (--on-event)

class OnEvent : public ::testing::Test {
 protected:
  // Writes what it gets into the file `told`, and that it runs into `runs`; two at a time are seen there.
  std::string command() const {
    return "mkdir " + (folder_ / "busy") + " || echo two >>" + (folder_ / "runs") + "; cat >>" +
           (folder_ / "told") + "; echo run >>" + (folder_ / "runs") + "; rmdir " +
           (folder_ / "busy");
  }
  std::vector<std::string> told() const {
    return names(lines_of(read_file(folder_ / "told")), "event");
  }

  const TemporaryTree folder_;
};

TEST_F(OnEvent, GetsEachEventOnceInRunsThatFollowEachOther) {
  Job job(ddprun({"--nproc-per-node=4", "--max-restarts=1", "--on-event=" + command(),
                  "--events=" + (folder_ / "events")},
                 worker({"on-round", "0", "exit", "3"})));
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(read_file(folder_ / "told"), read_file(folder_ / "events"));
  EXPECT_EQ(told().back(), "finished");
  const std::string runs = read_file(folder_ / "runs");
  EXPECT_EQ(count_of("two", runs), 0U) << "two ran at once";
  EXPECT_LE(count_of("run", runs), 3U) << "one a second, and at the end what is left";
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_F(OnEvent, ACommandThatFailsIsAWarningWithWhatItSaysAndTheJobGoesOn) {
  Job job(ddprun({"--on-event=echo no pager >&2; exit 5"}, worker({"until", folder_ / "finish"})));
  ASSERT_TRUE(job.reaches([&] { return !job.err().empty(); }));
  write_file(folder_ / "finish", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("it ended with exit code 5: no pager; the job goes on"));
  EXPECT_EQ(count_of("no pager;", job.err()), 1U) << "said once, though it has failed twice";
}

TEST_F(OnEvent, ACommandThatHangsHoldsNoEndUpAndIsNotLeftBehind) {
  Job job(ddprun({"--on-event=echo $$ >>" + (folder_ / "runs") + "; sleep 1000; true"},
                 worker({"until", folder_ / "finish"})));
  ASSERT_TRUE(job.reaches([&] { return !read_file(folder_ / "runs").empty(); })) << job.err();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(seconds(8)), exited(143)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("the last events could not be written in time"));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_F(OnEvent, TheEndOfAJobThatIsStoppedIsTold) {
  Job job(ddprun({"--on-event=" + command()}, worker({"until", folder_ / "finish"})));
  ASSERT_TRUE(job.reaches([&] { return !job.workers().empty(); })) << job.err();
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), exited(130)) << job.err();
  EXPECT_EQ(told().back(), "finished");
}

TEST_F(OnEvent, AKillOfTheLauncherEndsTheCommand) {
  Job job(ddprun({"--on-event=echo $$ >>" + (folder_ / "runs") + "; sleep 1000; true"},
                 worker({"until", folder_ / "finish"})));
  ASSERT_TRUE(job.reaches([&] { return !read_file(folder_ / "runs").empty(); })) << job.err();
  job.signal(SIGKILL);
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_F(OnEvent, OnlyTheFirstNodeTells) {
  Cluster cluster({.options = {"--on-event=cat >>" + (folder_ / "told")}});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  cluster.let_finish();
  cluster.wait();
  const auto events = lines_of(read_file(folder_ / "told"));
  EXPECT_THAT(names(events, "event"),
              ElementsAre("job_started", "round_started", "worker_exited", "finished"));
  EXPECT_EQ(events[1].at("node_rank"), 0);
}

TEST(Events, AreNotWrittenUnlessAskedFor) {
  Job job(ddprun({}, worker({"exit", "0"})));
  ASSERT_EQ(job.wait(), exited(0));
  EXPECT_THAT(job.out() + job.err(), IsEmpty());
}

}  // namespace
}  // namespace ddprun::test
