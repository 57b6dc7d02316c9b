// ddprun_integer_training FOLDER: trains (integer_training.h) with the other ranks of its round,
// all in step through the round's store, until there is a file FOLDER/finish. It continues from the
// last checkpoint, and rank 0 appends to FOLDER/progress a line for each step: "<round> <world
// size> <step>". Waits very long for the other ranks, so that a hanging job is visible as one.
//
// Ends with 71 and a sentence when it cannot go on, with 72 (kNeverHappens) when the ranks differ.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "tests/support/integer_training.h"
#include "tests/support/meeting.h"

namespace {

using namespace ddprun;
using namespace std::chrono_literals;
using test::IntegerTraining;
namespace fs = std::filesystem;

constexpr int kCannotGoOn = 71;
constexpr int kRanksDiffer = 72;
constexpr int kStepsBetweenCheckpoints = 5;
constexpr int kCheckpointsKept = 3;
constexpr auto kTimeOfAStep = 5ms;
constexpr auto kPatience = 1h;

[[noreturn]] void end(int code, const std::string& why) {
  std::fprintf(stderr, "integer_training: rank %d: %s\n", test::rank(), why.c_str());
  std::_Exit(code);
}

template <typename T>
T need(Result<T> result) {
  if (!result) end(kCannotGoOn, result.error().to_string());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

template <typename T>
T need(std::optional<T> value, const std::string& what) {
  if (!value) end(kRanksDiffer, test::kNeverHappens + what);
  return *std::move(value);
}

void save(const IntegerTraining& training, const fs::path& folder) {
  const fs::path path = test::checkpoint_in(folder, training.step());
  const fs::path aside = path.string() + "." + std::to_string(getpid());
  std::ofstream(aside, std::ios::binary) << test::bytes_of(training);
  fs::rename(aside, path);
  std::error_code is_gone;
  fs::remove(
      test::checkpoint_in(folder, training.step() - kCheckpointsKept * kStepsBetweenCheckpoints),
      is_gone);
}

// What a rank sends to the others in each step.
struct Contribution {
  IntegerTraining before;
  IntegerTraining::Weights gradient;
  bool is_last = false;  // rank 0 decides
};

void train(const fs::path& folder) {
  const int rank = test::rank();
  const int world = test::world_size();
  const auto store = need(test::meet(kPatience));
  if (rank == 0) {
    const auto saved = test::read_checkpoint(folder, test::last_checkpoint_in(folder));
    need(store->set("checkpoint", test::bytes_of(need(saved, "the checkpoint is damaged"))));
  }
  auto training = need(test::from_bytes<IntegerTraining>(need(store->get("checkpoint"))),
                       "rank 0's checkpoint has another size");

  const int progress = open((folder / "progress").c_str(), O_WRONLY | O_APPEND | O_CREAT, 0644);
  const auto key = [](int step, int of_rank) {
    return std::to_string(step) + " of " + std::to_string(of_rank);
  };
  for (bool is_last = false; !is_last;) {
    const int step = training.step();
    Contribution own;
    std::memset(static_cast<void*>(&own), 0, sizeof own);
    own.before = training;
    own.gradient = training.gradient_of(rank, world);
    own.is_last = rank == 0 && fs::exists(folder / "finish");
    need(store->set(key(step, rank), test::bytes_of(own)));
    std::vector<std::string> keys;
    for (int other = 0; other < world; ++other) keys.push_back(key(step, other));
    const auto all = need(store->multi_get(keys));
    IntegerTraining::Weights sum{};
    for (int other = 0; other < world; ++other) {
      const auto its = need(test::from_bytes<Contribution>(all[static_cast<std::size_t>(other)]),
                            "rank " + std::to_string(other) + " tells something else");
      if (its.before != training) {
        end(kRanksDiffer,
            test::kNeverHappens + ("rank " + std::to_string(other) + " has other weights"));
      }
      IntegerTraining::add(sum, its.gradient);
      if (other == 0) is_last = its.is_last;
    }
    training.update(sum);
    // All ranks have sent this step, so all have read the one before.
    if (step > 0) need(store->delete_key(key(step - 1, rank)));
    if (rank == 0) {
      if (is_last || training.step() % kStepsBetweenCheckpoints == 0) save(training, folder);
      dprintf(progress, "%s %d %d\n", test::variable("TORCHELASTIC_RESTART_COUNT").c_str(), world,
              training.step());
    }
    std::this_thread::sleep_for(kTimeOfAStep);
  }
  // No rank may leave before the others have read its last values in the store.
  need(store->barrier("end", world));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  train(argv[1]);
}
