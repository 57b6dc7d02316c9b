// What the first node asks the others to find ranks that compute slowly (rendezvous/round/lag_core.h), and their answers:
// values and their JSON. Also what follows from the stacks of two ranks. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/ids.h"
#include "rendezvous/common/result.h"
#include "rendezvous/round/lag_core.h"

namespace ddprun::agent {

// When the ranks of a node came to their latest calls.
struct ArrivalsQuestion {
  Round round{};
  std::size_t calls = 0;  // the most that are wanted of each group

  bool operator==(const ArrivalsQuestion&) const = default;
};
std::string to_json(const ArrivalsQuestion& question);
Result<ArrivalsQuestion> arrivals_question_from(std::string_view json);

struct ArrivalsAnswer {
  std::chrono::nanoseconds now{};         // by the node's clock
  std::vector<rdzv::RankArrivals> ranks;  // empty: another round runs there

  bool operator==(const ArrivalsAnswer&) const = default;
};
// At most `bytes_max` long: the oldest calls are left out. Times are whole microseconds.
std::string to_json(ArrivalsAnswer answer, std::size_t bytes_max);
// A peer's numbers are clamped before arithmetic. Groups and calls beyond what a record holds are left out.
Result<ArrivalsAnswer> arrivals_answer_from(std::string_view json);

// ---- where a slow rank spends more time than another

// The stacks of these ranks' main threads, looked at several times.
struct SamplesQuestion {
  Round round{};
  std::vector<int> ranks;

  bool operator==(const SamplesQuestion&) const = default;
};
std::string to_json(const SamplesQuestion& question);
Result<SamplesQuestion> samples_question_from(std::string_view json);

// A stack that was seen so often: the program's own frames, a line for each, the innermost first: "next_batch (loader.py:40)\n".
struct SeenStack {
  std::string frames;
  int count = 0;

  bool operator==(const SeenStack&) const = default;
};
struct RankSamples {
  int rank = 0;
  std::vector<SeenStack> stacks;  // empty: it is no Python program that answers

  bool operator==(const RankSamples&) const = default;
};
// At most `bytes_max` long: the stacks that were seen least are left out.
std::string to_json(std::vector<RankSamples> samples, std::size_t bytes_max);
// A peer's numbers are clamped before arithmetic.
Result<std::vector<RankSamples>> samples_from(std::string_view json);

void add(RankSamples& samples, std::string frames);
int answers_of(
    const RankSamples& samples);  // the number of its stacks, each as often as it was seen

// The innermost frame in which the slow rank is more often than the other: "next_batch (loader.py:40)". Empty: there is none
// in which it is much more often.
std::string where_it_is_slow(const RankSamples& slow, const RankSamples& other);

}  // namespace ddprun::agent
