# Another project uses ddprun: installs this build aside, builds consumer/ against the package, and runs
# its program alone and under the installed ddprun. Then once more as a part of the other project.
#
#   cmake -DBUILD=<build folder> -DSOURCE=<repository> -DWORK=<scratch folder>
#         -DCCACHE=<it, if the build has it> -P consumer_test.cmake
#
# With DDPRUN_TEST_FULL=1 the second way is built too, which compiles worker_lib again (minutes);
# without it only configured.
set(EXPECTED "weight 3.000, bias -1.000")
file(REMOVE_RECURSE "${WORK}")
set(PREFIX "${WORK}/prefix")
set(CONSUMER "${SOURCE}/tests/compat/consumer")

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${code}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect_trained)
  run(${ARGN})
  string(FIND "${output}" "${EXPECTED}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${ARGN} did not print '${EXPECTED}' but:\n${output}")
  endif()
endfunction()

# The README shows these very files.
file(READ ${SOURCE}/worker_lib/README.md readme)
foreach(file CMakeLists.txt main.cpp)
  file(READ ${CONSUMER}/${file} text)
  string(FIND "${readme}" "\n${text}```" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "worker_lib/README.md does not show ${CONSUMER}/${file} as it is")
  endif()
endforeach()

foreach(component launcher cmake worker)
  run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX} --component ${component})
endforeach()
if(CCACHE)
  set(launcher -DCMAKE_CXX_COMPILER_LAUNCHER=${CCACHE})
endif()
if(DEFINED ENV{DDPRUN_TEST_FULL})
  set(type -DCMAKE_BUILD_TYPE=Release)  # optimized, LibTorch's headers take a third longer
endif()
run(${CMAKE_COMMAND} -S ${CONSUMER} -B ${WORK}/found -G Ninja ${type}
    -DCMAKE_PREFIX_PATH=${PREFIX} -DCMAKE_CXX_FLAGS=-Werror ${launcher})
run(${CMAKE_COMMAND} --build ${WORK}/found)
expect_trained(${WORK}/found/my_training)
expect_trained(${PREFIX}/bin/ddprun --nproc-per-node=2 ${WORK}/found/my_training)

# The other way: the same sources, with find_package replaced as their comment says.
file(READ ${CONSUMER}/CMakeLists.txt lists)
string(REGEX REPLACE "find_package\\(ddprun[^\n]*\n" "include(FetchContent)
FetchContent_Declare(ddprun SOURCE_DIR \"${SOURCE}\")
FetchContent_MakeAvailable(ddprun)
" lists "${lists}")
file(WRITE ${WORK}/part/CMakeLists.txt "${lists}")
file(COPY ${CONSUMER}/main.cpp DESTINATION ${WORK}/part)
run(${CMAKE_COMMAND} -S ${WORK}/part -B ${WORK}/part/build -G Ninja -DCMAKE_BUILD_TYPE=Release
    -DDDPRUN_TORCH_DIR=${TORCH})
foreach(ours ddprun_test_support train ddprun_bench)
  if(EXISTS ${WORK}/part/build/bin/${ours})
    message(FATAL_ERROR "a project that uses ddprun builds ${ours}")
  endif()
endforeach()
if(DEFINED ENV{DDPRUN_TEST_FULL})
  run(${CMAKE_COMMAND} --build ${WORK}/part/build --target my_training)
  expect_trained(${WORK}/part/build/my_training)
endif()
file(REMOVE_RECURSE "${WORK}")
