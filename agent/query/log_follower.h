// One client of the control socket that reads workers' logs of the whole job: asks this node and
// the others, sends their answers to the client, and, while the client follows, asks again five
// times a second, but not before all have answered and the client has read everything. Keeps itself
// alive by its pending callbacks; ends with its client. Event loop only.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "agent/loop/timer.h"
#include "agent/query/control_socket.h"
#include "agent/query/job_query.h"
#include "agent/query/log_query.h"
#include "agent/query/log_reader.h"

namespace ddprun::agent {

class LogFollower : public std::enable_shared_from_this<LogFollower> {
 public:
  static constexpr std::size_t kPlacesMax = 64;  // as many as fit into a question

  LogFollower(boost::asio::io_context& io, LogReader& logs, JobQuery& query,
              ControlSocket::ClientPtr client, LogQuery question, bool follows);

  void start() { ask(); }
  // The job has ended: tells what has come since, and then that it is the end. `until_told` is held
  // until then, or until the client is gone.
  void finish(std::shared_ptr<const void> until_told);
  bool is_of(const ControlSocket::ClientPtr& client) const { return client_.lock() == client; }
  bool is_done() const { return is_done_ || client_.expired(); }

 private:
  void ask();
  void take(const std::vector<LogPart>& parts);
  void asked();  // this node or the others have answered
  void ask_later();

  LogReader& logs_;
  JobQuery& query_;
  const std::weak_ptr<ControlClient> client_;
  const LogQuery question_;
  bool follows_;
  bool is_done_ = false;
  bool is_asking_ = false;
  bool asked_as_follower_ = false;  // at the last question
  Timer timer_;
  std::map<std::pair<int, Stream>, LogPlace> places_;
  std::set<std::pair<int, Stream>> told_of_;  // reported as unreadable
  int awaited_ = 0;
  std::shared_ptr<const void> until_told_;
};

}  // namespace ddprun::agent
