#include "tests/support/store_process.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace ddprun::rdzv::testing {

StoreProcess::StoreProcess(unsigned file_limit, std::size_t address_space) {
  int in[2], out[2];
  if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) std::abort();
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(in[0], STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    if (file_limit > 0) {
      const rlimit files{file_limit, file_limit};
      ::setrlimit(RLIMIT_NOFILE, &files);
    }
    if (address_space > 0) {
      const rlimit space{address_space, address_space};
      ::setrlimit(RLIMIT_AS, &space);
    }
    ::execl(DDPRUN_STORE_HOST, DDPRUN_STORE_HOST, nullptr);
    std::perror(DDPRUN_STORE_HOST);
    ::_exit(127);
  }
  ::close(in[0]);
  ::close(out[1]);
  stdin_ = in[1];
  std::string line;
  for (char c; ::read(out[0], &c, 1) == 1 && c != '\n';) line += c;
  ::close(out[0]);
  port_ = static_cast<std::uint16_t>(std::atoi(line.c_str()));
}

StoreProcess::~StoreProcess() {
  ::close(stdin_);
  ::waitpid(pid_, nullptr, 0);
}

std::size_t StoreProcess::resident_bytes() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/statm");
  std::size_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace ddprun::rdzv::testing
