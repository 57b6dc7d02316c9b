// LD_PRELOAD: a worker of the first round does not end by itself when it has done its work, so that
// standbys can be waited for, however short the program is. Each worker that has done it leaves a file done-PID in its
// folder, with the process id under which this library was loaded: another one than its own if it was forked.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace {

const pid_t loaded_by = ::getpid();

__attribute__((destructor)) void hold() {
  const char* const round = std::getenv("TORCHELASTIC_RESTART_COUNT");
  if (round == nullptr) return;
  const std::string loader = std::to_string(loaded_by);
  const int file = ::creat(("done-" + std::to_string(::getpid())).c_str(), 0644);
  if (file < 0 || ::write(file, loader.data(), loader.size()) < 0) ::_exit(1);
  ::close(file);
  if (std::string_view(round) != "0") return;
  for (;;) ::pause();
}

}  // namespace
