// A job that was recorded (--record), played again: the same cores get the same inputs, and what
// they decide is told in words, with the reason. Pure; for one thread.
//
//   Replay replay;
//   for (each line) std::cout << replay.line(line).text;
//   std::cout << replay.end();
//
// The mistake to avoid: taking it for the recording of another version of ddprun. Where the cores
// decide otherwise now than then, it says so and goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "agent/events/core_record.h"

namespace ddprun::cli {

class Replay {
 public:
  // What one line of the file comes to, as whole lines of text. `is_damaged`: it cannot be read,
  // and nothing after it would mean anything.
  struct Told {
    std::string text;
    bool is_damaged = false;
  };
  Told line(std::string_view line);
  // The last words: how many inputs there were, and whether all went as it did then.
  std::string end() const;
  bool has_differed() const { return differences_ > 0; }

 private:
  std::string on(const agent::NodeBegan& began);
  std::string on(const agent::RoundBegan& began);
  std::string on(const agent::NodeInput& input);
  std::string on(const rdzv::RoundInput& input);
  std::string on(const agent::InputsLost& lost);
  std::string compare(std::size_t decisions);

  std::optional<agent::NodeCore> group_;
  std::optional<rdzv::RoundCore> round_;
  rdzv::RoundConfig config_;
  std::optional<std::int64_t> began_us_;
  std::size_t recorded_ = 0;  // decisions, of the line under way
  std::size_t inputs_ = 0;
  std::size_t differences_ = 0;
  std::uint64_t lost_ = 0;
};

}  // namespace ddprun::cli
