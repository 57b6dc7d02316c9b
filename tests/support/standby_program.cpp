// ddprun_standby_program FOLDER LAST [WHAT]: a worker that may be forked, without LibTorch: what
// Context does for standbys and nothing else. It prints who it is; in the round LAST it ends with 0;
// before, as soon as there is FOLDER/go-ROUND, rank 1 fails. WHAT it does before its Context, too:
// early, refuses, thread, pipe, exits, closes.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "ddprun/environment.h"
#include "rendezvous/common/worker_abi/zygote_protocol.h"
#include "worker_lib/process/agent_link.h"
#include "worker_lib/process/zygote.h"

int main(int argc, char** argv) {
  using namespace std::chrono_literals;
  if (argc < 3) return 2;
  const std::string folder = argv[1];
  const std::string what = argc > 3 ? argv[3] : "";
  const pid_t started = ::getpid();
  std::printf("first\n");
  std::fflush(stdout);
  std::printf("second\n");  // is in the buffer when the process is forked
  ::setenv("SET_BY_THE_PROGRAM", "kept", 1);
  std::setbuf(stderr, nullptr);
  const int digits = ::open((folder + "/digits").c_str(), O_RDONLY | O_CLOEXEC);
  char digit[2] = {};
  if (::read(digits, digit, 2) != 2) return 2;

  if (what == "early" && std::getenv("RANK") == nullptr) return 5;
  if (what == "exits" && std::getenv(ddprun::zygote::kSocketVariable) != nullptr) return 4;
  // All that a process finds open, also what it is to wait at.
  if (what == "closes" && std::getenv(ddprun::zygote::kSocketVariable) != nullptr) {
    ::close_range(STDERR_FILENO + 1, ~0U, 0);
  }
  std::thread thread;
  if (what == "thread") thread = std::thread([] { std::this_thread::sleep_for(1000s); });
  int pipe[2];
  if (what == "pipe" && ::pipe(pipe) != 0) return 2;

  ddprun::zygote::wait_for_rank(what != "refuses");
  const auto environment = ddprun::environment_of_this_process();
  const auto link = ddprun::AgentLink::open(environment.link_fd, environment.link_page_fd);
  if (!link) return 6;
  if (ddprun::zygote::can_be_zygote()) link->offer_zygote();

  if (::read(digits, digit, 1) != 1) return 2;
  std::printf("round %d rank %d pid %d %s; digit %c, %s\n", environment.restart_count,
              environment.rank, ::getpid(), started == ::getpid() ? "started" : "forked", *digit,
              std::getenv("SET_BY_THE_PROGRAM"));
  std::fflush(stdout);
  if (environment.restart_count == std::atoi(argv[2])) std::_Exit(0);
  const std::string go = folder + "/go-" + std::to_string(environment.restart_count);
  while (!std::filesystem::exists(go)) std::this_thread::sleep_for(5ms);
  if (environment.rank == 1) std::_Exit(3);
  std::this_thread::sleep_for(1000s);
}
