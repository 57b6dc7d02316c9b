#include "agent/output/terminal_look.h"

namespace ddprun::agent {

TerminalLook look_from(const Environment& environment) {
  const std::string terminal = value_or_empty(environment, "TERM");
  TerminalLook look;
  look.can_redraw = !terminal.empty() && terminal != "dumb";
  look.has_colour = look.can_redraw && value_or_empty(environment, "NO_COLOR").empty();
  return look;
}

std::string coloured(std::string_view text, Colour colour, bool has_colour) {
  if (!has_colour) return std::string(text);
  return "\x1b[1;" + std::to_string(static_cast<int>(colour)) + "m" + std::string(text) + "\x1b[0m";
}

}  // namespace ddprun::agent
