// A real Slurm cluster of two nodes, configured with 8 CPUs and 3 GPUs each: munged, slurmctld and
// a slurmd in each node of a Network, with their own folders, key and ports. They are children of
// the test and end with it, together with all that they have started, even if the test is killed.
// Owned by one test or suite, used from its thread.
//
//   SlurmCluster slurm;
//   ASSERT_TRUE(slurm.is_ready()) << slurm.told();
//   Job job(slurm.srun({"-N2"}, ddprun({}, {"./train"})), slurm.setup());
//
// Starting it takes two seconds, so the cases of a suite share one. Call clear() at the end of each
// case, so that no job remains for the next one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/job.h"
#include "tests/support/network.h"

namespace ddprun::test {

class SlurmCluster {
 public:
  // Why it cannot run here; nullopt if it can.
  static const std::optional<std::string>& obstacle();

  SlurmCluster();

  // Waits until both nodes take jobs.
  bool is_ready();

  // The setup for Slurm's commands: on the first node, like a user who is logged in there.
  JobSetup setup(JobSetup setup = {}) const;
  static Command srun(const std::vector<std::string>& options, const Command& program);

  // Runs a command to its end and returns its stdout without the last line feed.
  std::string ask(const Command& command, JobSetup setup = {}) const;
  // Submits a script with these contents and returns the job's number.
  std::string sbatch(const std::vector<std::string>& options, const std::string& script);
  // "RUNNING", "COMPLETED", ...; and one field of `scontrol show job`, such as ExitCode.
  std::string state_of(const std::string& job) const { return field_of(job, "JobState"); }
  std::string field_of(const std::string& job, const std::string& field) const;
  bool completes(const std::string& job, milliseconds deadline = kDeadline) const;
  // Makes a requeued job start within two seconds; Slurm would wait for two minutes.
  bool start_soon(const std::string& job) const;

  // Ends all jobs and waits until none of their processes is left; returns descriptions of those
  // that are.
  std::vector<std::string> clear();
  // The living processes of all jobs: everything on the nodes except Slurm itself.
  std::vector<std::string> job_processes() const;

  static std::string host(int node) { return Network::host(node); }
  JobSetup on(int node) const { return network_.on(node); }  // outside of Slurm
  const TemporaryTree& folder() const { return folder_; }
  std::string told() const;  // the daemons' logs, for a failure message

 private:
  void guard(int node);
  void mount_munge(int node);
  void start(int node, const Command& daemon);

  TemporaryTree folder_;
  Network network_{2};
  std::vector<std::unique_ptr<Job>> guards_;
  std::vector<std::unique_ptr<Job>> daemons_;
  int scripts_ = 0;
};

}  // namespace ddprun::test
