// What the first bytes of a file say about how it is run. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::cli {

// Enough for every first line that a kernel reads, and for pip's second one.
inline constexpr std::size_t kFileStartBytes = 4096;

bool is_elf(std::string_view start);

// Python can run it: text in any encoding, an archive (zipapp), or a module that is compiled.
bool may_be_python(std::string_view start);

// The first line of a script, "#!INTERPRETER OPTIONS", also through /usr/bin/env. pip writes a second line for a Python
// whose path is too long or has a blank in it; then that Python is the interpreter.
struct FirstLine {
  std::string interpreter;           // as the line names it
  bool is_on_path = false;           // env looks for it on PATH
  std::vector<std::string> options;  // words after the interpreter
  bool ends_in_return = false;       // the kernel takes '\r' for a part of the name
  bool names_python = false;
  // Python's -u can stand before `options`, and the script after them.
  bool can_have_more_options = false;
};
// Nothing: no such line.
std::optional<FirstLine> first_line_of(std::string_view start);

}  // namespace ddprun::cli
