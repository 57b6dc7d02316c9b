// The load for a leader: N agents in one process, each a real client of a leader over a connection of its
// own, that form one round, end it, and go.
//
//   round_load HOST:PORT AGENTS     prints "joined SECONDS" when every agent has its RoundStart, waits
//                                   for a line on stdin, then prints "ended SECONDS" when every agent
//                                   has gone through WorkersDone, JobEnd and Goodbye
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/common/descriptor_limit.h"
#include "rendezvous/common/endpoint.h"
#include "rendezvous/leader/round_client.h"
#include "rendezvous/net/asio_transport.h"

namespace ddprun::rdzv {
namespace {

using std::chrono::steady_clock;

class Agent {
 public:
  Agent(boost::asio::io_context& io, const Endpoint& leader, int& started, int& ended)
      : started_(started),
        ended_(ended),
        client_(make_round_client(asio_transport(io), options(leader), events())) {}

  void join(int agents, int number) {
    NodeHello hello;
    hello.run_id = "none";
    hello.host = "node" + std::to_string(number);
    hello.min_nodes = hello.max_nodes = agents;
    hello.user = std::to_string(::getuid());
    hello.program = "round_load";
    client_->join(hello);
  }
  void finish() { client_->tell(WorkersDone{round_}); }
  bool may_exit() { return client_->may_exit(); }

 private:
  static RoundClientOptions options(const Endpoint& leader) {
    RoundClientOptions options;
    options.leader = leader;
    return options;
  }
  LeaderEvents events() {
    LeaderEvents events;
    events.on_event = [this](const LeaderEvent& event) {
      if (const auto* gone = std::get_if<LeaderGone>(&event)) {
        std::fprintf(stderr, "round_load: %s\n", gone->sentence.c_str());
        std::exit(1);
      }
      if (const auto* message = std::get_if<ToAgent>(&event)) hear(*message);
    };
    return events;
  }

  void hear(const ToAgent& message) {
    if (const auto* open = std::get_if<OpenStore>(&message)) {
      client_->tell(StoreOpened{open->round, 1});
    } else if (const auto* start = std::get_if<RoundStart>(&message)) {
      round_ = start->round;
      ++started_;
    } else if (std::holds_alternative<JobEnd>(message)) {
      client_->tell(Goodbye{});
      ++ended_;
    } else if (const auto* refused = std::get_if<Refused>(&message)) {
      std::fprintf(stderr, "round_load: refused: %s\n", refused->sentence.c_str());
      std::exit(1);
    }
  }

  int& started_;
  int& ended_;
  Round round_{};
  const std::unique_ptr<Leader> client_;
};

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

int run(const Endpoint& leader, int count) {
  raise_descriptor_limit();

  boost::asio::io_context io(1);
  int started = 0;
  int ended = 0;
  std::vector<std::unique_ptr<Agent>> agents;
  for (int i = 0; i < count; ++i) {
    agents.push_back(std::make_unique<Agent>(io, leader, started, ended));
  }
  const auto join = steady_clock::now();
  for (int i = 0; i < count; ++i) agents[static_cast<std::size_t>(i)]->join(count, i);
  while (started < count) io.run_one();
  std::printf("joined %.6f\n", seconds_since(join));
  std::fflush(stdout);
  if (std::getchar() == EOF) return 1;

  const auto finish = steady_clock::now();
  for (const auto& agent : agents) agent->finish();
  while (ended < count) io.run_one();
  for (const auto& agent : agents) {
    while (!agent->may_exit()) io.run_one();
  }
  std::printf("ended %.6f\n", seconds_since(finish));
  return 0;
}

}  // namespace
}  // namespace ddprun::rdzv

int main(int argc, char** argv) {
  const auto leader = argc == 3 ? ddprun::rdzv::parse_endpoint(argv[1])
                                : ddprun::Result<ddprun::rdzv::Endpoint>(ddprun::fail(
                                      ddprun::ErrorCode::kInvalidArgument, "two arguments"));
  const int agents = argc == 3 ? std::atoi(argv[2]) : 0;
  if (!leader || agents < 1) {
    std::fprintf(stderr, "usage: round_load HOST:PORT AGENTS\n");
    return 2;
  }
  return ddprun::rdzv::run(*leader, agents);
}
