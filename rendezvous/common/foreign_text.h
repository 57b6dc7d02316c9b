// Makes text from outside (host names, programs' names, failure messages, the output of workers)
// safe to print or to put into JSON. Pure; any thread.
//
// A terminal acts on control characters: an escape sequence moves the cursor, and a line feed in a
// name begins a line that seems to be ours. So all printed text that is not ours goes through one
// of these functions. UTF-8 characters stay as they are. What a terminal would act on becomes
// visible: "\n", "\x1b", "\u009b" for control characters, "\xff" for a byte that is not UTF-8,
// "\u202e" for characters that change the direction of writing. A line of JSON stays the same JSON:
// its writer has escaped control characters below U+0020, and "\u…" is JSON's escape for the
// others.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun {

// For a part of a sentence, or a line.
std::string printable(std::string_view text);

// For a text of several lines: line feeds and tabs stay. Colours (SGR sequences) are left out: they
// are common and carry no information.
std::string printable_lines(std::string_view text);

// For a line that is shown with its colours: they stay, and are reset at the end of the line; a
// part that is overwritten after a carriage return (a progress bar) is left out.
std::string printable_in_colour(std::string_view line);

// For JSON and other formats: `text` with U+FFFD for what is not UTF-8, and not much longer than
// `bytes_max`. Control characters stay: the format's writer escapes them.
std::string as_utf8(std::string_view text, std::size_t bytes_max);

}  // namespace ddprun
