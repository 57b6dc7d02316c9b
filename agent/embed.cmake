# Writes OUTPUT, a C++ source with the bytes of a file as ddprun::agent::VARIABLE, which HEADER declares: of INPUTS, or
# with ARCHIVE of a zip archive that holds them and, below package/, the modules of the Python package in PACKAGE. The same
# bytes from the same INPUTS.
#
#   cmake -DINPUTS=<files> [-DARCHIVE=ON] [-DPACKAGE=<folder>] -DVARIABLE=<name> -DHEADER=<header> -DOUTPUT=<source> -P embed.cmake
set(file "${INPUTS}")
if(ARCHIVE)
  set(file "${OUTPUT}.zip")
  set(folder "${OUTPUT}.files")
  file(REMOVE_RECURSE "${folder}")
  file(COPY ${INPUTS} DESTINATION "${folder}" NO_SOURCE_PERMISSIONS)
  if(PACKAGE)
    file(GLOB modules "${PACKAGE}/*.py")
    get_filename_component(name "${PACKAGE}" NAME)
    file(COPY ${modules} DESTINATION "${folder}/package/${name}" NO_SOURCE_PERMISSIONS)
  endif()
  file(GLOB_RECURSE names RELATIVE "${folder}" "${folder}/*")
  list(SORT names)
  execute_process(COMMAND ${CMAKE_COMMAND} -E tar cf "${file}" --format=zip --mtime=2000-01-01 ${names}
                  WORKING_DIRECTORY "${folder}" COMMAND_ERROR_IS_FATAL ANY)
  file(REMOVE_RECURSE "${folder}")
endif()
file(READ "${file}" hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${hex}")
string(REGEX REPLACE "(('[^']*',){20})" "\\1\n" bytes "${bytes}")
file(WRITE "${OUTPUT}" "#include \"${HEADER}\"

namespace ddprun::agent {
namespace {
constexpr char kBytes[] = {
${bytes}
};
}  // namespace
const std::string_view ${VARIABLE}(kBytes, sizeof kBytes);
}  // namespace ddprun::agent
")
