// Our store beside PyTorch's libuv server and the floor: all in processes of their own, measured in
// turns by the same load, medians in one table and, with --json FILE, all samples in a file.
//
//   store_bench [--repeat N] [--json FILE] [--only NAME] [--handshakes N] OURS [-- THEIRS [--
//   FLOOR]]
//
// Each is a command that prints the port it serves on and ends when its stdin closes. FLOOR
// (bare_store) takes part where it can.
//
// Where it may, the whole of it runs before everything else on the machine: the load and the
// server are two threads, and on two cores any third program would be measured with them.
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "rendezvous/common/descriptor_limit.h"
#include "tests/bench/store_load.h"

using namespace ddprun::rdzv::bench;

namespace {

class Server {
 public:
  explicit Server(std::vector<std::string> command) {
    int in[2], out[2];
    if (::pipe(in) != 0 || ::pipe(out) != 0) std::abort();
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      for (const int fd : {in[0], in[1], out[0], out[1]}) ::close(fd);
      std::vector<char*> argv;
      for (auto& word : command) argv.push_back(word.data());
      argv.push_back(nullptr);
      ::execvp(argv[0], argv.data());
      std::perror(argv[0]);
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    stdin_ = in[1];
    std::string line;
    for (char c; ::read(out[0], &c, 1) == 1 && c != '\n';) line += c;
    ::close(out[0]);
    target_.pid = pid;
    target_.port = static_cast<std::uint16_t>(std::atoi(line.c_str()));
    if (target_.port == 0) {
      std::fprintf(stderr, "store_bench: %s printed no port\n", command[0].c_str());
      std::exit(1);
    }
  }
  Server(const Server&) = delete;
  ~Server() {
    ::close(stdin_);
    ::waitpid(target_.pid, nullptr, 0);
  }
  const Target& target() const { return target_; }

