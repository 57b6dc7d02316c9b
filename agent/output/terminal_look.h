// Which escape sequences a terminal may get: NO_COLOR (no-color.org) disables colour, and an empty
// TERM or TERM=dumb disables all. The Console knows whether a stream is a terminal.
#pragma once

#include <string>
#include <string_view>

#include "rendezvous/common/environment.h"

namespace ddprun::agent {

struct TerminalLook {
  bool can_redraw = false;  // supports "erase to the end of the row"
  bool has_colour = false;

  bool operator==(const TerminalLook&) const = default;
};

inline TerminalLook look_from(const Environment& environment) {
  const std::string terminal = value_or_empty(environment, "TERM");
  TerminalLook look;
  look.can_redraw = !terminal.empty() && terminal != "dumb";
  look.has_colour = look.can_redraw && value_or_empty(environment, "NO_COLOR").empty();
  return look;
}

// `text` between the escape sequences that begin and end the colour; unchanged if !has_colour.
enum class Colour { kRed = 31, kYellow = 33 };
inline std::string coloured(std::string_view text, Colour colour, bool has_colour) {
  if (!has_colour) return std::string(text);
  return "\x1b[1;" + std::to_string(static_cast<int>(colour)) + "m" + std::string(text) + "\x1b[0m";
}

}  // namespace ddprun::agent
