// A command of ddpctl as CLI11 parses it. One source includes CLI11: its headers take seconds to
// compile, and each source that includes them constructs their validators at every start of ddprun.
//
//   Subcommand status(app, "status", "Show a job that runs.");
//   status.option("--interval", held->interval_s, "seconds").shows_default().in_range(0.1, 60.0);
//
// Handles: what they are about, and the values that options fill, must live until the line was parsed.
#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ddprun::cli {

class CommandOption {
 public:
  explicit CommandOption(CLI::Option* option) : option_(option) {}

  CommandOption required();
  CommandOption shows_default();  // in the help: the value as it is now
  CommandOption shows_default(const std::string& text);
  CommandOption shows_type(const std::string& name);
  CommandOption is_positive();
  CommandOption is_not_negative();
  CommandOption in_range(int low, int high);
  CommandOption in_range(double low, double high);
  CommandOption takes_commas();  // several values as one word
  CommandOption takes_last();    // of several

 private:
  CLI::Option* option_;
};

class Subcommand {
 public:
  Subcommand(CLI::App& app, const std::string& name, const std::string& what);

  void footer(const std::string& text);
  Subcommand subcommand(const std::string& name, const std::string& what);
  void when_given(std::function<void()> call);

  // Names as CLI11 has them: "-n,--lines", or "JOB" for an operand. T is std::string, int,
  // std::int64_t, std::size_t, double, or a vector of strings or ints.
  template <typename T>
  CommandOption option(const std::string& names, T& value, const std::string& help);
  CommandOption option(const std::string& names, std::function<void(const std::string&)> take,
                       const std::string& help);
  void flag(const std::string& names, bool& value, const std::string& help);

 private:
  CLI::App* app_;
};

}  // namespace ddprun::cli
