// ddprun_integer_training FOLDER STEPS: a cheap training that shows every error. Its weights and
// gradients are integers, so that the sum has the same bits in any order and with any number of
// ranks; a step that is lost or repeated, a missing sample, and a rank with different weights all
// change the result. It trains with the other ranks of its round, all in step through the round's
// store, continues from the last checkpoint (FOLDER/step-N), and leaves FOLDER/step-STEPS. Waits
// very long for the other ranks, so that a hanging job is visible as one.
//
// Ends with 71 and a sentence when it cannot go on, with 72 (kNeverHappens) when the ranks differ.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "tests/support/meeting.h"

namespace {

using namespace ddprun;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr int kCannotGoOn = 71;
constexpr int kRanksDiffer = 72;
// scripts/campaigns looks for these words.
constexpr const char* kNeverHappens = "this must never happen: ";
constexpr int kStepsBetweenCheckpoints = 5;
constexpr int kCheckpointsKept = 3;
constexpr auto kTimeOfAStep = 5ms;
constexpr auto kPatience = 1h;

class IntegerTraining {
 public:
  static constexpr int kSamples = 12;  // per step
  using Weights = std::array<std::uint64_t, 32>;

  int step() const { return step_; }

  // The gradient of these samples: first, first + stride …
  Weights gradient_of(int first, int stride) const {
    Weights sum{};
    for (int sample = first; sample < kSamples; sample += stride) add(sum, gradient_of(sample));
    return sum;
  }

  void update(const Weights& gradient) {
    for (std::size_t i = 0; i < weights_.size(); ++i) weights_[i] = 3 * weights_[i] + gradient[i];
    ++step_;
  }

  static void add(Weights& sum, const Weights& other) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  }

  bool operator==(const IntegerTraining&) const = default;

 private:
  Weights gradient_of(int sample) const {
    Weights gradient;
    const auto seed = static_cast<std::uint64_t>(step_) * kSamples;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = mixed(weights_[i] + mixed(seed + static_cast<std::uint64_t>(sample)));
    }
    return gradient;
  }
  static std::uint64_t mixed(std::uint64_t z) {  // splitmix64
    z += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }

  int step_ = 0;
  Weights weights_{};
};

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
  if (!value) end(kRanksDiffer, kNeverHappens + what);
  return *std::move(value);
}

template <typename T>
std::string bytes_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

template <typename T>
std::optional<T> from_bytes(const std::string& bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  if (bytes.size() != sizeof value) return std::nullopt;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

fs::path checkpoint_in(const fs::path& folder, int step) {
  return folder / ("step-" + std::to_string(step));
}

// 0 if there is none.
int last_checkpoint_in(const fs::path& folder) {
  int last = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const bool is_whole = name.find('.') == std::string::npos;  // false: it is being written
    if (name.starts_with("step-") && is_whole) last = std::max(last, std::stoi(name.substr(5)));
  }
  return last;
}

// nullopt if it cannot be read.
std::optional<IntegerTraining> read_checkpoint(const fs::path& folder, int step) {
  if (step == 0) return IntegerTraining();
  std::ifstream file(checkpoint_in(folder, step), std::ios::binary);
  return from_bytes<IntegerTraining>(std::string(std::istreambuf_iterator<char>(file), {}));
}

void save(const IntegerTraining& training, const fs::path& folder) {
  const fs::path path = checkpoint_in(folder, training.step());
  const fs::path aside = path.string() + "." + std::to_string(getpid());
  std::ofstream(aside, std::ios::binary) << bytes_of(training);
  fs::rename(aside, path);
  std::error_code is_gone;
  fs::remove(checkpoint_in(folder, training.step() - kCheckpointsKept * kStepsBetweenCheckpoints),
             is_gone);
}

// What a rank sends to the others in each step.
struct Contribution {
  IntegerTraining before;
  IntegerTraining::Weights gradient;
};

void train(const fs::path& folder, int steps) {
  const int rank = test::rank();
  const int world = test::world_size();
  const auto store = need(test::meet(kPatience));
  if (rank == 0) {
    const auto saved = read_checkpoint(folder, last_checkpoint_in(folder));
    need(store->set("checkpoint", bytes_of(need(saved, "the checkpoint is damaged"))));
  }
  auto training = need(from_bytes<IntegerTraining>(need(store->get("checkpoint"))),
                       "rank 0's checkpoint has another size");

  const auto key = [](int step, int of_rank) {
    return std::to_string(step) + " of " + std::to_string(of_rank);
  };
  while (training.step() < steps) {
    const int step = training.step();
    Contribution own;
    std::memset(static_cast<void*>(&own), 0, sizeof own);
    own.before = training;
    own.gradient = training.gradient_of(rank, world);
    need(store->set(key(step, rank), bytes_of(own)));
    std::vector<std::string> keys;
    for (int other = 0; other < world; ++other) keys.push_back(key(step, other));
    const auto all = need(store->multi_get(keys));
    IntegerTraining::Weights sum{};
    for (int other = 0; other < world; ++other) {
      const auto its = need(from_bytes<Contribution>(all[static_cast<std::size_t>(other)]),
                            "rank " + std::to_string(other) + " tells something else");
      if (its.before != training) {
        end(kRanksDiffer, kNeverHappens + ("rank " + std::to_string(other) + " has other weights"));
      }
      IntegerTraining::add(sum, its.gradient);
    }
    training.update(sum);
    // All ranks have sent this step, so all have read the one before.
    if (step > 0) need(store->delete_key(key(step - 1, rank)));
    const bool is_due = training.step() % kStepsBetweenCheckpoints == 0 || training.step() == steps;
    if (rank == 0 && is_due) save(training, folder);
    std::this_thread::sleep_for(kTimeOfAStep);
  }
  // No rank may leave before the others have read its last values in the store.
  need(store->barrier("end", world));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  train(argv[1], std::atoi(argv[2]));
}
