// LD_PRELOAD: a worker of the first round does not end by itself when it has done its work, so that
// standbys can be waited for, however short the program is. It says so by a file held-PID in its folder.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

__attribute__((destructor)) static void hold() {
  const char* const round = std::getenv("TORCHELASTIC_RESTART_COUNT");
  if (round == nullptr || std::string_view(round) != "0") return;
  ::close(::creat(("held-" + std::to_string(::getpid())).c_str(), 0644));
  for (;;) ::pause();
}
