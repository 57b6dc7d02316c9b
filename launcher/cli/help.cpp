#include "launcher/cli/help.h"

#include "launcher/cli/option_table.h"
#include "launcher/cli/text.h"
#include "launcher_commit.h"  // made by commit.cmake: kCommit
#include "rendezvous/common/text/lists.h"
#include "rendezvous/round/round_wire.h"

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
  for (const std::string_view word : split(text, ' ')) {
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

// The help text with the choices and the default.
std::string whole_help(const OptionSpec& spec) {
  std::string more = joined(choices_of(spec));
  if (!spec.default_text.empty()) {
    more += (more.empty() ? "default: " : "; default: ") + std::string(spec.default_text);
  }
  return std::string(spec.help) + (more.empty() ? "" : " (" + more + ")");
}

void append_option(std::string& out, const OptionSpec& spec) {
  const std::string left = left_of(spec);
  const bool fits = left.size() + 2 <= kHelpColumn;
  out += left + (fits ? "" : "\n") + std::string(kHelpColumn - (fits ? left.size() : 0), ' ');
  append_wrapped(out, whole_help(spec), kHelpColumn);
  out += '\n';
}

// A '|' would end the cell, also inside backquotes.
std::string markdown_cell(std::string_view text) { return replaced(text, '|', "\\|"); }

// Calls back for each group, then for each of its options.
void for_each_option(const auto& begin_group, const auto& option) {
  for (const OptionSpec& spec : option_table()) {
    if (const auto title = group_begun_by(spec.id); !title.empty()) begin_group(title);
    option(spec);
  }
}

}  // namespace

// Escapes what troff would interpret: '\', a leading '.' or "'", and "-", which it turns into a
// hyphen that cannot be copied into a shell.
std::string troff(std::string_view text) {
  const bool has_control = text.starts_with('.') || text.starts_with('\'');
  return (has_control ? "\\&" : "") + replaced(replaced(text, '\\', "\\e"), '-', "\\-");
}

std::string help_text() {
  std::string out =
      "usage: ddprun [options] program [program's arguments]\n\n"
      "Starts a group of workers of a distributed program, watches them, and starts the group\n"
      "again when one fails. A .py file is run by Python, any other program as it is.\n";
  for_each_option([&out](std::string_view title) { out += "\n" + std::string(title) + ":\n"; },
                  [&out](const OptionSpec& spec) { append_option(out, spec); });
  out +=
      "\nEvery option may be spelled with underscores, and set in the environment: --max-restarts\n"
      "is DDPRUN_MAX_RESTARTS, or torchrun's PET_MAX_RESTARTS. The command line wins, then the\n"
      "environment, then the file of --config.\n";
  return out;
}

std::string man_page(std::string_view version) {
  std::string out =
      ".TH DDPRUN 1 \"\" \"ddprun " + troff(version) + "\" \"User Commands\"\n" +
      ".SH NAME\nddprun \\- start, watch and restart the workers of a distributed "
      "program\n"
      ".SH SYNOPSIS\n.B ddprun\n[\\fIoptions\\fR] \\fIprogram\\fR "
      "[\\fIprogram's arguments\\fR]\n"
      ".SH DESCRIPTION\n"
      "Starts a group of workers of a distributed program, watches them, and starts "
      "the group again when one fails. It takes the place of torchrun: the same "
      "options, the same environment for the workers.\n.PP\n"
      "A name without a slash is looked for in the current directory, beside ddprun, "
      "then on PATH. A .py file, and a file that can be read but not executed, is run "
      "by Python; any other program as it is. Its arguments are passed on untouched.\n"
      ".SH OPTIONS\n"
      "Each may be spelled with underscores, and shortened as long as it is clear "
      "which is meant. The command line wins over the environment, that over the file "
      "of \\fB\\-\\-config\\fR, that over the default.\n";
  for_each_option([&out](std::string_view title) { out += ".SS " + troff(title) + "\n"; },
                  [&out](const OptionSpec& spec) {
                    out += ".TP\n";
                    if (spec.letter != '\0') out += std::string("\\fB\\-") + spec.letter + "\\fR, ";
                    out += "\\fB\\-\\-" + troff(spec.name) + "\\fR";
                    if (!spec.value_name.empty()) out += " \\fI" + troff(spec.value_name) + "\\fR";
                    out += "\n" + troff(whole_help(spec)) + "\n";
                    if (const std::string variables = joined(variables_of(spec));
                        !variables.empty()) {
                      out += ".br\nEnvironment: " + troff(variables) + "\n";
                    }
                  });
  out +=
      ".SH EXIT STATUS\n"
      "0 when every worker ended with 0; the code of the worker that failed first, or 128 + its "
      "signal; 2 for wrong usage, when nothing was started; 126 and 127 when the program cannot be "
      "executed or found; 110 to 119 for failures of the launcher itself.\n";
  return out;
}

std::string option_table_markdown() {
  std::string out = "| option | default | environment | what it does |\n|---|---|---|---|\n";
  for_each_option(
      [&out](std::string_view title) { out += "| **" + std::string(title) + "** | | | |\n"; },
      [&out](const OptionSpec& spec) {
        std::string name = spec.letter == '\0' ? "" : std::string("`-") + spec.letter + "`, ";
        name += "`--" + std::string(spec.name);
        if (!spec.value_name.empty()) name += " " + std::string(spec.value_name);
        name += "`";
        out += "| " + markdown_cell(name) + " | " + markdown_cell(spec.default_text) + " | " +
               joined(variables_of(spec)) + " | " + markdown_cell(spec.help) + " |\n";
      });
  return out;
}

std::string_view version() { return DDPRUN_VERSION; }

std::string version_text(std::string_view program) {
  std::string text(program);
  text += " " DDPRUN_VERSION " (";
  if (!kCommit.empty()) text += "commit " + std::string(kCommit) + ", ";
  return text + "round protocol " + std::to_string(rdzv::wire::kRoundProtocolVersion) + ")\n";
}

}  // namespace ddprun::cli
