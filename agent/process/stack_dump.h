// The stacks of workers that will be killed because their grace period is over, or that somebody asks
// for: always from /proc, and, of the process with most threads, from itself (python_stacks.h), or from
// py-spy (Python), eu-stack or gdb, whichever is installed. The kill waits for them, so the caller sets
// a limit and then uses what there is.
//
// One gdb is for all workers, since it needs a second or more to read LibTorch's symbols, and each once
// only; their names stay as the linker has them, which takes it a quarter of the time.
//
// Event loop only; a thread reads and writes the files. The destructor
// kills the debuggers. These must not be reaped as orphans: see owns().
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/process/process.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/loop/blocking_calls.h"

namespace ddprun::agent {

class StackDump {
 public:
  struct Worker {
    int rank = 0;
    pid_t pid = 0;
    std::string folder;  // for stacks.txt; empty: Account::text has the stacks instead
  };
  // The threads of which Python is asked for stacks; debuggers see all.
  enum class Threads {
    kMain,
    kAll,       // from py-spy if it is there: a process that answers itself may crash by it
    kAllAtEnd,  // the processes are about to be killed
  };
  struct Account {
    int rank = 0;
    pid_t pid = 0;  // of the process with most threads
    bool is_python = false;
    std::string file;      // with the stacks; empty: the texts have their first lines
    std::string text;      // from /proc
    std::string debugger;  // "gdb", "faulthandler"; empty: none is installed
    std::string debugger_text;
    bool has_ended = true;  // the debugger
  };
  struct Taken;                        // what the thread found for one worker
  using Done = std::function<void()>;  // may destroy this object

  // `environment`: for the debuggers, which are searched on its PATH.
  StackDump(boost::asio::io_context& io, std::vector<Worker> workers, Threads threads,
            const Environment& environment, Done done);
  ~StackDump();

  // The stacks taken so far; complete when `done` is called. Of each text so many bytes at most.
  std::vector<Account> so_far(std::size_t bytes_max) const;
  bool owns(pid_t pid) const;

 private:
  struct Debugger {
    std::unique_ptr<WorkerProcess> process;  // null: it has ended, or could not be started
    std::vector<std::size_t> workers;        // whose stacks it takes
  };
  void on_taken(std::vector<Taken> taken);
  void start_debugger(std::vector<std::string> command, std::vector<std::size_t> workers);
  void on_debugger_ended(std::size_t index);
  bool is_at_work_on(std::size_t worker) const;

  boost::asio::io_context& io_;
  const Environment environment_;
  Done done_;
  std::vector<Taken> taken_;
  std::vector<Debugger> debuggers_;
  BlockingCalls calls_;
};

}  // namespace ddprun::agent
