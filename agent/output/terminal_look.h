// What a terminal may be shown besides plain lines, by the conventions that users know: NO_COLOR
// (no-color.org) takes colour away, TERM=dumb (or none) everything. Whether a stream is a terminal
// at all is for the Console to say.
#pragma once

#include <string>
#include <string_view>

#include "rendezvous/common/environment.h"

namespace ddprun::agent {

struct TerminalLook {
  bool can_redraw = false;  // understands "erase to the end of the row"
  bool has_colour = false;

  bool operator==(const TerminalLook&) const = default;
};

TerminalLook look_from(const Environment& environment);

// Inline, between the escape sequence and its end; without colour the text as it is.
enum class Colour { kRed = 31, kYellow = 33 };
std::string coloured(std::string_view text, Colour colour, bool has_colour);

}  // namespace ddprun::agent
