#include "launcher/cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "launcher/cli/secrets.h"
#include "launcher/cli/spelling.h"

namespace ddprun::cli {
namespace {

using Words = std::span<const std::string>;

std::string as_typed(const OptionSpec& spec) { return "--" + std::string(spec.name); }

// argparse's rule for the word after an option: it is the option's value, unless it looks like an
// option. Negative numbers, words with a space in them and a lone dash count as values.
bool looks_like_an_option(const std::string& word) {
  if (word.size() < 2 || word[0] != '-') return false;
  if (word.find(' ') != std::string::npos) return false;
  std::size_t digits = 0;
  std::size_t dots = 0;
  for (const char c : word.substr(1)) {
    if (c >= '0' && c <= '9') {
      ++digits;
    } else if (c == '.') {
      ++dots;
    } else {
      return true;
    }
  }
  return digits == 0 || dots > 1;
}

Error unknown_option(std::string_view word, std::string_view name) {
  std::vector<std::string_view> names;
  for (const OptionSpec& spec : option_table()) names.push_back(spec.name);
  std::string dashed(name);
  std::ranges::replace(dashed, '_', '-');
  std::string sentence = "unknown option " + shown_text(word);
  if (const std::string_view meant = nearest(dashed, names); !meant.empty()) {
    sentence += "; did you mean --" + std::string(meant) + "?";
  } else {
    sentence += "; ddprun --help lists them (a program's own options go after the program)";
  }
  return Error{ErrorCode::kInvalidArgument, std::move(sentence), {}};
}

// A long name as typed: complete or a prefix.
Result<const OptionSpec*> meant_by(std::string_view word, std::string_view name) {
  if (const OptionSpec* exact = find_option(name)) return exact;
  std::string dashed(name);
  std::ranges::replace(dashed, '_', '-');
  std::vector<const OptionSpec*> matches;
  for (const OptionSpec& spec : option_table()) {
    if (!dashed.empty() && spec.name.starts_with(dashed)) matches.push_back(&spec);
  }
  // A prefix that means one of torchrun's options keeps that meaning, whatever options we add.
  if (matches.size() > 1) {
    std::vector<const OptionSpec*> of_torchrun;
    std::ranges::copy_if(matches, std::back_inserter(of_torchrun), [](const OptionSpec* spec) {
      return spec->variables == Variables::kPetAndOwn;
    });
    if (of_torchrun.size() == 1) matches = of_torchrun;
  }
  if (matches.size() == 1) return matches.front();
  if (matches.empty()) return fail(unknown_option(word, name));
  std::string sentence = std::string(word) + " is short for more than one option: ";
  for (std::size_t i = 0; i < matches.size(); ++i) {
    sentence += (i == 0 ? "" : ", ") + as_typed(*matches[i]);
  }
  return fail(ErrorCode::kInvalidArgument, std::move(sentence));
}

// Turns the words before the program into full long names with separate values, and finds where the
// program begins. CLI11 2.1.2 cannot do this: it has no abbreviations; after an unknown option it
// takes the next word for the program; it reads "--log-dir --tee 3" as a folder named "--tee", and
// "--role= train" as the role "train".
class OptionReader {
 public:
  explicit OptionReader(Words words) : words_(words) {}

  Result<void> read() {
    while (at_ < words_.size()) {
      const std::string& word = words_[at_];
      if (word == "--") {
        ++at_;
        has_separator_ = true;
        break;
      }
      if (word.size() < 2 || word[0] != '-') break;
      ++at_;
      const Result<void> done = word[1] == '-' ? read_long(word) : read_letters(word);
      if (!done) return done;
    }
    return {};
  }

  const std::vector<std::string>& options() const { return options_; }

  // The program and its arguments. argparse drops the first "--" of a command line, also directly
  // after the program; a later one belongs to the program.
  std::vector<std::string> command() const {
    const Words words = words_.subspan(at_);
    std::vector<std::string> command(words.begin(), words.end());
    if (!has_separator_ && command.size() > 1 && command[1] == "--") {
      command.erase(command.begin() + 1);
    }
    return command;
  }

 private:
  Result<void> read_long(const std::string& word) {
    const std::size_t equals = word.find('=');
    const std::string typed = word.substr(0, equals);
    const auto spec = meant_by(typed, std::string_view(typed).substr(2));
    if (!spec) return fail(spec.error());
    if ((*spec)->kind == Kind::kFlag) {
      if (equals != std::string::npos) {
        return fail(
            ErrorCode::kInvalidArgument,
            as_typed(**spec) + " takes no value, but was given '" + word.substr(equals + 1) + "'");
      }
      options_.push_back(as_typed(**spec));
      return {};
    }
    if (equals == std::string::npos) return read_value_of(**spec, typed);
    options_.push_back(as_typed(**spec));
    options_.push_back(word.substr(equals + 1));
    return {};
  }

  // "-r3", "-r=3", "-r 3", "-mr3"
  Result<void> read_letters(const std::string& word) {
    for (std::size_t i = 1; i < word.size(); ++i) {
      const OptionSpec* spec = find_option(word[i]);
      if (spec == nullptr) return fail(unknown_option(word, std::string_view(word).substr(1)));
      if (spec->kind == Kind::kFlag) {
        options_.push_back(as_typed(*spec));
        continue;
      }
      std::string rest = word.substr(i + 1);
      if (rest.empty()) return read_value_of(*spec, word);
      if (rest[0] == '=') rest.erase(0, 1);
      options_.push_back(as_typed(*spec));
      options_.push_back(std::move(rest));
      return {};
    }
    return {};
  }

  Result<void> read_value_of(const OptionSpec& spec, const std::string& typed) {
    if (at_ == words_.size() || looks_like_an_option(words_[at_])) {
      std::string sentence =
          typed + " needs a value: " + as_typed(spec) + " " + std::string(spec.value_name);
      if (at_ < words_.size()) {
        sentence +=
            " (for a value that begins with a dash: " + as_typed(spec) + "=" + words_[at_] + ")";
      }
      return fail(ErrorCode::kInvalidArgument, std::move(sentence));
    }
    options_.push_back(as_typed(spec));
    options_.push_back(words_[at_++]);
    return {};
  }

  Words words_;
  std::size_t at_ = 0;
  bool has_separator_ = false;  // there was a "--" before the program
  std::vector<std::string> options_;
};

}  // namespace

Result<CommandLine> parse_command_line(Words arguments) {
  OptionReader reader(arguments);
  if (auto done = reader.read(); !done) return fail(done.error());

  CommandLine line;
  line.command = reader.command();
  if (reader.options().empty()) return line;

  CLI::App app;
  app.set_help_flag();
  for (const OptionSpec& spec : option_table()) {
    // Only names that were typed are declared: declaring all would be most of the cost.
    const std::string name = as_typed(spec);
    if (std::ranges::find(reader.options(), name) == reader.options().end()) continue;
    auto* value = &line.values[static_cast<std::size_t>(spec.id)];
    if (spec.kind == Kind::kFlag) {
      app.add_flag_callback(name, [value] { *value = "1"; });
    } else {
      app.add_option_function<std::string>(name,
                                           [value](const std::string& text) { *value = text; })
          ->take_last();
    }
  }
  try {
    // CLI11 takes the words from the back.
    app.parse(std::vector<std::string>(reader.options().rbegin(), reader.options().rend()));
  } catch (const CLI::ParseError& error) {
    return fail(ErrorCode::kInvalidArgument, error.what());
  }
  return line;
}

}  // namespace ddprun::cli
