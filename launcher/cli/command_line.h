// The command line as values: which options were given, and the program with its arguments as
// typed. Interpreting them is for settings.h and plan.h. Pure.
//
// The grammar is argparse's as torchrun uses it: dashes or underscores, "--name value" and
// "--name=value", "-r3", and any unambiguous prefix of a long name. If an option is given twice, the last one
// counts. The first word that is neither an option nor its value is the program. One "--" is
// dropped: before the program, else right after it ("-m scripts.train -- --depth=26").
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launcher/cli/option_table.h"
#include "rendezvous/common/result.h"

namespace ddprun::cli {

struct CommandLine {
  // By OptionId; a flag that was given holds "1".
  std::array<std::optional<std::string>, kOptionCount> values;
  std::vector<std::string> command;  // the program and its arguments; empty if none was given

  const std::optional<std::string>& value(OptionId id) const {
    return values[static_cast<std::size_t>(id)];
  }
};

// `arguments` without the name of ddprun itself.
Result<CommandLine> parse_command_line(std::span<const std::string> arguments);

}  // namespace ddprun::cli
