// Where the workers' stdout and stderr go. Without options a worker inherits stdout, and its stderr
// passes through the agent unchanged, which keeps the last lines for the failure report. -r sends
// streams to files, -t to files and also, line by line with a prefix, to the console. The agent
// writes the files: a full disk is then reported, and the worker's print() does not fail.
//
// The folders are torchrun's: <log dir, or $TMPDIR/torchelastic_XXXXXX>/<run
// id>_XXXXXX/attempt_<round>/<local rank>/ has the logs and error files. A job without log files
// gets error files in $TMPDIR, which are removed with this object; no folder is made for them,
// because that takes longer than starting the workers.
//
// Nothing here waits for the log folder, which may be on a file server that does not answer: a
// thread makes folders and files. Workers start when their files are open, so no output is lost.
// Owned by the Supervisor, event loop only; the Console outlives it. The order of calls:
//
//   output.prepare_round(round, workers, [&](Result<void> made) { … });
//   auto streams = output.open(round, {local_rank, rank, role});  // then fork with dup2
//   output.started(local_rank);  // the agent closes its copies
//   output.ended(local_rank);    // its whole process group is dead, or it could not be started
#pragma once

#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "agent/job.h"
#include "agent/output/console.h"
#include "agent/output/log_files.h"
#include "agent/output/stream_plan.h"
#include "agent/output/worker_stream.h"
#include "rendezvous/common/loop/blocking_calls.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

// For the child's fds 1 and 2; -1: it inherits the agent's. Close-on-exec, owned by Output.
struct ChildStreams {
  int stdout_fd = -1;
  int stderr_fd = -1;
};

class Output {
 public:
  // `temporary_directory`: $TMPDIR, or empty for /tmp.
  Output(boost::asio::any_io_executor executor, Console& console, const OutputSpec& spec,
         const std::string& run_id, const std::string& temporary_directory);
  ~Output();

  using Made = std::function<void(Result<void>)>;

  // Makes the folder of this run, if the job has files. Call it once, first. `made` may be called
  // before prepare() returns.
  void prepare(Made made);
  // Makes the folders and files of these local ranks in this round; calls `made` likewise.
  void prepare_round(std::uint64_t round, const std::vector<int>& local_ranks, Made made);
  // The round will not begin: `made` of prepare_round() is not called any more.
  void cancel_round();
  // The folder of this run if its file system has not answered a call yet, else empty.
  std::string unanswering_folder() const;

  // From now on open() may be called again for a local rank in one round, for a process that takes the
  // place of one that has ended: it writes to the same files.
  void keep_files_of_rounds() { keeps_files_ = true; }
  // After prepare_round().
  Result<ChildStreams> open(std::uint64_t round, const WorkerIdentity& worker);
  void started(int local_rank);
  void ended(int local_rank);

  // Calls `done` once, when all streams have ended and their bytes are queued for the console and
  // written to files: the report of the job can then follow. Replaces an earlier call.
  void when_delivered(std::function<void()> done);

  // Whether only the agent writes to its terminals: no worker inherits one.
  bool owns_terminals(int local_world_size) const;

  // The agent's terminal changed its size (SIGWINCH).
  void window_changed();

  // The last lines that a worker wrote to stderr; valid until the next open() of that local rank.
  std::vector<std::string> stderr_tail(int local_rank) const;
  // Where a stream of a worker in its latest round can be read: in a file, in the lines kept for
  // the report, or nowhere, because the worker writes to the agent's own stdout or stderr.
  struct Readable {
    std::uint64_t round = 0;
    std::string file;            // empty: none
    const Tail* kept = nullptr;  // null: none; valid until the next call of this object
  };
  Readable readable(int local_rank, Stream stream) const;
  // The file of an earlier round.
  std::string file_of(std::uint64_t round, int local_rank, Stream stream) const;

  // Folder of the whole run, and of one worker in its latest round. Empty: there is none. Nothing in
  // it is ever deleted (torchrun empties attempt_<n> after a restart caused by another node).
  const std::string& log_directory() const { return directory_; }
  std::string log_directory_of(int local_rank) const;
  // For TORCHELASTIC_ERROR_FILE; its folder exists. Empty with --log-dir /dev/null.
  std::string error_file_of(std::uint64_t round, int local_rank) const;
  // Whether error files are temporary (see above). The keeper removes those of the last round.
  bool removes_error_files() const { return !error_file_prefix_.empty(); }
  // The process that has taken this worker's place in its round writes another one, which is removed likewise.
  void set_error_file(int local_rank, std::string path);

 private:
  struct Worker {
    std::uint64_t round = 0;
    std::array<rdzv::UniqueFd, 2> child_fds;
    std::array<std::shared_ptr<WorkerStream>, 2> streams;
    std::array<bool, 2> is_terminal{};
    std::string error_file;  // empty: that of its round
  };

  using OpenFiles = std::map<std::string, rdzv::UniqueFd>;  // by path
  struct RoundFiles {
    std::vector<std::string> folders;  // each after its parent
    std::set<std::string> files;
  };
  static Result<OpenFiles> make_round(const RoundFiles& wanted);

  Result<void> name_error_files();
  RoundFiles files_of_round(std::uint64_t round, const std::vector<int>& local_ranks) const;
  void take_round(Result<OpenFiles> opened, std::uint64_t number, const Made& made);
  void await_folder();
  std::string folder() const;
  // Of a round, and of one worker in it; empty: there is none.
  std::string folder_of(std::uint64_t round, std::optional<int> local_rank = {}) const;
  Result<void> open_stream(Worker& worker, const WorkerIdentity& identity, Stream stream);
  WorkerStream::Destinations destinations(const StreamPlan& plan, std::uint64_t round,
                                          const WorkerIdentity& identity, Stream stream);
  std::shared_ptr<LogFile> opened_file(const std::string& path);
  std::string filtered_file_of(std::uint64_t round, Stream stream) const;
  LogFiles& files();
  void forget(const WorkerStream* stream);
  void check_delivered();
  void remove_error_file(int local_rank, const Worker& worker);

  boost::asio::any_io_executor executor_;
  Console& console_;
  const OutputSpec spec_;
  const std::string run_id_;
  const std::string temporary_directory_;
  std::string directory_;                                   // of this run; empty: none
  std::string error_file_prefix_;                           // for a job without log files
  std::unique_ptr<LogFiles> files_;                         // made for the first file
  std::map<std::string, std::shared_ptr<LogFile>> opened_;  // not yet used by a worker, or kept
  bool keeps_files_ = false;
  std::array<std::shared_ptr<LogFile>, 2> filtered_files_;  // of filtered_round_
  std::uint64_t filtered_round_ = 0;
  std::map<int, Worker> workers_;
  // Streams of any round, until their last bytes are delivered.
  std::vector<std::shared_ptr<WorkerStream>> undelivered_;
  std::function<void()> when_delivered_;
  std::uint64_t rounds_asked_for_ = 0;
  bool awaits_folder_ = false;
  Timer folder_timer_;
  BlockingCalls folders_;
};

}  // namespace ddprun::agent
