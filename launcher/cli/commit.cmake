# Writes OUTPUT, a header with the commit that SOURCE is at, and leaves it alone when that has not
# changed, so that nothing is built again. COMMIT names it where there is no git, as in an archive.
#
#   cmake -DSOURCE=<repository> -DOUTPUT=<header> [-DCOMMIT=<name>] -P commit.cmake
if(NOT COMMIT AND EXISTS "${SOURCE}/.git")
  execute_process(COMMAND git -C "${SOURCE}" rev-parse --short=12 HEAD OUTPUT_VARIABLE COMMIT
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed)
    set(COMMIT "")
  endif()
  if(COMMIT)
    execute_process(COMMAND git -C "${SOURCE}" diff --quiet HEAD ERROR_QUIET RESULT_VARIABLE changed)
    if(changed)
      string(APPEND COMMIT ", changed")
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT [[
#pragma once
#include <string_view>
namespace ddprun::cli {
inline constexpr std::string_view kCommit = "@COMMIT@";
}
]] @ONLY)
