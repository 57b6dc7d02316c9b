// ddprun_simulated_job: a simulated job of any size behind the real MetricsServer: to test the live
// page, to look at it, and to measure the cost of watching.
//
//   ddprun_simulated_job RANKS [live MS] [parse]
//
// Prints "port N" on stdout, then performs the commands on stdin, one per line, and answers "done"
// to each. `live MS`: all ranks take a step at this interval; otherwise only on command. `parse`:
// the nodes' answers are parsed from JSON each time, as in a real job.
//
//   advance N      every rank takes N steps          behind R N    rank R has N steps fewer
//   age MS         their last step is that much      hang R        rank R takes none any more, the
//                  older                                           others wait for it
//   fail R TEXT    rank R ends with code 1 and this  lose NODE     the node is lost
//                  message; the job restarts         finish TEXT   the job's end
//   prove R TEXT   it is proven that rank R hangs    await NODES   the leader waits for so many nodes
//                                                    more; 0: they are there
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/streambuf.hpp>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <istream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "agent/dashboard/metrics_server.h"
#include "agent/events/event_lines.h"
#include "agent/status/job_view.h"

namespace {

using namespace ddprun;
using namespace ddprun::agent;
using namespace std::chrono_literals;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using std::chrono::system_clock;

constexpr int kWorkersOfNode = 8;
constexpr int kTotalSteps = 20'000;
constexpr int kCheckpointSteps = 100;

double loss_at(std::int64_t step) {
  const auto x = static_cast<double>(step);
  return 0.35 + 2.1 * std::exp(-x / 900) + 0.05 * std::sin(x * 0.37) * std::exp(-x / 2500);
}

class SimulatedJob final : public JobView {
 public:
  SimulatedJob(boost::asio::io_context& io, int ranks, bool parses)
      : io_(io), parses_(parses), ranks_(static_cast<std::size_t>(ranks)) {
    for (Rank& rank : ranks_) rank.stepped_at = began_;
  }

  NodeStatus node_status() const override { return node(0); }

  void job_status(std::function<void(JobStatus)> done) override {
    boost::asio::post(io_, [this, done = std::move(done)] { done(status()); });
  }

  std::shared_ptr<void> on_event(std::function<void(const std::string&)> told) override {
    told_ = std::make_shared<std::function<void(const std::string&)>>(std::move(told));
    return told_;
  }

  void advance(int steps) {
    const bool is_stuck = std::ranges::any_of(ranks_, &Rank::hangs);
    for (Rank& rank : ranks_) {
      rank.phase = is_stuck && !rank.hangs ? WorkerPhase::kCollective : WorkerPhase::kRunning;
      if (is_stuck) continue;
      rank.step += steps;
      rank.collectives += static_cast<std::uint64_t>(steps) * 3;
      rank.stepped_at = steady_clock::now();
    }
  }
  void age(milliseconds time) {
    for (Rank& rank : ranks_) rank.stepped_at -= time;
  }
  void behind(std::size_t rank, int steps) { ranks_.at(rank).step -= steps; }
  void hang(std::size_t rank) {
    ranks_.at(rank).hangs = true;
    advance(0);
  }

  void prove(int rank, const std::string& sentence) {
    hung_ = {{rdzv::Hung::Why::kStopped, {rank}, sentence, 17s}};
  }

  void await(int missing) { missing_ = missing; }

  void fail(int rank, const std::string& message) {
    tell(WorkerExited{.round = Round{round_},
                      .worker = {rank, rank % kWorkersOfNode, pid_of(rank)},
                      .status = ExitStatus::exited(1),
                      .message = message,
                      .progress = progress_of(ranks_.at(static_cast<std::size_t>(rank)))},
         host_of(rank / kWorkersOfNode));
    restart(RestartReason::kWorkerFailed, rank, rank / kWorkersOfNode,
            "rank " + std::to_string(rank) + " on " + host_of(rank / kWorkersOfNode) +
                " ended with exit code 1",
            40ms);
  }
  void lose(int lost) {
    restart(RestartReason::kNodeLost, std::nullopt, lost,
            "node " + std::to_string(lost) + " (" + host_of(lost) + ") was lost: it was silent",
            7s);
  }
  void finish(bool well) { end_ = well ? WorkerState::kSucceeded : WorkerState::kStopped; }

 private:
  struct Rank {
    std::int64_t step = 0;
    std::uint64_t collectives = 0;
    WorkerPhase phase = WorkerPhase::kRunning;
    bool hangs = false;
    steady_clock::time_point stepped_at;
  };

