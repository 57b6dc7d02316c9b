// The man page of ddpctl and its completion for shells, made from its commands and their options, so
// that none is left out. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::cli {

struct CommandText {
  struct Option {
    std::vector<std::string> names;  // with their dashes; empty: it is an argument
    std::string value;               // the name of its value; empty: it has none
    std::string what;
  };
  std::string name;
  std::string what;
  std::vector<Option> options;
  std::vector<CommandText> commands;  // its own
  std::string exit_codes;             // several lines
};

std::string man_page_of(const CommandText& program, std::string_view version);
// `shell`: "bash", "zsh" or "fish".
std::string completion_of(const CommandText& program, std::string_view shell);

}  // namespace ddprun::cli
