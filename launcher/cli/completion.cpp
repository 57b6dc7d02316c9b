#include "launcher/cli/help.h"
#include "launcher/cli/option_table.h"
#include "launcher/cli/text.h"

namespace ddprun::cli {
namespace {

enum class Values { kNone, kChoices, kFile, kFolder, kAny };

Values values_of(const OptionSpec& spec) {
  if (spec.kind == Kind::kFlag) return Values::kNone;
  if (!spec.choices.empty()) return Values::kChoices;
  if (spec.value_name == "DIR") return Values::kFolder;
  if (spec.value_name.find("FILE") != std::string_view::npos) return Values::kFile;
  return Values::kAny;
}

std::string choices_in_words(const OptionSpec& spec) { return replaced(spec.choices, '|', " "); }

// Only the first clause of the help text, because a completion list has little room.
std::string brief(const OptionSpec& spec) {
  return std::string(spec.help.substr(0, spec.help.find_first_of(":;(")));
}

// "--tee|-t"
std::string spellings(const OptionSpec& spec, char separator) {
  std::string text = "--" + std::string(spec.name);
  if (spec.letter != '\0') text += std::string(1, separator) + "-" + spec.letter;
  return text;
}

std::string bash() {
  std::string names;
  std::string with_value;
  std::string cases;
  for (const OptionSpec& spec : option_table()) {
    names += (names.empty() ? "" : " ") + spellings(spec, ' ');
    const Values values = values_of(spec);
    if (values == Values::kNone) continue;
    with_value += (with_value.empty() ? "" : "|") + spellings(spec, '|');
    std::string words = "COMPREPLY=()";
    if (values == Values::kChoices) {
      words = "COMPREPLY=($(compgen -W '" + choices_in_words(spec) + "' -- \"$word\"))";
    } else if (values == Values::kFile) {
      words = "COMPREPLY=($(compgen -f -- \"$word\"))";
    } else if (values == Values::kFolder) {
      words = "COMPREPLY=($(compgen -d -- \"$word\"))";
    }
    cases += "    " + spellings(spec, '|') + ") " + words + "; return ;;\n";
  }
  // Bash passes "--name=value" as three words.
  return R"(# bash completion for ddprun; ddprun --print-completion bash
_ddprun() {
  local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD-1]} i=1
  if [[ $word == = ]]; then word=; fi
  if [[ $option == = ]]; then option=${COMP_WORDS[COMP_CWORD-2]}; fi
  while (( i < COMP_CWORD )); do
    case ${COMP_WORDS[i]} in
      )" +
         with_value + R"() [[ ${COMP_WORDS[i+1]} == = ]] && (( i += 1 )); (( i += 2 )) ;;
      -*) (( i += 1 )) ;;
      *) break ;;
    esac
  done
  if (( i < COMP_CWORD )); then
    COMPREPLY=($(compgen -f -- "$word")); return  # the program's own arguments
  fi
  case $option in
)" + cases +
         R"(  esac
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W ')" +
         names + R"(' -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word") $(compgen -c -- "$word"))
  fi
}
complete -o filenames -F _ddprun ddprun
)";
}

// In _arguments, ']' ends a description and ':' ends the part of a value.
std::string zsh_escaped(std::string_view text) {
  return replaced(replaced(replaced(replaced(text, '\'', "'\\''"), '[', "\\["), ']', "\\]"), ':',
                  "\\:");
}

std::string zsh() {
  std::string arguments;
  for (const OptionSpec& spec : option_table()) {
    const std::string name = "--" + std::string(spec.name);
    const std::string letter = spec.letter == '\0' ? "" : std::string("-") + spec.letter;
    std::string value;
    if (const Values values = values_of(spec); values != Values::kNone) {
      value = ":" + zsh_escaped(spec.value_name) + ":";
      if (values == Values::kChoices) value += "(" + choices_in_words(spec) + ")";
      if (values == Values::kFile) value += "_files";
      if (values == Values::kFolder) value += "_files -/";
    }
    const std::string description = "[" + zsh_escaped(brief(spec)) + "]" + value + "'";
    arguments += "    '" + name + (value.empty() ? "" : "=") + description + " \\\n";
    if (!letter.empty()) arguments += "    '" + letter + description + " \\\n";
  }
  return "#compdef ddprun\n"
         "# zsh completion for ddprun; ddprun --print-completion zsh\n"
         "_ddprun() {\n"
         "  _arguments -S : \\\n" +
         arguments +
         "    '1:program:_files' \\\n"
         "    '*::argument:_normal'\n"
         "}\n"
         "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _ddprun \"$@\"; "
         "else compdef _ddprun ddprun; fi\n";
}

std::string fish() {
  std::string script = "# fish completion for ddprun; ddprun --print-completion fish\n";
  for (const OptionSpec& spec : option_table()) {
    script += "complete -c ddprun -l " + std::string(spec.name);
    if (spec.letter != '\0') script += std::string(" -s ") + spec.letter;
    const Values values = values_of(spec);
    if (values == Values::kChoices) script += " -x -a '" + choices_in_words(spec) + "'";
    if (values == Values::kAny) script += " -x";
    if (values == Values::kFile || values == Values::kFolder) script += " -r -F";
    script += " -d '" + replaced(replaced(brief(spec), '\\', "\\\\"), '\'', "\\'") + "'\n";
  }
  return script;
}

}  // namespace

std::string completion_script(std::string_view shell) {
  if (shell == "zsh") return zsh();
  if (shell == "fish") return fish();
  return bash();
}

}  // namespace ddprun::cli
