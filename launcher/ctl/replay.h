// Plays a recorded job (--record) again: the same cores get the same inputs; their decisions are
// explained in words. If the recording was made by another version of ddprun whose cores decided
// otherwise, Replay says so and continues. Pure; for one thread.
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
  // The text for one line of the file, as whole lines. `is_damaged`: the line cannot be read, and so
  // the rest of the file has no meaning.
  struct Told {
    std::string text;
    bool is_damaged = false;
  };
  Told line(std::string_view line);
  // The last lines: how many inputs there were, and whether all decisions were the same as then.
  std::string end() const;
  bool has_differed() const { return differences_ > 0; }

 private:
  std::string on(const agent::NodeBegan& began);
  std::string on(const agent::RoundBegan& began);
  std::string on(const agent::NodeInput& input);
  std::string on(const rdzv::RoundInput& input);
  std::string on(const agent::InputsLost& lost);
  std::string on(const agent::CallsSeen& seen);
  std::string on(const agent::ResponseBegan& began);
  std::string on(const agent::ResponseInput& input);
  std::string compare(std::size_t decisions);

  std::optional<agent::NodeCore> group_;
  std::optional<rdzv::RoundCore> round_;
  std::optional<agent::hang_response::Core> response_;
  rdzv::RoundConfig config_;
  std::optional<std::int64_t> began_us_;
  std::size_t recorded_ = 0;  // decisions, of the current line
  std::size_t inputs_ = 0;
  std::size_t differences_ = 0;
  std::uint64_t lost_ = 0;
};

}  // namespace ddprun::cli
