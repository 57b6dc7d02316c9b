// The texts made from the option table: what --help, --print-man-page, --print-option-table and
// --print-completion print. Pure.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::cli {

std::string help_text();
std::string man_page(std::string_view version);         // troff with the man macros
std::string option_table_markdown();                    // for launcher/README.md
std::string completion_script(std::string_view shell);  // "bash", "zsh" or "fish"

}  // namespace ddprun::cli
