#include "launcher/cli/command_line.h"

#include <algorithm>

#include "launcher/cli/secrets.h"
#include "launcher/cli/text.h"
#include "rendezvous/common/text/lists.h"

namespace ddprun::cli {
namespace {

using Words = std::span<const std::string>;

std::string as_typed(const OptionSpec& spec) { return "--" + std::string(spec.name); }

// argparse's rule for the word after an option: it is the option's value, unless it looks like an
// option. Negative numbers, words with a space in them and a lone dash count as values.
bool looks_like_an_option(std::string_view word) {
  if (word.size() < 2 || word[0] != '-' || word.find(' ') != std::string_view::npos) return false;
  if (word.find_first_not_of("0123456789.", 1) != std::string_view::npos) return true;
  const auto dots = static_cast<std::size_t>(std::ranges::count(word, '.'));
  return dots > 1 || dots == word.size() - 1;  // else: a negative number
}

Error unknown_option(std::string_view word, std::string_view name) {
  std::vector<std::string_view> names;
  for (const OptionSpec& spec : option_table()) names.push_back(spec.name);
  return Error{ErrorCode::kInvalidArgument,
               "unknown option " + shown_text(word) +
                   did_you_mean(dashed(name), names, "--",
                                "; ddprun --help lists them (a program's own options go after the "
                                "program)"),
               {}};
}

// What follows the dashes, if one of them is none of ASCII: word processors and web pages make such dashes of "--".
std::optional<std::string_view> after_typographic_dashes(std::string_view word) {
  // U+2010 to U+2015, the minus sign, small and wide dashes
  constexpr std::string_view kDashes[] = {"\u2010", "\u2011", "\u2012", "\u2013", "\u2014",
                                          "\u2015", "\u2212", "\ufe58", "\ufe63", "\uff0d"};
  bool has_other = false;
  for (;;) {
    const auto* const dash = std::ranges::find_if(
        kDashes, [word](std::string_view each) { return word.starts_with(each); });
    const bool is_other = dash != std::end(kDashes);
    if (!is_other && !word.starts_with('-')) break;
    has_other = has_other || is_other;
    word.remove_prefix(is_other ? dash->size() : 1);
  }
  return has_other ? std::optional(word) : std::nullopt;
}

std::string ends_in_return(std::string_view word) {
  return (word == "\r" ? "a word" : shown_text(word.substr(0, word.size() - 1))) +
         " ends with a carriage return: the script that calls ddprun has Windows' line ends, which "
         "sed -i 's/\\r$//' takes off";
}

// A long name as typed: complete or a prefix.
Result<const OptionSpec*> meant_by(std::string_view word, std::string_view name) {
  if (const OptionSpec* exact = find_option(name)) return exact;
  std::vector<const OptionSpec*> matches;
  for (const OptionSpec& spec : option_table()) {
    if (!name.empty() && spec.name.starts_with(dashed(name))) matches.push_back(&spec);
  }
  // A prefix that means one of torchrun's options keeps that meaning, whatever options we add.
  const auto is_torchruns = [](const OptionSpec* spec) {
    return spec->variables == Variables::kPetAndOwn;
  };
  if (std::ranges::count_if(matches, is_torchruns) == 1) {
    return *std::ranges::find_if(matches, is_torchruns);
  }
  if (matches.size() == 1) return matches.front();
  if (matches.empty()) return fail(unknown_option(word, name));
  std::vector<std::string> names(matches.size());
  std::ranges::transform(matches, names.begin(), [](const auto* spec) { return as_typed(*spec); });
  return fail(ErrorCode::kInvalidArgument,
              std::string(word) + " is short for more than one option: " + joined(names));
}

// Our own, because CLI11 2.1.2 has no abbreviations; after an unknown option it takes the next word
// for the program; it reads "--log-dir --tee 3" as a folder named "--tee", and "--role= train" as
// the role "train".
class LineReader {
 public:
  explicit LineReader(Words words) : words_(words) {}

  Result<CommandLine> read() {
    bool has_separator = false;
    while (at_ < words_.size()) {
      const std::string& word = words_[at_];
      if (const auto rest = after_typographic_dashes(word)) {
        return fail(ErrorCode::kInvalidArgument,
                    shown_text(word) + " begins with a dash as it stands in printed text; write " +
                        (rest->size() == 1 ? "-" : "--") + shown_text(*rest));
      }
      if (word == "\r" ||
          (word[0] == '-' && word.ends_with('\r') && word.find('=') == std::string::npos)) {
        return fail(ErrorCode::kInvalidArgument, ends_in_return(word));
      }
      if (word.size() < 2 || word[0] != '-') break;
      ++at_;
      has_separator = word == "--";
      if (has_separator) break;
      const Result<void> done = word[1] == '-' ? read_long(word) : read_letters(word);
      if (!done) return fail(done.error());
    }
    // argparse drops the first "--" of a command line, also directly after the program; a later one
    // belongs to the program.
    const Words command = words_.subspan(at_);
    line_.command.assign(command.begin(), command.end());
    if (!has_separator && line_.command.size() > 1 && line_.command[1] == "--") {
      line_.command.erase(line_.command.begin() + 1);
    }
    return std::move(line_);
  }

 private:
  void set(const OptionSpec& spec, std::string value) {
    line_.values[static_cast<std::size_t>(spec.id)] = std::move(value);
  }

  Result<void> read_long(const std::string& word) {
    const std::size_t equals = word.find('=');
    const std::string typed = word.substr(0, equals);
    const auto spec = meant_by(typed, std::string_view(typed).substr(2));
    if (!spec) return fail(spec.error());
    if (equals == std::string::npos) return read_value_of(**spec, typed);
    std::string value = word.substr(equals + 1);
    if ((*spec)->kind == Kind::kFlag) {
      return fail(ErrorCode::kInvalidArgument,
                  as_typed(**spec) + " takes no value, but was given '" + value + "'");
    }
    set(**spec, std::move(value));
    return {};
  }

  // "-r3", "-r=3", "-r 3", "-mr3"
  Result<void> read_letters(const std::string& word) {
    for (std::size_t i = 1; i < word.size(); ++i) {
      const OptionSpec* spec = find_option(word[i]);
      if (spec == nullptr) return fail(unknown_option(word, std::string_view(word).substr(1)));
      const std::string rest = word.substr(i + 1);
      if (spec->kind != Kind::kFlag && !rest.empty()) {
        set(*spec, rest[0] == '=' ? rest.substr(1) : rest);
        return {};
      }
      if (const auto done = read_value_of(*spec, word); !done) return done;
    }
    return {};
  }

  // The next word, or "1" for a flag.
  Result<void> read_value_of(const OptionSpec& spec, const std::string& typed) {
    if (spec.kind == Kind::kFlag) {
      set(spec, "1");
      return {};
    }
    if (at_ == words_.size() || looks_like_an_option(words_[at_])) {
      std::string sentence =
          typed + " needs a value: " + as_typed(spec) + " " + std::string(spec.value_name);
      if (at_ < words_.size()) {
        sentence +=
            " (for a value that begins with a dash: " + as_typed(spec) + "=" + words_[at_] + ")";
      }
      return fail(ErrorCode::kInvalidArgument, std::move(sentence));
    }
    set(spec, words_[at_++]);
    return {};
  }

  Words words_;
  std::size_t at_ = 0;
  CommandLine line_;
};

}  // namespace

Result<CommandLine> parse_command_line(Words arguments) { return LineReader(arguments).read(); }

}  // namespace ddprun::cli
