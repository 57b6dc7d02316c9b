// A cheap training that shows every error: its weights and gradients are integers, so that the sum
// has the same bits in any order and with any number of ranks; a step that is lost or repeated, a
// missing sample, and a rank with different weights all change the result. ddprun_integer_training
// (integer_training.cpp) runs it over the store of a round; tests compute the expected result with
// it. Values, and its checkpoints: FOLDER/step-N, the bytes of such a value.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <type_traits>

namespace ddprun::test {

class IntegerTraining {
 public:
  static constexpr int kSamples = 12;  // per step
  using Weights = std::array<std::uint64_t, 32>;

  int step() const { return step_; }
  const Weights& weights() const { return weights_; }

  Weights gradient_of(int sample) const {
    Weights gradient;
    const auto seed = static_cast<std::uint64_t>(step_) * kSamples;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = mixed(weights_[i] + mixed(seed + static_cast<std::uint64_t>(sample)));
    }
    return gradient;
  }

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

  // The result of an undisturbed training.
  static IntegerTraining after(int steps) {
    IntegerTraining training;
    while (training.step_ < steps) training.update(training.gradient_of(0, 1));
    return training;
  }

  bool operator==(const IntegerTraining&) const = default;

 private:
  static std::uint64_t mixed(std::uint64_t z) {  // splitmix64
    z += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }

  int step_ = 0;
  Weights weights_{};
};

// The beginning of a rank's last line on stderr if an impossible state was found.
inline constexpr const char* kNeverHappens = "this must never happen: ";

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

inline std::filesystem::path checkpoint_in(const std::filesystem::path& folder, int step) {
  return folder / ("step-" + std::to_string(step));
}

// 0 if there is none.
inline int last_checkpoint_in(const std::filesystem::path& folder) {
  int last = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const bool is_whole = name.find('.') == std::string::npos;  // false: it is being written
    if (name.starts_with("step-") && is_whole) last = std::max(last, std::stoi(name.substr(5)));
  }
  return last;
}

// nullopt if it cannot be read.
inline std::optional<IntegerTraining> read_checkpoint(const std::filesystem::path& folder,
                                                      int step) {
  if (step == 0) return IntegerTraining();
  std::ifstream file(checkpoint_in(folder, step), std::ios::binary);
  return from_bytes<IntegerTraining>(std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace ddprun::test
