// Our store beside PyTorch's libuv server: both in processes of their own, measured in turns by the
// same load, medians and ratios in one table and, with --json FILE, in a file.
//
//   store_bench [--repeat N] [--json FILE] [--only NAME] OURS -- THEIRS…
//
// OURS and THEIRS are commands that print the port they serve on and end when their stdin closes.
#include <signal.h>
#include <sys/resource.h>
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
  bool is_rate;  // more is better
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

std::vector<Row> rows() {
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
      {"pair", "us", false, [](const Target& t) { return pair_latency_us(t, 5000); }},
      {"ops_64", "/s", true, load(64, 64, 100'000)},
      {"ops_64_cpu", "us", false, cpu},
      {"ops_256", "/s", true, load(256, 256, 100'000)},
      {"ops_256_cpu", "us", false, cpu},
      {"handshake_32", "/s", true,
       [](const Target& t) {
         last = handshakes(t, 32, 5000);
         return last.per_second;
       }},
      {"handshake_32_cpu", "us", false, cpu},
      {"release_1000", "ms", false, [](const Target& t) { return release_ms(t, 1000); }},
      {"connect_1000", "ms", false, [](const Target& t) { return connect_all_ms(t, 1000); }},
      {"check_131072", "ms", false, [](const Target& t) { return check_ms(t, 131072); }},
      {"multi_set_20000", "ms", false, [](const Target& t) { return multi_set_ms(t, 20000, 16); }},
      {"multi_set_8x1MiB", "ms", false,
       [](const Target& t) { return multi_set_ms(t, 8, 1 << 20); }},
      {"large_8MiB", "MB/s", true,
       [](const Target& t) { return large_value_mb_per_s(t, 8 << 20, 20); }},
      {"ops_100_conns", "/s", true, load(100, 64, 100'000)},
      {"ops_100_conns_cpu", "us", false, cpu},
      {"ops_1000_conns", "/s", true, load(1000, 64, 100'000)},
      {"ops_1000_conns_cpu", "us", false, cpu},
      {"ops_10000_conns", "/s", true, load(10000, 64, 100'000)},
      {"ops_10000_conns_cpu", "us", false, cpu},
  };
}

}  // namespace

int main(int argc, char** argv) {
  int repeat = 5;
  std::string json, only;
  std::vector<std::string> ours, theirs;
  int i = 1;
  for (; i < argc && std::strncmp(argv[i], "--", 2) == 0 && std::strcmp(argv[i], "--") != 0;
       i += 2) {
    if (i + 1 >= argc) return 2;
    const std::string option = argv[i];
    if (option == "--repeat") repeat = std::atoi(argv[i + 1]);
    if (option == "--json") json = argv[i + 1];
    if (option == "--only") only = argv[i + 1];
  }
  for (; i < argc && std::strcmp(argv[i], "--") != 0; ++i) ours.emplace_back(argv[i]);
  for (++i; i < argc; ++i) theirs.emplace_back(argv[i]);
  if (ours.empty() || repeat < 1) {
    std::fprintf(stderr,
                 "usage: store_bench [--repeat N] [--json FILE] [--only NAME] OURS -- THEIRS...\n");
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);

  std::vector<Row> table = rows();
  std::vector<std::vector<std::vector<double>>> results(table.size(),
                                                        std::vector<std::vector<double>>(2));
  for (int round = 0; round < repeat; ++round) {
    for (int side = 0; side < 2; ++side) {
      // Their turn first in every second round: neither side always runs on the warmer machine.
      const int which = (side + round) % 2;
      const auto& command = which == 0 ? ours : theirs;
      if (command.empty()) continue;
      const Server server(command);
      for (std::size_t row = 0; row < table.size(); ++row) {
        if (!only.empty() && table[row].name.find(only) == std::string::npos) continue;
        results[row][static_cast<std::size_t>(which)].push_back(
            table[row].measure(server.target()));
      }
    }
  }

  std::printf("%-20s %12s %12s %6s %8s\n", "what", "ours", "PyTorch", "unit", "ratio");
  std::string text = "[\n";
  for (std::size_t row = 0; row < table.size(); ++row) {
    if (results[row][0].empty()) continue;
    const double mine = median(results[row][0]);
    const double other = results[row][1].empty() ? 0 : median(results[row][1]);
    std::printf("%-20s %12.2f %12.2f %6s %8.3f\n", table[row].name.c_str(), mine, other,
                table[row].unit.c_str(), other > 0 ? mine / other : 0);
    text += R"(  {"what": ")" + table[row].name + R"(", "unit": ")" + table[row].unit +
            R"(", "ours": )" + as_json(results[row][0]) + R"(, "pytorch": )" +
            as_json(results[row][1]) + "},\n";
  }
  if (!json.empty()) {
    if (text.ends_with(",\n")) text.erase(text.size() - 2, 1);
    std::ofstream(json) << text << "]\n";
  }
}
