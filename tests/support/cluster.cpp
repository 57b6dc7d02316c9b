#include "tests/support/cluster.h"

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <sstream>
#include <string_view>

#include "rendezvous/net/listener.h"

namespace ddprun::test {
namespace fs = std::filesystem;

std::ostream& operator<<(std::ostream& out, Meeting meeting) {
  switch (meeting) {
    case Meeting::kOneNode:
      return out << "OneNode";
    case Meeting::kStatic:
      return out << "Static";
    case Meeting::kC10d:
      return out << "C10d";
    case Meeting::kEtcd:
      return out << "Etcd";
    case Meeting::kLeader:
      break;
  }
  return out << "Leader";
}

Cluster::Cluster(ClusterSetup setup, Network* network)
    : setup_(std::move(setup)), network_(network) {
  if (network_ != nullptr) return;
  auto held = rdzv::reserve_port({.address = setup_.is_ipv6 ? "::1" : "127.0.0.1"}).value();
  held_port_ = std::move(held.socket);
  port_ = held.bound.port;
}

std::string Cluster::address() const {
  if (network_ == nullptr) return setup_.is_ipv6 ? "::1" : "127.0.0.1";
  return setup_.is_ipv6 ? Network::address6(0) : Network::address(0);
}

std::string Cluster::endpoint() const {
  const std::string host = setup_.is_ipv6 ? "[" + address() + "]" : address();
  return host + ":" + std::to_string(port_);
}

Command Cluster::command(int node, const std::vector<std::string>& more) const {
  std::vector<std::string> options{"--nproc-per-node=" + std::to_string(setup_.nproc)};
  if (setup_.meeting != Meeting::kOneNode) options.push_back("--nnodes=" + setup_.nnodes);
  std::string conf = setup_.conf;
  const auto add_conf = [&conf](const std::string& pair) {
    conf += (conf.empty() ? "" : ",") + pair;
  };
  if (setup_.meeting == Meeting::kStatic) {
    options.insert(options.end(),
                   {"--node-rank=" + std::to_string(node), "--master-addr=" + address(),
                    "--master-port=" + std::to_string(port_)});
  } else if (setup_.meeting == Meeting::kEtcd) {
    options.insert(options.end(),
                   {"--rdzv-backend=etcd", "--rdzv-endpoint=" + setup_.etcd, "--rdzv-id=job"});
    if (conf.find("last_call_timeout") == std::string::npos) add_conf("last_call_timeout=1");
  } else if (setup_.meeting != Meeting::kOneNode) {
    options.insert(options.end(),
                   {"--rdzv-backend=c10d", "--rdzv-endpoint=" + endpoint(), "--rdzv-id=job"});
    if (conf.find("last_call_timeout") == std::string::npos) add_conf("last_call_timeout=1");
    // On one machine every node has the endpoint's address, so the first one to start would lead.
    const bool leads = setup_.meeting == Meeting::kC10d && node == 0;
    if ((network_ == nullptr && setup_.says_who_leads) || setup_.meeting == Meeting::kLeader) {
      add_conf(std::string("is_host=") + (leads ? "1" : "0"));
    }
  }
  if (!conf.empty()) options.push_back("--rdzv-conf=" + conf);
  options.insert(options.end(), setup_.options.begin(), setup_.options.end());
  options.insert(options.end(), more.begin(), more.end());

  Command program = setup_.program;
  if (program.empty()) {
    program = {DDPRUN_MEETING_WORKER};
    const Command rest = worker({"environment", folder_ / "environment.{round}.{rank}",  //
                                 "stamp", folder_.path()});
    program.insert(program.end(), rest.begin(), rest.end());
    const Command finishing{"until", "{folder}/finish", "exit", "0"};
    const Command& actions = setup_.actions.empty() ? finishing : setup_.actions;
    program.insert(program.end(), actions.begin(), actions.end());
  }
  constexpr std::string_view kFolder = "{folder}";
  for (std::string& word : program) {
    if (const auto at = word.find(kFolder); at != std::string::npos) {
      word.replace(at, kFolder.size(), folder_.path());
    }
  }
  return ddprun(options, program);
}

JobSetup Cluster::on(int node, JobSetup setup) const {
  setup.environment.insert(setup_.environment.begin(), setup_.environment.end());
  setup.environment.insert({"DDPRUN_LOG_LEVEL", "info"});
  return network_ == nullptr ? std::move(setup) : network_->on(node, std::move(setup));
}

Job& Cluster::start_leader() {
  Command command =
      ddpctl({"leader", "--listen=" + endpoint(), "--nnodes=" + setup_.nnodes, "--rdzv-id=job"});
  const std::string conf =
      setup_.conf.find("last_call_timeout") == std::string::npos
          ? "last_call_timeout=1" + std::string(setup_.conf.empty() ? "" : ",") + setup_.conf
          : setup_.conf;
  command.push_back("--rdzv-conf=" + conf);
  for (const std::string& option : setup_.options) {
    if (option.starts_with("--max-restarts") || option == "--no-token") command.push_back(option);
  }
  if (leader_) replaced_.emplace_back("an earlier leader", std::move(leader_));
  leader_ = std::make_unique<Job>(command, on(0));
  return *leader_;
}

Job& Cluster::start(int node, const std::vector<std::string>& more) {
  if (setup_.meeting == Meeting::kLeader && !leader_) start_leader();
  std::unique_ptr<Job>& agent = agents_[node];
  if (agent) replaced_.emplace_back("an earlier node " + std::to_string(node), std::move(agent));
  const Command words = command(node, more);
  agent = std::make_unique<Job>(setup_.is_on_fake_gpu ? on_fake_gpu(words) : words, on(node));
  return *agent;
}

void Cluster::start_all(int nodes) {
  // Nodes with equal host names are sorted by arrival; if none of them leads, the test cannot know
  // which comes first.
  const bool must_ask = network_ == nullptr && setup_.meeting == Meeting::kLeader;
  for (int node = 0; node < nodes; ++node) {
    start(node, must_ask ? std::vector{"--node-rank=" + std::to_string(node)}
                         : std::vector<std::string>{});
  }
}

int Cluster::last_round() const {
  int last = -1;
  for (const auto& entry : fs::directory_iterator(folder_.path())) {
    const std::string name = entry.path().filename();
    const auto dot = name.find('.');
    if (name.find_first_not_of("0123456789.") == std::string::npos && dot != std::string::npos) {
      last = std::max(last, std::stoi(name.substr(0, dot)));
    }
  }
  return last;
}

int Cluster::next_round(int world, milliseconds deadline) {
  int found = -1;
  const auto has_come = [&] {
    for (int round = seen_round_ + 1; round <= last_round(); ++round) {
      const auto running = workers(round);
      const bool is_whole = static_cast<int>(running.size()) == world &&
                            running.begin()->first == 0 && running.rbegin()->first == world - 1;
      // Skip a round that has a larger world size: more of its workers will start.
      if (is_whole && environment(round, 0)["WORLD_SIZE"] == std::to_string(world)) {
        found = round;
        return true;
      }
    }
    return false;
  };
  const auto have_ended = [&] {
    return std::ranges::all_of(
        agents_, [](const auto& entry) { return entry.second->wait(milliseconds(0)) != Ended{}; });
  };
  eventually([&] { return has_come() || have_ended(); }, deadline);
  if (has_come()) seen_round_ = found;
  return found;
}

std::map<std::string, std::string> Cluster::environment(int round, int rank) const {
  return environment_in(folder_ /
                        ("environment." + std::to_string(round) + "." + std::to_string(rank)));
}

std::map<int, int> Cluster::first_ranks(int round) {
  std::map<int, int> ranks;
  const auto running = workers(round);
  for (const auto& [node, agent] : agents_) {
    for (const auto& [rank, stamp] : running) {
      const auto info = process(stamp.pid);
      if (info && info->parent == agent->pid() && !ranks.contains(node)) ranks[node] = rank;
    }
  }
  return ranks;
}

int Cluster::node_at(std::uint16_t port) const {
  // sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode, in hexadecimal
  constexpr std::string_view kListening = "0A";
  std::string inode;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::istringstream lines(read_file(table));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::vector<std::string> word(10);
      for (std::string& each : word) words >> each;
      const auto colon = word[1].find(':');
      if (colon == std::string::npos || word[3] != kListening) continue;
      if (std::stoi(word[1].substr(colon + 1), nullptr, 16) == port) inode = word[9];
    }
  }
  for (const auto& [node, agent] : agents_) {
    const auto files = open_files_of(agent->pid());
    if (std::ranges::find(files, "socket:[" + inode + "]") != files.end()) return node;
  }
  return -1;
}

std::map<int, Ended> Cluster::wait(milliseconds deadline) {
  std::map<int, Ended> ended;
  const auto until = std::chrono::steady_clock::now() + deadline;
  for (const auto& [node, agent] : agents_) {
    const auto left = std::chrono::ceil<milliseconds>(until - std::chrono::steady_clock::now());
    ended[node] = agent->wait(std::max(left, milliseconds(0)));
  }
  return ended;
}

std::vector<std::string> Cluster::left_over() const {
  std::vector<std::string> all;
  const auto add = [&all](const Job& job) {
    const auto left = job.left_over();
    all.insert(all.end(), left.begin(), left.end());
  };
  for (const auto& [who, job] : replaced_) add(*job);
  for (const auto& [node, agent] : agents_) add(*agent);
  if (leader_) add(*leader_);
  return all;
}

std::string Cluster::told() const {
  std::string text;
  const auto add = [&text](const std::string& who, const Job& job) {
    text += "---- " + who + "\n" + job.err();
  };
  for (const auto& [who, job] : replaced_) add(who, *job);
  if (leader_) add("leader", *leader_);
  for (const auto& [node, agent] : agents_) add("node " + std::to_string(node), *agent);
  return text;
}

}  // namespace ddprun::test
