// LD_PRELOAD: a worker of the first round does not end by itself when it has done its work, so that
// standbys can be waited for, however short the program is.
#include <unistd.h>

#include <cstdlib>
#include <string_view>

__attribute__((destructor)) static void hold() {
  const char* const round = std::getenv("TORCHELASTIC_RESTART_COUNT");
  while (round != nullptr && std::string_view(round) == "0") ::pause();
}
