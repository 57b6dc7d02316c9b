#include "launcher/settings/config_file.h"

#include <fcntl.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

// We catch exceptions only at the edges; this makes the library return errors instead.
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "launcher/cli/text.h"
#include "launcher/settings/values.h"
#include "rendezvous/common/file_text.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::cli {
namespace {

std::string at(const std::string& file, const toml::node& node) {
  return file + ":" + std::to_string(node.source().begin.line);
}

tl::unexpected<Error> mistake(const std::string& where, const std::string& sentence) {
  return fail(ErrorCode::kInvalidArgument, where + ": " + sentence);
}

// A string or number in the form that the command line uses.
std::optional<std::string> scalar_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) {
    std::array<char, 32> digits{};
    const auto [end, error] =
        std::to_chars(digits.data(), digits.data() + digits.size(), number->get());
    if (error == std::errc()) return std::string(digits.data(), end);
  }
  return std::nullopt;
}

std::optional<std::string> array_text(const toml::array& array, bool escapes_commas) {
  std::string text;
  for (const toml::node& element : array) {
    const auto part = scalar_text(element);
    if (!part) return std::nullopt;
    if (&element != &array.front()) text += ',';
    text += escapes_commas ? replaced(*part, ',', ",,") : *part;
  }
  return text;
}

std::optional<std::string> table_text(const toml::table& table, char between) {
  std::string text;
  for (const auto& [key, value] : table) {
    const auto* const flag = value.as_boolean();
    const auto part = flag == nullptr ? scalar_text(value) : flag->get() ? "1" : "0";
    if (!part) return std::nullopt;
    if (!text.empty()) text += ',';
    text += std::string(key.str()) + between + *part;
  }
  return text;
}

std::optional<std::string> value_text(const OptionSpec& spec, const toml::node& node) {
  if (spec.kind == Kind::kFlag) {
    const auto* const flag = node.as_boolean();
    if (flag == nullptr) return std::nullopt;
    return flag->get() ? "1" : "0";
  }
  const bool is_list = spec.kind == Kind::kList || spec.kind == Kind::kEscapedList;
  if (is_list && node.is_array()) {
    return array_text(*node.as_array(), spec.kind == Kind::kEscapedList);
  }
  if (spec.kind == Kind::kPairs && node.is_table()) return table_text(*node.as_table(), '=');
  if (spec.kind == Kind::kRankMap && node.is_table()) return table_text(*node.as_table(), ':');
  return scalar_text(node);
}

// By Kind.
constexpr std::string_view kWanted[] = {"true or false",        "a string or a number",
                                        "a string or an array", "a string or an array",
                                        "a string or a table",  "a string or a table"};

bool belongs_in_a_file(const OptionSpec& spec) {
  return spec.variables != Variables::kNone && spec.id != OptionId::kConfig;
}

constexpr std::string_view kProgram = "program";
constexpr std::string_view kArguments = "arguments";

Result<std::vector<std::string>> command_of(const toml::table& table, const std::string& file) {
  std::vector<std::string> command;
  const toml::node* const arguments = table.get(kArguments);
  if (const toml::node* const program = table.get(kProgram)) {
    const auto* const text = program->as_string();
    if (text == nullptr || text->get().empty()) {
      return mistake(at(file, *program), "program must be a string");
    }
    command.push_back(text->get());
  } else if (arguments != nullptr) {
    return mistake(at(file, *arguments), "arguments need a program");
  }
  if (arguments == nullptr) return command;
  const toml::array* const array = arguments->as_array();
  if (array == nullptr) return mistake(at(file, *arguments), "arguments must be an array");
  for (const toml::node& element : *array) {
    auto word = scalar_text(element);
    if (!word) return mistake(at(file, element), "an argument must be a string or a number");
    command.push_back(*std::move(word));
  }
  return command;
}

tl::unexpected<Error> unknown_key(const std::string& where, std::string_view key) {
  std::vector<std::string_view> names{kProgram, kArguments};
  for (const OptionSpec& spec : option_table()) {
    if (belongs_in_a_file(spec)) names.push_back(spec.name);
  }
  return mistake(
      where, "unknown key '" + std::string(key) + "'" +
                 did_you_mean(dashed(key), names, "",
                              "; keys are the names of ddprun's options, program and arguments"));
}

}  // namespace

Result<ConfigFile> parse_config(std::string_view text, const std::string& name) {
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    // The parser's message may quote the beginning of a password without quotes.
    const std::string_view why = error.description();
    return mistake(name + ":" + std::to_string(error.source().begin.line),
                   "this is not TOML: " + std::string(why.substr(0, why.find(", saw "))));
  }
  ConfigFile file;
  auto command = command_of(parsed.table(), name);
  if (!command) return fail(std::move(command.error()));
  file.command = *std::move(command);
  for (const auto& [key, node] : parsed.table()) {
    const std::string where = at(name, node);
    if (key.str() == kProgram || key.str() == kArguments) continue;
    const OptionSpec* const spec = find_option(key.str());
    if (spec == nullptr) return unknown_key(where, key.str());
    if (!belongs_in_a_file(*spec)) {
      return mistake(where, std::string(key.str()) + " can only be given on the command line");
    }
    auto value = value_text(*spec, node);
    if (!value) {
      return mistake(where, std::string(key.str()) + " must be " +
                                std::string(kWanted[static_cast<std::size_t>(spec->kind)]));
    }
    // For TOML, the two spellings of an option (dashes, underscores) are two keys.
    if (!file.values.emplace(spec->id, Setting{*std::move(value), {Source::kFile, where}}).second) {
      return mistake(where, std::string(spec->name) + " is given twice");
    }
  }
  return file;
}

Result<ConfigFile> read_config(const ResolvedOption& config) {
  if (config.text().empty()) {
    if (config.is_default()) return ConfigFile{};
    return refused(config, "give a TOML file");
  }
  constexpr std::size_t kLongest = 1 << 20;  // larger: a data set, given by mistake
  const rdzv::UniqueFd file(::open(config.text().c_str(), O_RDONLY | O_CLOEXEC));
  const auto text = file ? read_from(file.get(), kLongest) : std::nullopt;
  if (!text) return refused(config, "it cannot be read: " + std::string(std::strerror(errno)));
  if (text->size() == kLongest) return refused(config, "it is too long to be a settings file");
  return parse_config(*text, config.text());
}

}  // namespace ddprun::cli