  static std::string host_of(int node) { return "b" + std::to_string(100 + node); }
  static int pid_of(int rank) { return 4000 + rank; }
  int nodes() const {
    return (static_cast<int>(ranks_.size()) + kWorkersOfNode - 1) / kWorkersOfNode;
  }

  WorkerProgress progress_of(const Rank& rank) const {
    WorkerProgress progress;
    if (rank.step > 0) progress.step = rank.step;
    progress.total_steps = kTotalSteps;
    progress.since_step = steady_clock::now() - rank.stepped_at;
    progress.collectives = rank.collectives;
    progress.phase = rank.phase;
    if (rank.step > 0) progress.values.push_back({"loss", loss_at(rank.step)});
    return progress;
  }

  NodeStatus node(int index) const {
    const int first = index * kWorkersOfNode;
    NodeStatus node;
    node.host = host_of(index);
    node.agent_pid = 3000 + index;
    node.max_restarts = 3;
    node.wall = std::chrono::duration_cast<std::chrono::microseconds>(steady_clock::now() - began_);
    if (missing_ > 0) {
      node.state = NodeState::kWaiting;
      return node;
    }
    node.state = end_ ? NodeState::kEnded : NodeState::kRunning;
    node.leads = index == 0;
    node.round = Round{round_};
    node.node_rank = index;
    node.node_count = nodes();
    node.world_size = static_cast<int>(ranks_.size());
    node.rank_offset = first;
    node.local_world_size = std::min(kWorkersOfNode, static_cast<int>(ranks_.size()) - first);
    for (int local = 0; local < node.local_world_size; ++local) {
      WorkerStatus worker;
      worker.rank = first + local;
      worker.local_rank = local;
      worker.pid = pid_of(worker.rank);
      worker.device = "cuda:" + std::to_string(local);
      worker.state = end_.value_or(WorkerState::kRunning);
      worker.progress = progress_of(ranks_[static_cast<std::size_t>(worker.rank)]);
      node.workers.push_back(std::move(worker));
    }
    node.restarts = spent_;
    node.until_run = 1200ms;
    node.until_first_step = node.until_run;
    for (const RestartTotal& total : totals_) node.downtime.stopped += total.downtime;
    const bool has_stepped = std::ranges::any_of(ranks_, [](const Rank& r) { return r.step > 0; });
    if (has_stepped) {
      node.goodput = std::max(0.0, 1 - std::chrono::duration<double>(node.downtime.total()) /
                                           std::chrono::duration<double>(node.wall));
    }
    node.restart_totals = totals_;
    node.recent_restarts = restarts_;
    if (index == 0) node.hung = hung_;
    if (index == 0) node.store = StoreStatus{18'204, ranks_.size(), 311, 91'000};
    node.events = index == 0 ? events_ : std::vector<std::string>{};
    return node;
  }

  JobStatus status() const {
    JobStatus status;
    status.run_id = "llm-7";
    status.program = "train.py";
    status.version = "0.1.0";
    status.when = system_clock::now();
    status.asked_host = host_of(0);
    status.leader = LeaderStatus{.state = "running",
                                 .round = Round{round_},
                                 .min_nodes = nodes(),
                                 .max_nodes = nodes(),
                                 .missing_ranks = {},
                                 .left = {},
                                 .left_out = {},
                                 .members = {}};
    if (missing_ > 0) {
      status.leader->state = "gathering";
      status.leader->missing = missing_;
      status.leader->left = 850s;
      for (int index = nodes() - missing_; index < nodes(); ++index) {
        status.leader->missing_ranks.push_back(index);
      }
    }
    status.leader->members.resize(static_cast<std::size_t>(nodes() - missing_));
    for (int index = 0; index < nodes() - missing_; ++index) {
      status.nodes.push_back(parses_ && index > 0 ? *node_status_from(to_json(node(index)))
                                                  : node(index));
    }
    return status;
  }

  void tell(const JobEvent& event, const std::string& host) {
    std::string line = event_line({system_clock::now(), steady_clock::now(), "llm-7", host}, event);
    const auto told = told_;
    line.pop_back();
    events_.push_back(line);
    if (told) (*told)(line + "\n");
  }

