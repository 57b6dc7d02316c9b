#include "launcher/ctl/subcommand.h"

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ddprun::cli {

CommandOption CommandOption::required() {
  option_->required();
  return *this;
}

CommandOption CommandOption::shows_default() {
  option_->capture_default_str();
  return *this;
}

CommandOption CommandOption::shows_default(const std::string& text) {
  option_->default_str(text);
  return *this;
}

CommandOption CommandOption::shows_type(const std::string& name) {
  option_->type_name(name);
  return *this;
}

CommandOption CommandOption::is_positive() {
  option_->check(CLI::PositiveNumber);
  return *this;
}

CommandOption CommandOption::is_not_negative() {
  option_->check(CLI::NonNegativeNumber);
  return *this;
}

CommandOption CommandOption::in_range(int low, int high) {
  option_->check(CLI::Range(low, high));
  return *this;
}

CommandOption CommandOption::in_range(double low, double high) {
  option_->check(CLI::Range(low, high));
  return *this;
}

CommandOption CommandOption::takes_commas() {
  option_->delimiter(',')->allow_extra_args(false);
  return *this;
}

CommandOption CommandOption::takes_last() {
  option_->take_last();
  return *this;
}

Subcommand::Subcommand(CLI::App& app, const std::string& name, const std::string& what)
    : app_(app.add_subcommand(name, what)) {}

void Subcommand::footer(const std::string& text) { app_->footer(text); }

Subcommand Subcommand::subcommand(const std::string& name, const std::string& what) {
  return Subcommand(*app_, name, what);
}

void Subcommand::when_given(std::function<void()> call) { app_->callback(std::move(call)); }

template <typename T>
CommandOption Subcommand::option(const std::string& names, T& value, const std::string& help) {
  return CommandOption(app_->add_option(names, value, help));
}
template CommandOption Subcommand::option(const std::string&, std::string&, const std::string&);
template CommandOption Subcommand::option(const std::string&, int&, const std::string&);
template CommandOption Subcommand::option(const std::string&, std::int64_t&, const std::string&);
template CommandOption Subcommand::option(const std::string&, std::size_t&, const std::string&);
template CommandOption Subcommand::option(const std::string&, double&, const std::string&);
template CommandOption Subcommand::option(const std::string&, std::vector<std::string>&,
                                          const std::string&);
template CommandOption Subcommand::option(const std::string&, std::vector<int>&,
                                          const std::string&);

CommandOption Subcommand::option(const std::string& names,
                                 std::function<void(const std::string&)> take,
                                 const std::string& help) {
  return CommandOption(app_->add_option_function<std::string>(names, std::move(take), help));
}

void Subcommand::flag(const std::string& names, bool& value, const std::string& help) {
  app_->add_flag(names, value, help);
}

}  // namespace ddprun::cli
