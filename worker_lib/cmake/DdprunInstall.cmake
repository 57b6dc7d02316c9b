# What `cmake --install` puts where, and the package that find_package(ddprun) finds:
#
#   bin/ddprun, bin/ddpctl                 component launcher
#   include/ddprun/ddprun/*.h, lib/*       component worker, target ddprun::worker
#   lib/cmake/ddprun/                      both
#
# The libraries are static and fit the LibTorch that they were built with, whose place the package
# remembers (DDPRUN_TORCH_DIR names another one of the same version).
include(CMakePackageConfigHelpers)

set(_package lib/cmake/ddprun)
install(TARGETS ddprun ddpctl EXPORT ddprun_launcher RUNTIME DESTINATION bin COMPONENT launcher)
install(EXPORT ddprun_launcher NAMESPACE ddprun:: FILE ddprun-launcher.cmake
        DESTINATION ${_package} COMPONENT launcher)

if(DDPRUN_WORKER_LIB)
  set_target_properties(ddprun_worker PROPERTIES EXPORT_NAME worker)
  install(TARGETS ddprun_worker ddprun_worker_base ddprun_store_client ddprun_base ddprun_options
          EXPORT ddprun_worker ARCHIVE DESTINATION lib COMPONENT worker)
  if(TARGET ddprun_nccl)
    install(TARGETS ddprun_nccl LIBRARY DESTINATION lib COMPONENT worker)
  endif()
  install(EXPORT ddprun_worker NAMESPACE ddprun:: FILE ddprun-worker.cmake
          DESTINATION ${_package} COMPONENT worker)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/worker_lib/include/ddprun
          DESTINATION include/ddprun COMPONENT worker FILES_MATCHING PATTERN "*.h")
  # The one header of ours that the public ones include.
  install(FILES ${PROJECT_SOURCE_DIR}/rendezvous/base/result.h
          DESTINATION include/ddprun/rendezvous/base COMPONENT worker)
  install(FILES ${PROJECT_SOURCE_DIR}/worker_lib/cmake/FindDdprunTorch.cmake
          DESTINATION ${_package} COMPONENT worker)
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/worker_lib/cmake/ddprunConfig.cmake.in
  ${PROJECT_BINARY_DIR}/ddprunConfig.cmake INSTALL_DESTINATION ${_package}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ddprunConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
foreach(_component launcher worker)
  install(FILES ${PROJECT_BINARY_DIR}/ddprunConfig.cmake
                ${PROJECT_BINARY_DIR}/ddprunConfigVersion.cmake
          DESTINATION ${_package} COMPONENT ${_component})
endforeach()
