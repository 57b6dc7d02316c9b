// The process' stderr as a sequence of whole lines with, on a terminal, one live line at its end
// (the progress bar). Log lines go above the live line instead of into it. Process-wide, because
// stderr is; any thread.
#pragma once

#include <string_view>

namespace ddprun::stderr_line {

// One finished line, newline included, in one write.
void write(std::string_view line);

// Draws or replaces the live line (no newline in it); an empty one removes it. Terminals only.
void set_live(std::string_view text);

// Leaves the live line where it is, as a finished line.
void finish_live();

}  // namespace ddprun::stderr_line
