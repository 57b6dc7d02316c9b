// Answers the requests of the control socket, which come from ddpctl (agent/README.md has the
// protocol): a line of JSON is a request, answers are lines of JSON. A stop or a restart is passed on
// to the leader, with the user and the process that have asked for it. Only the job's own user and
// root are admitted, as the kernel identifies them. If the socket cannot be made, the node runs its
// job without it.
//
// Owned by QueryPort, event loop only. No client can delay the job: one that does not read is
// dropped, and requests and clients are limited.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/query/job_query.h"
#include "agent/query/log_query.h"
#include "agent/query/log_reader.h"
#include "agent/query/stack_query.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

class ControlService {
 public:
  using TakeStacks =
      std::function<void(const StackQuery&, std::function<void(std::vector<WorkerStacks>)> done)>;
  // Functions, because this room lies below what decides and does this.
  struct Requests {
    TakeStacks stacks;  // this node's workers'
    // `by`: the request in words, "ddpctl stop (root, pid 4711)".
    std::function<Result<void>(const std::string& by)> stop;      // the whole job
    std::function<Result<Round>(const std::string& by)> restart;  // returns the round that will end
    // Kills the worker with this rank, so that it is replaced in place; nothing: it is of another node.
    std::function<std::optional<Result<void>>(int rank, const std::string& by)> replace;
    std::function<Result<void>(const rdzv::DrainAsked&)> drain;
  };
  ControlService(boost::asio::io_context& io, std::string key, std::string run_id, JobQuery& query,
                 LogReader& logs, Requests requests);
  // Removes the socket from its folder.
  ~ControlService();

  Result<void> open(const Environment& environment);
  std::size_t followers() const;  // clients that read logs just now
  // At the end: who follows logs is sent the last of them; then the event loop calls `done`.
  void finish(std::function<void()> done);
  const std::string& path() const { return path_; }  // of the socket; empty: there is none

 private:
  class Client;
  class LogFollower;
  class StackAnswer;
  using ClientPtr = std::shared_ptr<Client>;

  void accept();
  void admit(rdzv::UniqueFd socket);
  void read(const ClientPtr& client, std::string_view bytes);
  void drop(const ClientPtr& client);

  void on_request(const ClientPtr& client, std::string_view line);
  static bool may_await(Client& client, const std::string& what);
  void tell_who(const ClientPtr& client) const;
  void tell_events(const ClientPtr& client, bool past, bool follow);
  void tell_logs(const ClientPtr& client, std::string_view line, bool follows);
  void tell_stacks(const ClientPtr& client, std::string_view line);
  void replace(const ClientPtr& client, int rank);
  void drain(const ClientPtr& client, const Question& question);
  void drain(Client& client, const JobStatus& status, const Question& question) const;
  std::string answer_to_replace(int rank, const std::string& by) const;
  std::string in_words(std::string_view request, const Client& client) const;
  bool refuses_ranks(Client& client, const std::vector<int>& ranks) const;

  boost::asio::io_context& io_;
  const std::string key_;
  const std::string run_id_;
  std::string user_;  // the name of the user of this job; empty: not known
  JobQuery& query_;
  LogReader& logs_;
  const Requests requests_;
  rdzv::UniqueFd folder_;
  std::string name_;  // of the socket in it
  std::string path_;
  boost::asio::posix::stream_descriptor listener_;
  Timer pause_;
  std::set<ClientPtr> clients_;
  std::vector<std::weak_ptr<LogFollower>> followers_;
  std::map<std::string, std::weak_ptr<StackAnswer>> stacks_;  // by question
  std::shared_ptr<std::function<void()>> finished_;
  const Lifetime lifetime_;
};

}  // namespace ddprun::agent
