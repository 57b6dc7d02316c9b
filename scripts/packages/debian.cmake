# Debian's packages, made by scripts/package, which tells cpack which components go into which:
#
#   ddprun          launcher, service: depends on the C library alone
#   libddprun-dev   worker, cmake: what a program needs to be compiled and linked. LibTorch is in no
#                   Debian package of the right version: it is PyPI's, and DDPRUN_TORCH_DIR says where
set(CPACK_PACKAGE_VENDOR "ddprun")
set(CPACK_PACKAGE_CONTACT "ddprun's developers <ddprun@localhost>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENT_LAUNCHER_GROUP ddprun)
set(CPACK_COMPONENT_SERVICE_GROUP ddprun)
set(CPACK_COMPONENT_WORKER_GROUP development)
set(CPACK_COMPONENT_CMAKE_GROUP development)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
# Folders of a package are root's alone to write, whatever the umask of who builds it.
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEBIAN_DDPRUN_PACKAGE_NAME ddprun)
set(CPACK_DEBIAN_DDPRUN_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_DDPRUN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_DDPRUN_DESCRIPTION "start, watch and restart distributed PyTorch training
A drop-in for torchrun: starts the workers of a job on one or several nodes, watches them, starts
them again after failures, and says what went wrong. Needs neither Python nor PyTorch itself.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libddprun-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "ddprun (= ${PROJECT_VERSION}-1), libboost-json1.81-dev, libboost1.81-dev, libexpected-dev, zlib1g-dev")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_RECOMMENDS "cmake, g++")
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "distributed training on LibTorch in C++
Headers, static libraries and CMake files of ddprun's worker library: data parallelism, sampling,
collectives, checkpoints. Built with LibTorch ${DDPRUN_TORCH_VERSION}, which is not a part of it: take PyPI's
torch of that version, and give CMake its folder as DDPRUN_TORCH_DIR.")
# What Debian wants to find beside each of them.
foreach(_each "service;ddprun" "worker;libddprun-dev")
  list(GET _each 0 _component)
  list(GET _each 1 _name)
  install(FILES ${PROJECT_SOURCE_DIR}/scripts/packages/copyright DESTINATION share/doc/${_name}
          COMPONENT ${_component})
endforeach()

include(CPack)
