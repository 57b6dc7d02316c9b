// Answers questions about the logs of this node's workers: from their files (-r, -t, --log-dir),
// else from the last lines of stderr that the agent keeps. Owned by QueryPort, event loop only.
// Files are read on threads: if a file server does not answer, there is no answer, but nothing else
// waits.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/output/output.h"
#include "agent/query/log_query.h"
#include "rendezvous/common/loop/blocking_calls.h"

namespace ddprun::agent {

class LogReader {
 public:
  struct Node {  // its current state
    std::string host;
    int rank_offset = 0;
    int workers = 0;
  };
  using Reply = std::function<void(std::vector<LogPart>)>;

  LogReader(boost::asio::io_context& io, const Output& output, std::function<Node()> node);

  // `reply` is called once, after this has returned, unless a file cannot be read at all.
  void answer(const LogQuery& question, Reply reply);

 private:
  struct Reader {
    std::unique_ptr<BlockingCalls> calls;
    bool is_busy = false;
  };

  void read_beside(std::function<std::vector<LogPart>()> read, Reply reply);

  boost::asio::io_context& io_;
  const Output& output_;
  const std::function<Node()> node_;
  std::array<Reader, 4> readers_;  // threads that may hang on a file server
};

}  // namespace ddprun::agent
