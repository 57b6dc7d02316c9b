#include "agent/events/torchrun_events.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <csignal>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

// The lines were written by torchrun of PyTorch 2.11, ids and times apart. Compared as JSON, since
// Python puts blanks between the fields.
boost::json::value parsed(const std::string& line) { return boost::json::parse(line); }

TorchrunScene scene() {
  static const Job job = [] {
    Job made;
    made.program.path = "/usr/bin/python3";
    return made;
  }();
  TorchrunScene out{job, "localhost", 0s, {}};
  out.round.world_size = 2;
  out.round.role_world_size = 2;
  return out;
}

TEST(TorchrunEvents, ANodeKnowsNoGroupBeforeTheFirstRound) {
  TorchrunScene before = scene();
  before.round.world_size = 0;
  EXPECT_EQ(
      parsed(torchrun_agent_line(before, "RENDEZVOUS", 35'351us)),
      parsed(
          R"json({"name": "torchelastic.worker.status.RENDEZVOUS", "source": "AGENT", "timestamp": 0, "metadata": {"run_id": "none", "global_rank": null, "group_rank": null, "worker_id": null, "role": "default", "hostname": "localhost", "state": "RENDEZVOUS", "total_run_time": 0, "rdzv_backend": "static", "raw_error": null, "metadata": "{\"group_world_size\":null,\"entry_point\":\"python3\"}", "agent_restarts": 0, "duration_ms": 35.351}})json"));
}

TEST(TorchrunEvents, AWorkerStarts) {
  EXPECT_EQ(
      parsed(torchrun_start_line(scene(), 1, 24247)),
      parsed(
          R"json({"name": "torchelastic.worker.status.START", "source": "WORKER", "timestamp": 0, "metadata": {"run_id": "none", "global_rank": 1, "group_rank": 0, "worker_id": "24247", "role": "default", "hostname": "localhost", "state": "START", "total_run_time": 0, "rdzv_backend": "static", "raw_error": null, "metadata": "{\"group_world_size\":1,\"entry_point\":\"python3\",\"local_rank\":[1],\"role_rank\":[1],\"role_world_size\":[2],\"exit_code\":[null],\"worker_pid\":[null]}", "agent_restarts": 0, "duration_ms": null}})json"));
}

TEST(TorchrunEvents, AWorkerFailsByASignalAsANegativeCode) {
  rdzv::WorkerFailure failure;
  failure.pid = 26139;
  failure.status = ExitStatus::killed(SIGTERM);
  EXPECT_EQ(
      parsed(torchrun_end_line(scene(), 0, 26139, /*has_job_succeeded=*/false, failure)),
      parsed(
          R"json({"name": "torchelastic.worker.status.FAILED", "source": "WORKER", "timestamp": 0, "metadata": {"run_id": "none", "global_rank": 0, "group_rank": 0, "worker_id": "26139", "role": "default", "hostname": "localhost", "state": "FAILED", "total_run_time": 0, "rdzv_backend": "static", "raw_error": "{\"message\":\"<NONE>\",\"errorTraits\":{\"category\":\"system_terminated_error\",\"retryability\":\"False\"}}", "metadata": "{\"group_world_size\":1,\"entry_point\":\"python3\",\"local_rank\":[0],\"role_rank\":[0],\"role_world_size\":[2],\"exit_code\":[-15],\"worker_pid\":[26139]}", "agent_restarts": 0, "duration_ms": null}})json"));
}

TEST(TorchrunEvents, AWorkerThatEndedWellInAFailedJobIsTerminated) {
  const auto state = [](bool has_job_succeeded) {
    const auto line = parsed(torchrun_end_line(scene(), 0, 1, has_job_succeeded, {}));
    return std::string(line.as_object().at("metadata").as_object().at("state").as_string());
  };
  EXPECT_EQ(state(true), "SUCCEEDED");
  EXPECT_EQ(state(false), "TERMINATED");
}

}  // namespace
}  // namespace ddprun::agent
