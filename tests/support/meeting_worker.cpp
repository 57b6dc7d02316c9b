// ddprun_meeting_worker PROGRAM [ARGUMENT…]: meets the other workers of its round in the store of
// the round, as every c10d program does, and then becomes PROGRAM. Ends with 71 and a sentence if
// there is no store, or if it contains data of other workers and so is not of this round.
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "tests/support/meeting.h"

namespace {

constexpr int kDidNotMeet = 71;
constexpr std::chrono::seconds kPatience{20};

}  // namespace

int main(int argc, char** argv) {
  using namespace ddprun;
  if (const auto store = test::meet(kPatience); !store) {
    std::fprintf(stderr, "meeting_worker: rank %d: %s\n", test::rank(),
                 store.error().to_string().c_str());
    return kDidNotMeet;
  }
  if (argc < 2) return 0;
  execvp(argv[1], argv + 1);
  std::perror(argv[1]);
  return kDidNotMeet;
}
