// A command that a test starts, watches, signals and cleans up, with all its descendants. Owned by
// one test, used from its thread. All waiting is polling with a deadline; there are no fixed
// sleeps.
//
//   Job job(ddprun({"--nproc-per-node=2"}, worker({"on-rank", "1", "exit", "3", "wait"})));
//   EXPECT_EQ(job.wait(), exited(3)) << job.err();
//   EXPECT_THAT(job.processes(), IsEmpty());
//
// The processes of a job are found by an environment variable that only this job has. So a process
// that clears its environment is not found.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/temporary_tree.h"

namespace ddprun::test {

using Command = std::vector<std::string>;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Generous: most events take milliseconds, but a test must not fail on a loaded machine.
inline constexpr seconds kDeadline{30};

// True as soon as `holds` returns true; false if it does not by the deadline.
bool eventually(const std::function<bool()>& holds, milliseconds deadline = kDeadline);

// DDPRUN_TEST_FULL=1: the large counts.
bool full_tests();
// How often `part` is in the text.
std::size_t count_of(const std::string& part, const std::string& text);

// How a process ended: with a code, by a signal, or (neither) not by the deadline.
struct Ended {
  std::optional<int> code;
  std::optional<int> signal;
  bool operator==(const Ended&) const = default;
};
inline Ended exited(int code) { return {code, std::nullopt}; }
inline Ended killed_by(int signal) { return {std::nullopt, signal}; }
std::ostream& operator<<(std::ostream& out, const Ended& ended);

std::string read_file(const std::string& path);  // empty if it cannot be read
void write_file(const std::string& path, const std::string& content, int mode = 0644);

// ddprun(): the launcher with its options and a program. worker(): a worker with these actions
// (worker.cpp).
Command ddprun(const std::vector<std::string>& options, const Command& program = {});
// The same without the ability to create control groups. Ends with 1 or 99 if that cannot be set
// up.
Command without_control_groups(Command command);
// The same, and system calls are denied or delayed by these rules (deny_calls.cpp).
Command with_calls_denied(const std::vector<std::string>& rules, const Command& command);
// The same on the fake GPU (fake_gpu/README.md). Only where that is built: has_fake_gpu().
Command on_fake_gpu(Command command);
bool has_fake_gpu();
Command worker(std::initializer_list<std::string> actions);
Command ddpctl(const std::vector<std::string>& arguments);
// A worker that first meets the others in the store of the round (meeting_worker.cpp).
Command meeting_worker(std::initializer_list<std::string> actions);

// Reads the files that the worker's actions `stamp DIR` and `environment FILE` have written.
struct Stamp {
  std::int64_t at_ns = 0;
  pid_t pid = 0;
};
std::map<int, Stamp> stamps(const std::string& directory, int round);  // by rank
std::map<std::string, std::string> environment_in(const std::string& file);
std::map<std::string, std::string> state_in(const std::string& file);

struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  char state = '?';  // as in /proc/PID/stat: 'Z' is a zombie, 'T' is stopped
  std::string name;
};
std::vector<ProcessInfo> all_processes();
std::optional<ProcessInfo> process(pid_t pid);
std::vector<ProcessInfo> children_of(pid_t parent);
bool handles(pid_t pid, int signal);                // whether it has a handler
std::vector<std::string> open_files_of(pid_t pid);  // the targets of its descriptors, sorted

// True if something accepts connections at 127.0.0.1:port.
bool is_listening(int port);

struct JobSetup {
  std::map<std::string, std::string> environment{};  // added to the test's environment
  std::vector<std::string> removed_variables{};
  std::string stdin_text{};
  std::string directory{};         // "" is the test's directory
  std::vector<int> ignored{};      // signals that are ignored when the command starts
  std::vector<int> blocked{};      // likewise, blocked
  std::vector<int> namespaces{};   // descriptors of its namespaces; empty: the test's
  std::optional<int> stdout_fd{};  // instead of a file that out() reads
  std::optional<int> stderr_fd{};  // instead of a file that err() reads
};

class Job {
 public:
  explicit Job(const Command& command, JobSetup setup = {});
  ~Job();  // kills all remaining processes
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;

  // Like eventually(), but returns false at once when the command has ended.
  bool reaches(const std::function<bool()>& holds, milliseconds deadline = kDeadline);

  // Waits up to `deadline` for the command's end and returns it. Later calls return the same.
  Ended wait(milliseconds deadline = kDeadline);

  std::string out() const { return read_file(folder_ / "out"); }
  std::string err() const { return read_file(folder_ / "err"); }

  // The living processes of this job, the command itself excluded.
  std::vector<pid_t> processes() const;
  // The workers of the current round by rank: the command's children that have a rank.
  std::map<int, pid_t> workers() const;
  std::optional<pid_t> keeper() const;  // if it is alive
  // Waits until all processes are gone; returns descriptions of those that are left at the
  // deadline.
  std::vector<std::string> left_over(milliseconds deadline = seconds(5)) const;

 private:
  bool has_ended();

  TemporaryTree folder_;
  std::string marker_;
  pid_t pid_ = -1;
  std::optional<Ended> ended_;
};

// For commands that end by themselves and are checked by their output.
struct Told {
  int code = -1;  // -1: it ended by a signal
  std::string out;
  std::string err;
};
Told run_to_its_end(const Command& command, JobSetup setup = {});

}  // namespace ddprun::test
