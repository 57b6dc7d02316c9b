# Makes imported targets from the folders of a torch package (LibTorch, or Python's torch), without its
# own CMake files: those of a CUDA build ask for nvcc and a CUDA toolkit, which we never need.
#
#   ddprun::torch       headers, libtorch_cpu, libc10
#   ddprun::torch_cuda  the same and libtorch_cuda with the headers of CUDA and NCCL; only for the NCCL
#                       module, and only there when those headers are
#
# In:  DDPRUN_TORCH_DIR, the folder that holds include/ and lib/ (default: the one that the project's find_package(Torch)
#      has found, which leaves it in TORCH_INSTALL_PREFIX; else the torch of .venv)
# Out: DDPRUN_TORCH_VERSION, DDPRUN_TORCH_FOUND_DIR, DDPRUN_TORCH_HAS_CUDA
set(_least 2.11)

set(_dir "${DDPRUN_TORCH_DIR}")
if(NOT _dir)
  set(_dir "${TORCH_INSTALL_PREFIX}")
endif()
if(NOT _dir)
  file(GLOB _found LIST_DIRECTORIES true
       "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
  list(SORT _found COMPARE NATURAL)
  if(_found)
    list(GET _found -1 _dir)
  endif()
endif()

set(_how "run scripts/setup, which installs it into .venv, or give -DDDPRUN_TORCH_DIR=<folder with include/ and lib/>; \
-DDDPRUN_WORKER_LIB=OFF builds the launcher alone")
if(CMAKE_FIND_PACKAGE_NAME)  # by somebody who has ddprun installed
  set(_how "give -DDDPRUN_TORCH_DIR=<folder with include/ and lib/>, such as site-packages/torch of a Python that has it")
endif()
if(NOT _dir)
  message(FATAL_ERROR "LibTorch was not found: ${_how}.")
endif()
if(NOT EXISTS "${_dir}/include/torch/csrc/api/include/torch/torch.h" OR NOT EXISTS "${_dir}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "There is no LibTorch in ${_dir} (no lib/libtorch_cpu.so or no headers): ${_how}.")
endif()

set(DDPRUN_TORCH_VERSION "")
foreach(_header headeronly/version.h version.h csrc/api/include/torch/version.h)
  if(NOT DDPRUN_TORCH_VERSION AND EXISTS "${_dir}/include/torch/${_header}")
    file(STRINGS "${_dir}/include/torch/${_header}" _lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX REPLACE "[^0-9;]" "" _lines "${_lines}")
    list(JOIN _lines "." DDPRUN_TORCH_VERSION)
  endif()
endforeach()
if(DDPRUN_TORCH_VERSION VERSION_LESS _least)
  message(FATAL_ERROR
    "LibTorch in ${_dir} is version '${DDPRUN_TORCH_VERSION}', ${_least} or newer is needed: ${_how}.")
endif()

message(STATUS "LibTorch ${DDPRUN_TORCH_VERSION}: ${_dir}")
set(DDPRUN_TORCH_FOUND_DIR "${_dir}")

foreach(_name torch_cpu c10)
  add_library(ddprun::${_name} SHARED IMPORTED GLOBAL)
  set_target_properties(ddprun::${_name} PROPERTIES
    IMPORTED_LOCATION "${_dir}/lib/lib${_name}.so" IMPORTED_SONAME "lib${_name}.so")
endforeach()

add_library(ddprun::torch INTERFACE IMPORTED GLOBAL)
target_include_directories(ddprun::torch SYSTEM INTERFACE
  "${_dir}/include" "${_dir}/include/torch/csrc/api/include")
target_compile_definitions(ddprun::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
# -fPIC also for programs, where CMake says -fPIE: one precompiled header then serves all targets.
target_compile_options(ddprun::torch INTERFACE -fPIC)
target_link_libraries(ddprun::torch INTERFACE ddprun::torch_cpu ddprun::c10)
# libtorch_cpu finds CUDA's and OpenMP's libraries by its own run path; the linker need not look for them.
target_link_options(ddprun::torch INTERFACE -Wl,--allow-shlib-undefined)

# CUDA: the wheel's own packages of headers lie beside torch, else a toolkit of the system.
get_filename_component(_site "${_dir}" DIRECTORY)
file(GLOB _cuda_hints "${_site}/nvidia/cu[0-9]*/include" "${_site}/nvidia/*/include")
find_path(DDPRUN_CUDA_INCLUDE cuda_runtime_api.h HINTS ${_cuda_hints} /usr/local/cuda/include)
find_path(DDPRUN_NCCL_INCLUDE nccl.h HINTS ${_cuda_hints} /usr/local/cuda/include)
set(DDPRUN_TORCH_HAS_CUDA OFF)
set(DDPRUN_TORCH_CUDA_MISSING "")
if(NOT EXISTS "${_dir}/lib/libtorch_cuda.so")
  set(DDPRUN_TORCH_CUDA_MISSING "this LibTorch is a CPU build")
elseif(NOT DDPRUN_CUDA_INCLUDE)
  set(DDPRUN_TORCH_CUDA_MISSING "no CUDA headers beside it (installed with --no-deps?)")
elseif(NOT DDPRUN_NCCL_INCLUDE)
  set(DDPRUN_TORCH_CUDA_MISSING "no NCCL headers beside it (installed with --no-deps?)")
else()
  set(DDPRUN_TORCH_HAS_CUDA ON)
  foreach(_name torch_cuda c10_cuda)
    add_library(ddprun::lib${_name} SHARED IMPORTED GLOBAL)
    set_target_properties(ddprun::lib${_name} PROPERTIES
      IMPORTED_LOCATION "${_dir}/lib/lib${_name}.so" IMPORTED_SONAME "lib${_name}.so")
  endforeach()
  add_library(ddprun::torch_cuda INTERFACE IMPORTED GLOBAL)
  target_include_directories(ddprun::torch_cuda SYSTEM INTERFACE
    "${DDPRUN_CUDA_INCLUDE}" "${DDPRUN_NCCL_INCLUDE}" ${_cuda_hints})
  target_compile_definitions(ddprun::torch_cuda INTERFACE USE_C10D_NCCL USE_CUDA)
  target_link_libraries(ddprun::torch_cuda INTERFACE
    ddprun::torch ddprun::libtorch_cuda ddprun::libc10_cuda)
endif()
