# What `cmake --install` puts where, and the package that find_package(ddprun) finds:
#
#   bin/ddprun, ddpctl                             component launcher
#   share/man, completions of bash, zsh and fish   component launcher
#   lib/python3/dist-packages/ddprun/*             component launcher; a wheel's where modules are
#   lib/systemd/system/ddprun@.service             component service
#   include/ddprun/ddprun/*.h, lib/*               component worker, target ddprun::worker
#   lib/cmake/ddprun/                              component cmake
#
# The libraries are static and fit the LibTorch that they were built with, whose place the package
# remembers unless told not to (DDPRUN_TORCH_DIR names another one of the same version).
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(_package lib/cmake/ddprun)
set(_programs ddprun ddpctl)
if(DDPRUN_PROGRAMS)
  foreach(program ${_programs})
    set(stripped ${PROJECT_BINARY_DIR}/bin/${program})
    file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
    execute_process(COMMAND ${CMAKE_STRIP} -o ${stripped} ${DDPRUN_PROGRAMS}/${program} COMMAND_ERROR_IS_FATAL ANY)
    add_executable(${program} IMPORTED)
    set_target_properties(${program} PROPERTIES IMPORTED_LOCATION ${stripped})
    install(PROGRAMS ${stripped} DESTINATION bin COMPONENT launcher)
  endforeach()
else()
  install(TARGETS ${_programs} EXPORT ddprun_launcher RUNTIME DESTINATION bin COMPONENT launcher)
  install(EXPORT ddprun_launcher NAMESPACE ddprun:: FILE ddprun-launcher.cmake
          DESTINATION ${_package} COMPONENT cmake)
endif()

# The programs write these themselves, from their tables of options.
set(_written)
# The first word of the output's name is the program.
function(ddprun_written_by_itself file command destination name)
  string(REGEX MATCH "^[a-z]+" program ${file})
  set(output ${PROJECT_BINARY_DIR}/share/${file})
  list(JOIN CMAKE_CROSSCOMPILING_EMULATOR " " emulator)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/share
    COMMAND sh -c "${emulator} ${command} > ${output}" $<TARGET_FILE:${program}>
    DEPENDS ${program} VERBATIM)
  install(FILES ${output} DESTINATION ${destination} COMPONENT launcher RENAME ${name})
  set(_written ${_written} ${output} PARENT_SCOPE)
endfunction()
ddprun_written_by_itself(ddprun.1.gz "$0 --print-man-page | gzip -9n"
                         ${CMAKE_INSTALL_MANDIR}/man1 ddprun.1.gz)
ddprun_written_by_itself(ddpctl.1.gz "$0 --print-man-page | gzip -9n"
                         ${CMAKE_INSTALL_MANDIR}/man1 ddpctl.1.gz)
ddprun_written_by_itself(ddprun.bash "$0 --print-completion=bash"
                         share/bash-completion/completions ddprun)
ddprun_written_by_itself(ddprun.zsh "$0 --print-completion=zsh" share/zsh/site-functions _ddprun)
ddprun_written_by_itself(ddprun.fish "$0 --print-completion=fish"
                         share/fish/vendor_completions.d ddprun.fish)
ddprun_written_by_itself(ddpctl.bash "$0 --print-completion=bash"
                         share/bash-completion/completions ddpctl)
ddprun_written_by_itself(ddpctl.zsh "$0 --print-completion=zsh" share/zsh/site-functions _ddpctl)
ddprun_written_by_itself(ddpctl.fish "$0 --print-completion=fish"
                         share/fish/vendor_completions.d ddpctl.fish)
add_custom_target(ddprun_share ALL DEPENDS ${_written} ddpctl)

# For workers in Python.
set(_modules lib/python3/dist-packages)
if(DEFINED SKBUILD_PLATLIB_DIR)
  set(_modules ${SKBUILD_PLATLIB_DIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/worker_lib/python/ddprun DESTINATION ${_modules}
        COMPONENT launcher FILES_MATCHING PATTERN "*.py" PATTERN py.typed PATTERN __pycache__ EXCLUDE)
# The libraries of ddprun.torch, one for each version of torch (scripts/package).
install(PROGRAMS ${DDPRUN_TORCH_LIBRARIES} DESTINATION ${_modules}/ddprun COMPONENT launcher)

# The unit as an administrator copies it, but for the place of ddprun.
file(READ ${PROJECT_SOURCE_DIR}/scripts/systemd/ddprun@.service _unit)
string(REPLACE "/usr/local/bin/ddprun" "${CMAKE_INSTALL_FULL_BINDIR}/ddprun" _unit "${_unit}")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/share/ddprun@.service CONTENT "${_unit}" @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/share/ddprun@.service DESTINATION lib/systemd/system
        COMPONENT service)

if(DDPRUN_WORKER_LIB)
  set(_worker ddprun_worker ddprun_standby ddprun_nccl_module ddprun_rendezvous_store_client ddprun_rendezvous_store_wire
              ddprun_rendezvous_common ddprun_rendezvous_common_text ddprun_rendezvous_common_worker_abi
              ddprun_options)
  foreach(room ${DDPRUN_WORKER_ROOMS})
    list(APPEND _worker ddprun_worker_lib_${room})
    if(TARGET ddprun_worker_lib_${room}_base)
      list(APPEND _worker ddprun_worker_lib_${room}_base)
    endif()
    if(EXISTS ${PROJECT_SOURCE_DIR}/worker_lib/${room}/include)
      install(DIRECTORY ${PROJECT_SOURCE_DIR}/worker_lib/${room}/include/ddprun
              DESTINATION include/ddprun COMPONENT worker FILES_MATCHING PATTERN "*.h")
    endif()
  endforeach()
  add_custom_target(ddprun_worker_package DEPENDS ddprun_worker_lib_train ddprun_standby)
  install(TARGETS ${_worker} EXPORT ddprun_worker ARCHIVE DESTINATION lib COMPONENT worker)
  if(TARGET ddprun_nccl)
    add_dependencies(ddprun_worker_package ddprun_nccl)
    install(TARGETS ddprun_nccl LIBRARY DESTINATION lib COMPONENT worker)
  endif()
  add_dependencies(ddprun_worker_package ddprun_nccl_profiler)
  install(TARGETS ddprun_nccl_profiler LIBRARY DESTINATION lib COMPONENT worker)
  install(EXPORT ddprun_worker NAMESPACE ddprun:: FILE ddprun-worker.cmake
          DESTINATION ${_package} COMPONENT cmake)
  # The one header of ours that the public ones include.
  install(FILES ${PROJECT_SOURCE_DIR}/rendezvous/common/result.h
          DESTINATION include/ddprun/rendezvous/common COMPONENT worker)
  install(FILES ${PROJECT_SOURCE_DIR}/worker_lib/cmake/FindDdprunTorch.cmake
          DESTINATION ${_package} COMPONENT cmake)
endif()

set(DDPRUN_REMEMBERED_TORCH "")
if(DDPRUN_REMEMBER_TORCH)
  set(DDPRUN_REMEMBERED_TORCH "${DDPRUN_TORCH_FOUND_DIR}")
endif()
configure_package_config_file(${PROJECT_SOURCE_DIR}/worker_lib/cmake/ddprunConfig.cmake.in
  ${PROJECT_BINARY_DIR}/ddprunConfig.cmake INSTALL_DESTINATION ${_package}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ddprunConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ddprunConfig.cmake
              ${PROJECT_BINARY_DIR}/ddprunConfigVersion.cmake
        DESTINATION ${_package} COMPONENT cmake)

include(scripts/packages/debian.cmake)
