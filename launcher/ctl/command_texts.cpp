#include "launcher/ctl/command_texts.h"

#include <algorithm>

#include "launcher/cli/help.h"
#include "launcher/cli/text.h"
#include "rendezvous/common/text/lists.h"

namespace ddprun::cli {
namespace {

using Option = CommandText::Option;

// ---- man page

std::string troff_lines(std::string_view text) {
  std::string out;
  for (const std::string_view line : split(text, '\n')) {
    if (!line.empty()) out += troff(line) + "\n";
  }
  return out;
}

std::string troff_of(const Option& option) {
  std::string left;
  for (const std::string& name : option.names) {
    left += (left.empty() ? "\\fB" : ", \\fB") + troff(name) + "\\fR";
  }
  if (!option.value.empty()) {
    left += (left.empty() ? "\\fI" : " \\fI") + troff(option.value) + "\\fR";
  }
  return ".TP\n" + left + "\n" + troff_lines(option.what);
}

std::string troff_of(const CommandText& command, const std::string& path) {
  std::string out = ".SS " + troff(path) + "\n" + troff_lines(command.what);
  for (const Option& option : command.options) out += troff_of(option);
  if (!command.exit_codes.empty()) out += ".PP\n.nf\n" + troff_lines(command.exit_codes) + ".fi\n";
  for (const CommandText& each : command.commands) out += troff_of(each, path + " " + each.name);
  return out;
}

// ---- shells

std::vector<std::string> words_of(const CommandText& command) {
  std::vector<std::string> words;
  for (const CommandText& each : command.commands) words.push_back(each.name);
  for (const Option& option : command.options) {
    words.insert(words.end(), option.names.begin(), option.names.end());
  }
  return words;
}

// Only the first clause of the help text, because a completion list has little room.
std::string brief(std::string_view what) {
  return std::string(trimmed(what.substr(0, what.find_first_of(".:;(\n"))));
}

bool takes_job(const CommandText& command) {
  return std::ranges::any_of(command.options, [](const Option& option) {
    return option.names.empty() && option.value == "JOB";
  });
}

std::string bash(const CommandText& program) {
  std::string cases;
  for (const CommandText& each : program.commands) {
    cases += "      " + each.name + ") words='" + joined(words_of(each), " ") + "'" +
             (takes_job(each) ? " takes_job=1" : "") + " ;;\n";
  }
  return R"(# bash completion for ddpctl; ddpctl --print-completion bash
_ddpctl() {
  local word=${COMP_WORDS[COMP_CWORD]} words= takes_job= job
  if (( COMP_CWORD == 1 )); then
    words=')" +
         joined(words_of(program), " ") + R"('
  else
    case ${COMP_WORDS[1]} in
)" + cases +
         R"(    esac
  fi
  if [[ $takes_job && $word != -* ]]; then
    while IFS=$'\t' read -r job _; do
      words+=" $job"
    done < <("${COMP_WORDS[0]}" --print-jobs="${COMP_WORDS[1]}" 2>/dev/null)
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _ddpctl ddpctl
)";
}

std::string quoted(std::string_view text) { return "'" + replaced(text, '\'', "'\\''") + "'"; }

std::string zsh(const CommandText& program) {
  // ':' ends the word that _describe completes, and '[' begins a description of _arguments.
  const auto plain = [](std::string_view text) {
    return replaced(replaced(replaced(text, ':', "\\:"), '[', "\\["), ']', "\\]");
  };
  std::string commands;
  std::string cases;
  for (const CommandText& each : program.commands) {
    commands += "    " + quoted(each.name + ":" + plain(brief(each.what))) + "\n";
    std::string arguments;
    for (const Option& option : each.options) {
      for (const std::string& name : option.names) {
        const std::string value = option.value.empty() ? "" : ":" + plain(option.value) + ":_files";
        arguments += " \\\n      " + quoted(name + "[" + plain(brief(option.what)) + "]" + value);
      }
    }
    std::vector<std::string> own;
    for (const CommandText& sub : each.commands) own.push_back(sub.name);
    arguments += takes_job(each) ? " \\\n      '1:job:_ddpctl_jobs'"
                 : own.empty()   ? " \\\n      '*:argument:_files'"
                                 : " \\\n      '1:command:(" + joined(own, " ") + ")'";
    cases +=
        "    " + each.name + ") shift words; (( CURRENT -= 1 )); _arguments" + arguments + " ;;\n";
  }
  return "#compdef ddpctl\n"
         "# zsh completion for ddpctl; ddpctl --print-completion zsh\n"
         "_ddpctl_jobs() {\n"
         "  local -a jobs=(${(f)\"$($program --print-jobs=$command 2>/dev/null)\"})\n"
         "  jobs=(${jobs/$'\\t'/:})\n"
         "  _describe job jobs\n"
         "}\n"
         "_ddpctl() {\n"
         "  local program=$words[1] command=$words[2]\n"
         "  local -a commands=(\n" +
         commands +
         "  )\n"
         "  if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
         "  case $command in\n" +
         cases +
         "  esac\n"
         "}\n"
         "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _ddpctl \"$@\"; "
         "else compdef _ddpctl ddpctl; fi\n";
}

std::string fish(const CommandText& program) {
  const auto described = [](std::string_view what) {
    return " -d '" + replaced(replaced(brief(what), '\\', "\\\\"), '\'', "\\'") + "'\n";
  };
  std::string script =
      "# fish completion for ddpctl; ddpctl --print-completion fish\n"
      "function __ddpctl_jobs\n"
      "  set -l words (commandline -opc)\n"
      "  $words[1] --print-jobs=$words[2] 2>/dev/null\n"
      "end\n";
  for (const CommandText& each : program.commands) {
    script +=
        "complete -c ddpctl -f -n __fish_use_subcommand -a " + each.name + described(each.what);
    const std::string seen =
        "complete -c ddpctl -n '__fish_seen_subcommand_from " + each.name + "'";
    if (takes_job(each)) script += seen + " -f -a '(__ddpctl_jobs)'\n";
    for (const CommandText& sub : each.commands) {
      script += seen + " -f -a " + sub.name + described(sub.what);
    }
    for (const Option& option : each.options) {
      if (option.names.empty()) continue;
      std::string names;
      for (const std::string& name : option.names) {
        names += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      script += seen + names + (option.value.empty() ? "" : " -r") + described(option.what);
    }
  }
  return script;
}

}  // namespace

std::string man_page_of(const CommandText& program, std::string_view version) {
  std::string out =
      ".TH DDPCTL 1 \"\" \"ddprun " + troff(version) + "\" \"User Commands\"\n" +
      ".SH NAME\nddpctl \\- look into ddprun's jobs, and run what stands beside them\n"
      ".SH SYNOPSIS\n.B ddpctl\n\\fIcommand\\fR [\\fIoptions\\fR]\n"
      ".SH DESCRIPTION\n" +
      troff_lines(program.what) + ".SH OPTIONS\n";
  for (const Option& option : program.options) out += troff_of(option);
  out += ".SH COMMANDS\n";
  for (const CommandText& each : program.commands) out += troff_of(each, each.name);
  return out + ".SH SEE ALSO\n.BR ddprun (1)\n";
}

std::string completion_of(const CommandText& program, std::string_view shell) {
  if (shell == "zsh") return zsh(program);
  return shell == "fish" ? fish(program) : bash(program);
}

}  // namespace ddprun::cli
