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
# For debugging, with assertions in the standard library: the package's libraries were compiled without either.
run(${CMAKE_COMMAND} -S ${CONSUMER} -B ${WORK}/found -G Ninja -DCMAKE_BUILD_TYPE=Debug
    -DCMAKE_PREFIX_PATH=${PREFIX} "-DCMAKE_CXX_FLAGS=-Werror -D_GLIBCXX_ASSERTIONS" ${launcher})
run(${CMAKE_COMMAND} --build ${WORK}/found)
expect_trained(${WORK}/found/my_training)
expect_trained(${PREFIX}/bin/ddprun --nproc-per-node=2 ${WORK}/found/my_training)

# The other way: the same sources, with find_package replaced as their comment says.
file(READ ${CONSUMER}/CMakeLists.txt lists)
string(REGEX REPLACE "find_package\\(ddprun[^\n]*\n" "include(FetchContent)
FetchContent_Declare(ddprun SOURCE_DIR \"${SOURCE}\")
FetchContent_MakeAvailable(ddprun)
" lists "${lists}")
# It has found a Torch (a CUDA build's own find_package(Torch) would want a toolkit; this is what it leaves), makes
# shared libraries, is of an older C++ and says nothing of a type of build.
string(REPLACE "include(FetchContent)" "set(TORCH_INSTALL_PREFIX \"${TORCH}\")
set(CMAKE_CXX_STANDARD 17)
include(FetchContent)" lists "${lists}")
file(WRITE ${WORK}/part/CMakeLists.txt "${lists}")
file(COPY ${CONSUMER}/main.cpp DESTINATION ${WORK}/part)
run(${CMAKE_COMMAND} -S ${WORK}/part -B ${WORK}/part/build -G Ninja -DBUILD_SHARED_LIBS=ON)
foreach(said "LibTorch [0-9.]+: ${TORCH}" "compiled as C\\+\\+17, and ddprun's headers need C\\+\\+20")
  string(REGEX MATCH "${said}" found "${output}")
  if(NOT found)
    message(FATAL_ERROR "a project that uses ddprun is not told '${said}' but:\n${output}")
  endif()
endforeach()
file(STRINGS ${WORK}/part/build/CMakeCache.txt type REGEX "^CMAKE_BUILD_TYPE:[^=]*=.")
if(type)
  message(FATAL_ERROR "ddprun has set the type of build of a project that uses it: ${type}")
endif()
# What `cmake --build` would do.
run(${CMAKE_COMMAND} --build ${WORK}/part/build -- -t commands all)
string(FIND "${output}" "-c ${SOURCE}/worker_lib/group/" at)
if(at EQUAL -1)
  message(FATAL_ERROR "the commands of a project that uses ddprun do not compile worker_lib:\n${output}")
endif()
foreach(ours launcher agent tests worker_lib/examples rendezvous/leader)
  string(FIND "${output}" "-c ${SOURCE}/${ours}/" at)
  if(NOT at EQUAL -1)
    string(SUBSTRING "${output}" ${at} 200 found)
    message(FATAL_ERROR "a project that uses ddprun builds what it does not link: ${found}")
  endif()
endforeach()
if(DEFINED ENV{DDPRUN_TEST_FULL})
  run(${CMAKE_COMMAND} --build ${WORK}/part/build --target my_training)
  expect_trained(${WORK}/part/build/my_training)
endif()
file(REMOVE_RECURSE "${WORK}")
