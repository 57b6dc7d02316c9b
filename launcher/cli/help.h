// What --help, --print-man-page, --print-option-table and --print-completion print, made from the
// option table, and what --version does. Pure.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::cli {

std::string help_text();
std::string man_page(std::string_view version);         // troff with the man macros
std::string troff(std::string_view text);               // with what troff would interpret escaped
std::string option_table_markdown();                    // for launcher/README.md
std::string completion_script(std::string_view shell);  // "bash", "zsh" or "fish"

std::string_view version();  // which only CMakeLists.txt has
// One line, with its end: the version, the commit that was built, and the round protocol, which must
// be the same on every node of a job.
std::string version_text(std::string_view program);

}  // namespace ddprun::cli
