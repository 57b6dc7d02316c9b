#include "launcher/help.h"

#include <string_view>

#include "launcher/option_table.h"

namespace ddprun::cli {
namespace {

constexpr std::size_t kWidth = 100;
constexpr std::size_t kHelpColumn = 32;

// "  -r, --redirects SPEC"
std::string left_of(const OptionSpec& spec) {
  std::string text = spec.letter == '\0' ? "      " : std::string("  -") + spec.letter + ", ";
  text += "--" + std::string(spec.name);
  if (!spec.value_name.empty()) text += " " + std::string(spec.value_name);
  return text;
}

// Breaks a text between words; every line but the first begins at `column`.
void append_wrapped(std::string& out, std::string_view text, std::size_t column) {
  std::size_t at = column;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    if (at > column && at + 1 + word.size() > kWidth) {
      out += "\n" + std::string(column, ' ');
      at = column;
    } else if (at > column) {
      out += ' ';
      ++at;
    }
    out += word;
    at += word.size();
  }
}

void append_option(std::string& out, const OptionSpec& spec) {
  const std::string left = left_of(spec);
  out += left;
  if (left.size() + 2 > kHelpColumn) {
    out += "\n" + std::string(kHelpColumn, ' ');
  } else {
    out += std::string(kHelpColumn - left.size(), ' ');
  }
  std::string text(spec.help);
  if (!spec.default_text.empty()) text += " (default: " + std::string(spec.default_text) + ")";
  append_wrapped(out, text, kHelpColumn);
  out += '\n';
}

}  // namespace

std::string help_text() {
  std::string out =
      "usage: ddprun [options] program [program's arguments]\n\n"
      "Starts a group of workers of a distributed program, watches them, and starts the group "
      "again\n"
      "when one fails. A .py file is run by Python, any other program as it is.\n";
  const OptionSpec* previous = nullptr;
  for (const OptionSpec& spec : option_table()) {
    if (previous == nullptr || previous->group != spec.group) {
      out += "\n" + std::string(title_of(spec.group)) + ":\n";
    }
    append_option(out, spec);
    previous = &spec;
  }
  out +=
      "\nEvery option may be spelled with underscores, and set in the environment: --max-restarts "
      "is\n"
      "DDPRUN_MAX_RESTARTS, or torchrun's PET_MAX_RESTARTS.\n";
  return out;
}

}  // namespace ddprun::cli