  void restart(RestartReason reason, std::optional<int> rank, int node, std::string sentence,
               milliseconds lost) {
    ++round_;
    spent_ += reason == RestartReason::kWorkerFailed;
    restarts_.push_back({.when = system_clock::now(),
                         .round = Round{round_},
                         .reason = reason,
                         .rank = rank,
                         .host = host_of(node),
                         .sentence = std::move(sentence),
                         .downtime = {}});
    restarts_.back().downtime.stopped = lost;
    auto total = std::ranges::find(totals_, reason, &RestartTotal::reason);
    if (total == totals_.end()) total = totals_.insert(total, {reason, 0, {}});
    total->count += 1;
    total->downtime += lost;
    hung_.clear();
    for (Rank& each : ranks_) {
      each.step = each.step / kCheckpointSteps * kCheckpointSteps;
      each.hangs = false;
      each.stepped_at = steady_clock::now();
      each.phase = WorkerPhase::kRunning;
    }
    tell(RoundStarted{.round = Round{round_}, .master_addr = {}, .workers = {}}, host_of(0));
  }

  boost::asio::io_context& io_;
  const bool parses_;
  const steady_clock::time_point began_ = steady_clock::now() - 95min;
  std::vector<Rank> ranks_;
  std::uint32_t round_ = 0;
  int spent_ = 0;
  int missing_ = 0;
  std::vector<HungStatus> hung_;
  std::optional<WorkerState> end_;
  std::vector<RestartRecord> restarts_;
  std::vector<RestartTotal> totals_;
  std::vector<std::string> events_;
  std::shared_ptr<std::function<void(const std::string&)>> told_;
};

class Commands {
 public:
  Commands(boost::asio::io_context& io, SimulatedJob& job, MetricsServer& server)
      : io_(io), input_(io, ::dup(STDIN_FILENO)), job_(job), server_(server) {}

  void read() {
    boost::asio::async_read_until(input_, buffer_, '\n',
                                  [this](const boost::system::error_code& ec, std::size_t) {
                                    if (ec) return io_.stop();
                                    std::istream stream(&buffer_);
                                    std::string line;
                                    std::getline(stream, line);
                                    obey(line);
                                    std::puts("done");
                                    std::fflush(stdout);
                                    read();
                                  });
  }

 private:
  void obey(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    const auto number = [&words] {
      int value = 0;
      words >> value;
      return value;
    };
    const auto rest = [&words] {
      std::string text;
      std::getline(words >> std::ws, text);
      for (std::size_t at = 0; (at = text.find("\\n", at)) != std::string::npos;) {
        text.replace(at, 2, "\n");
      }
      return text;
    };
    if (command == "advance") return job_.advance(number());
    if (command == "age") return job_.age(milliseconds(number()));
    if (command == "hang") return job_.hang(static_cast<std::size_t>(number()));
    if (command == "await") return job_.await(number());
    if (command == "lose") return job_.lose(number());
    if (command == "behind") {
      const int rank = number();
      return job_.behind(static_cast<std::size_t>(rank), number());
    }
    if (command == "fail") {
      const int rank = number();
      return job_.fail(rank, rest());
    }
    if (command == "prove") {
      const int rank = number();
      return job_.prove(rank, rest());
    }
    if (command == "finish") {
      const std::string sentence = rest();
      job_.finish(sentence.ends_with(" succeeded"));
      return server_.over(sentence);
    }
    std::cerr << "no such command: " << line << "\n";
    std::exit(2);
  }

  boost::asio::io_context& io_;
  boost::asio::posix::stream_descriptor input_;
  boost::asio::streambuf buffer_;
  SimulatedJob& job_;
  MetricsServer& server_;
};

void advance_every(boost::asio::steady_timer& timer, milliseconds time, SimulatedJob& job) {
  timer.expires_after(time);
  timer.async_wait([&timer, time, &job](const boost::system::error_code&) {
    job.advance(1);
    advance_every(timer, time, job);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const bool parses = std::ranges::count(arguments, "parse") > 0;
  const auto live = std::ranges::find(arguments, "live");
  boost::asio::io_context io{1};
  SimulatedJob job(io, arguments.empty() ? 8 : std::stoi(arguments.front()), parses);
  auto server = MetricsServer::start(io, {"127.0.0.1", 0}, job, {"llm-7", "train.py", "0.1.0"});
  if (!server) {
    std::cerr << server.error().to_string() << "\n";
    return 1;
  }
  std::printf("port %d\n", (*server)->bound().port);
  std::fflush(stdout);
  boost::asio::steady_timer timer(io);
  if (live != arguments.end()) advance_every(timer, milliseconds(std::stoi(*(live + 1))), job);
  Commands commands(io, job, **server);
  commands.read();
  io.run();
}
