# Runs spin on a model and says whether its claims hold as expected.
#
#   cmake -DSPIN=… -DCC=… -DMODEL=file.pml "-DDEFINITIONS=RANKS=2 WITH_DEATH" -DEXPECTED=holds|breaks
#         -DWORK=<scratch folder> -P model_test.cmake
if(DEFINED ENV{DDPRUN_TEST_IS_LARGE} AND "$ENV{DDPRUN_TEST_FULL}" STREQUAL "")
  message("skipped: only with DDPRUN_TEST_FULL")
  return()
endif()
file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")
separate_arguments(definitions UNIX_COMMAND "${DEFINITIONS}")
list(TRANSFORM definitions PREPEND "-D")

function(run)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY "${WORK}" RESULT_VARIABLE code
                  OUTPUT_VARIABLE output ERROR_VARIABLE output)
  set(output "${output}" PARENT_SCOPE)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${code}:\n${output}")
  endif()
endfunction()

run(${SPIN} -a ${definitions} ${MODEL})
# Without partial-order reduction: next to nothing here is a rank's own business.
run(${CC} -O2 -w -DSAFETY -DNOREDUCE -DCOLLAPSE -DVECTORSZ=1024 -DMEMLIM=2048 -o pan pan.c)
run(./pan -m2000000)
message("${output}")
# A search that ended early has proved nothing.
if(output MATCHES "Search not completed|max search depth too small|out of memory" AND EXPECTED STREQUAL "holds")
  message(FATAL_ERROR "the search was not complete")
endif()
if(output MATCHES "errors: 0" AND NOT EXPECTED STREQUAL "holds")
  message(FATAL_ERROR "the protocol is broken on purpose, and the model did not notice")
endif()
if(NOT output MATCHES "errors: 0" AND EXPECTED STREQUAL "holds")
  message(FATAL_ERROR "the model does not keep its claims")
endif()
