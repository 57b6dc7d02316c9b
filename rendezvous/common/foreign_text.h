// Text that others wrote (host names, programs' names, failure messages, what workers print), made
// fit for whoever reads it next. Pure; any thread.
//
// A terminal obeys what it is shown: an escape sequence moves the cursor, and a line feed in a name
// begins a line that seems to be ours. So whatever is printed and was not written here goes through
// one of these. Characters of UTF-8 stay as they are. What a terminal would act upon becomes visible:
// "\n", "\x1b", "\u009b" for control characters, "\xff" for a byte that is no UTF-8, "\u202e" for
// what changes the direction of writing. A line of JSON stays the same JSON: what is left in it to be
// made visible is made so in JSON's own way.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun {

// For a part of a sentence, or a line.
std::string printable(std::string_view text);

// For a text of several lines: line feeds and tabs stay. Colours (SGR sequences) are left out: they
// are common, and not worth a reader's attention.
std::string printable_lines(std::string_view text);

// For a line that a terminal shows as its writer wanted it: colours stay, and end with the line; a
// part that a carriage return lets the next one overwrite (a progress bar) is left out.
std::string printable_in_colour(std::string_view line);

// For JSON and other formats: `text` with U+FFFD for what is not UTF-8, and not much longer than
// `bytes_max`. Control characters are theirs to write.
std::string as_utf8(std::string_view text, std::size_t bytes_max);

}  // namespace ddprun
