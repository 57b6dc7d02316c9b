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

TerminalLook look_from(const Environment& environment);

// `text` between the escape sequences that begin and end the colour; unchanged if !has_colour.
enum class Colour { kRed = 31, kYellow = 33 };
std::string coloured(std::string_view text, Colour colour, bool has_colour);

}  // namespace ddprun::agent
