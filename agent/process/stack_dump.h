// What workers were doing that have to be killed because their grace is over: their stacks, taken
// before the kill. From /proc always; from py-spy (a Python process) or gdb where installed.
//
// The kill waits for it, so whoever wants the stacks bounds that, and takes what there is then. Files
// are read and written on a thread of its own, and a debugger is a process that the event loop
// watches, so that nothing here blocks.
//
// Owned by the WorkerGroup, event loop only. Destroyed early it ends its debuggers and never calls
// back. Its debuggers must not be reaped as orphans: owns() tells them.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/process/process.h"
#include "rendezvous/common/environment.h"

namespace ddprun::agent {

class StackDump {
 public:
  struct Worker {
    int rank = 0;
    pid_t pid = 0;
    std::string folder;  // gets a stacks.txt; empty: the text comes back instead
  };
  struct Account {
    Worker worker;
    std::string file;  // where the stacks are; empty: `text` has their first lines
    std::string text;
  };
  struct Taken;                        // what the thread found out about one worker
  using Done = std::function<void()>;  // may destroy this object

  // `environment`: the agent's, for the debuggers and to find them.
  StackDump(boost::asio::io_context& io, std::vector<Worker> workers,
            const Environment& environment, Done done);
  ~StackDump();
  StackDump(const StackDump&) = delete;
  StackDump& operator=(const StackDump&) = delete;

  // What there is by now: all of it, when `done` is called.
  std::vector<Account> so_far() const;
  bool owns(pid_t pid) const;

 private:
  struct Shared;  // with the thread, which may outlive this object

  void on_taken(std::vector<Taken> taken);
  void on_debugger_ended(std::size_t index);

  boost::asio::io_context& io_;
  const Environment environment_;
  Done done_;
  std::shared_ptr<Shared> shared_;
  std::vector<Taken> taken_;
  std::vector<std::unique_ptr<WorkerProcess>> debuggers_;  // by worker; empty: none, or it ended
};

}  // namespace ddprun::agent