 private:
  Target target_;
  int stdin_ = -1;
};

struct Row {
  std::string name;
  std::string unit;
  bool has_floor;  // the floor serves this too
  std::function<double(const Target&)> measure;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::string as_json(const std::vector<double>& values) {
  std::string text = "[";
  for (const double value : values) text += (text.size() > 1 ? ", " : "") + std::to_string(value);
  return text + "]";
}

std::vector<Row> rows(int handshake_count) {
  static Throughput last;  // the second figure of the row before
  const auto cpu = [](const Target&) { return last.server_cpu_us; };
  const auto load = [](int clients, int in_flight, int requests) {
    return [=](const Target& target) {
      last = operations(target, clients, in_flight, requests);
      return last.per_second;
    };
  };
  return {
      // First: later rows leave memory behind that would be used again.
      {"idle_connection", "B", false,
       [](const Target& t) { return idle_connection_bytes(t, 10000); }},
      {"pair", "us", true, [](const Target& t) { return pair_latency_us(t, 5000); }},
      {"ops_64", "/s", true, load(64, 64, 100'000)},
      {"ops_64_cpu", "us", true, cpu},
      {"ops_256", "/s", true, load(256, 256, 100'000)},
      {"ops_256_cpu", "us", true, cpu},
      {"handshake_32", "/s", true,
       [handshake_count](const Target& t) {
         last = handshakes(t, 32, handshake_count);
         return last.per_second;
       }},
      {"handshake_32_cpu", "us", true, cpu},
      {"release_1000", "ms", true, [](const Target& t) { return release_ms(t, 1000); }},
      {"connect_1000", "ms", true, [](const Target& t) { return connect_all_ms(t, 1000); }},
      {"check_131072", "ms", false, [](const Target& t) { return check_ms(t, 131072); }},
      {"multi_set_20000", "ms", false, [](const Target& t) { return multi_set_ms(t, 20000, 16); }},
      {"multi_set_8x1MiB", "ms", false,
       [](const Target& t) { return multi_set_ms(t, 8, 1 << 20); }},
      {"large_8MiB", "MB/s", false,
       [](const Target& t) { return large_value_mb_per_s(t, 8 << 20, 20); }},
      {"ops_100_conns", "/s", true, load(100, 64, 100'000)},
      {"ops_100_conns_cpu", "us", true, cpu},
      {"ops_1000_conns", "/s", true, load(1000, 64, 100'000)},
      {"ops_1000_conns_cpu", "us", true, cpu},
      {"ops_10000_conns", "/s", true, load(10000, 64, 100'000)},
      {"ops_10000_conns_cpu", "us", true, cpu},
  };
}

void come_first() {
  sched_param lowest{};
  lowest.sched_priority = sched_get_priority_min(SCHED_FIFO);
  if (::sched_setscheduler(0, SCHED_FIFO, &lowest) != 0)
    std::fprintf(stderr, "store_bench: shares the processors with whatever else runs\n");
}

}  // namespace

int main(int argc, char** argv) {
  constexpr const char* kNames[] = {"ours", "pytorch", "floor"};
  constexpr std::size_t kFloor = 2;
  int repeat = 5;
  int handshake_count = 5000;
  std::string json, only;
  int i = 1;
  for (; i + 1 < argc && std::strncmp(argv[i], "--", 2) == 0; i += 2) {
    const std::string option = argv[i];
    if (option == "--repeat") repeat = std::atoi(argv[i + 1]);
    if (option == "--json") json = argv[i + 1];
    if (option == "--only") only = argv[i + 1];
    if (option == "--handshakes") handshake_count = std::atoi(argv[i + 1]);
  }
  std::vector<std::vector<std::string>> commands(1);
  for (; i < argc; ++i) {
    if (std::strcmp(argv[i], "--") == 0) {
      commands.emplace_back();
    } else {
      commands.back().emplace_back(argv[i]);
    }
  }
  const bool has_empty = std::any_of(commands.begin(), commands.end(),
                                     [](const auto& command) { return command.empty(); });
  if (has_empty || commands.size() > std::size(kNames) || repeat < 1 || handshake_count < 1) {
    std::fprintf(stderr,
                 "usage: store_bench [--repeat N] [--json FILE] [--only NAME] [--handshakes N] "
                 "OURS [-- THEIRS [-- FLOOR]]\n");
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);
  ddprun::raise_descriptor_limit();
  come_first();

  const std::vector<Row> table = rows(handshake_count);
  std::vector results(table.size(), std::vector<std::vector<double>>(commands.size()));
  for (int round = 0; round < repeat; ++round) {
    for (std::size_t side = 0; side < commands.size(); ++side) {
      // Another goes first in every round: nobody always runs on the warmer machine.
      const std::size_t which = (side + static_cast<std::size_t>(round)) % commands.size();
      const Server server(commands[which]);
      for (std::size_t row = 0; row < table.size(); ++row) {
        if (table[row].name.find(only) == std::string::npos) continue;
        if (which == kFloor && !table[row].has_floor) continue;
        results[row][which].push_back(table[row].measure(server.target()));
      }
    }
  }

  std::string text = "[\n";
  for (std::size_t row = 0; row < table.size(); ++row) {
    if (results[row][0].empty()) continue;
    std::printf("%-20s %5s", table[row].name.c_str(), table[row].unit.c_str());
    text += R"(  {"what": ")" + table[row].name + R"(", "unit": ")" + table[row].unit + '"';
    for (std::size_t which = 0; which < commands.size(); ++which) {
      const auto& samples = results[row][which];
      if (samples.empty()) continue;
      std::printf("  %s %.2f", kNames[which], median(samples));
      text += R"(, ")" + std::string(kNames[which]) + R"(": )" + as_json(samples);
    }
    std::printf("\n");
    text += "},\n";
  }
  if (!json.empty()) {
    if (text.ends_with(",\n")) text.erase(text.size() - 2, 1);
    std::ofstream(json) << text << "]\n";
  }
}
