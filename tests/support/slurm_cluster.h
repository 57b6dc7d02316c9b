// A real Slurm of two nodes, with 8 CPUs and 3 GPUs each as far as it knows: munged, slurmctld and a
// slurmd in each node of a Network, with folders, key and ports of their own, all of them children
// of the test and gone after it with all that they have started, also when the test is killed.
// Owned by one test or suite, used from its thread.
//
//   SlurmCluster slurm;
//   ASSERT_TRUE(slurm.is_ready()) << slurm.told();
//   Job job(slurm.srun({"-N2"}, ddprun({}, {"./train"})), slurm.setup());
//
// Starting it takes two seconds, so the cases of a suite share one. The mistake to avoid: leaving
// jobs behind for the next case; ask clear() at the end of each.
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
  // Why there can be none here; nothing: there can.
  static const std::optional<std::string>& obstacle();

  SlurmCluster();

  // Waits until both nodes take jobs.
  bool is_ready();

  // Where Slurm's commands run: on the first node, as if a user were logged in there.
  JobSetup setup(JobSetup setup = {}) const;
  static Command srun(const std::vector<std::string>& options, const Command& program);

  // Runs a command to its end; its stdout, without the last line feed.
  std::string ask(const Command& command, JobSetup setup = {}) const;
  // The number of the job that a script with these contents became.
  std::string sbatch(const std::vector<std::string>& options, const std::string& script);
  // "RUNNING", "COMPLETED", ...; and one field of `scontrol show job`, such as ExitCode.
  std::string state_of(const std::string& job) const { return field_of(job, "JobState"); }
  std::string field_of(const std::string& job, const std::string& field) const;
  bool completes(const std::string& job, milliseconds deadline = kDeadline) const;
  // Lets a job that was queued again start in two seconds; Slurm would wait for two minutes.
  bool start_soon(const std::string& job) const;

  // Ends all jobs and waits until no process of them is left; those that are, in words.
  std::vector<std::string> clear();
  // The living processes of all jobs: everything on the nodes but Slurm itself.
  std::vector<std::string> job_processes() const;

  static std::string host(int node) { return Network::host(node); }
  const TemporaryTree& folder() const { return folder_; }
  std::string told() const;  // the daemons' logs, for the message of a failure

 private:
  void guard(int node);
  void start(int node, const Command& daemon);

  TemporaryTree folder_;
  Network network_{2};
  std::vector<std::unique_ptr<Job>> guards_;
  std::vector<std::unique_ptr<Job>> daemons_;
  int scripts_ = 0;
};

}  // namespace ddprun::test
