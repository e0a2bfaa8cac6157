# The CUDA toolkit. SLUICE_HAS_CUDA says whether there is one to build with; without it everything else is built.
set(SLUICE_HAS_CUDA OFF)
set(reason "switched off (SLUICE_CUDA)")
if(NOT SLUICE_CUDA STREQUAL OFF AND NOT SLUICE_FUZZ)
  include(CheckLanguage)
  check_language(CUDA)
  find_package(CUDAToolkit QUIET)
  find_path(SLUICE_CUBLASLT_INCLUDE cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS} DOC "headers of cuBLASLt")
  if(NOT CMAKE_CUDA_COMPILER)
    set(reason "no compiler found (CUDACXX and PATH)")
  elseif(NOT CUDAToolkit_FOUND)
    set(reason "${CMAKE_CUDA_COMPILER} works, but its libraries were not found")
  elseif(CUDAToolkit_VERSION VERSION_LESS 12.0)
    set(reason "toolkit ${CUDAToolkit_VERSION} is too old, 12.0 is needed")
  elseif(NOT SLUICE_CUBLASLT_INCLUDE)
    set(reason "${CMAKE_CUDA_COMPILER} works, but cublasLt.h was not found; install the toolkit's cuBLAS")
  else()
    set(SLUICE_HAS_CUDA ON)
  endif()
endif()

if(NOT SLUICE_HAS_CUDA)
  if(SLUICE_CUDA STREQUAL ON)
    message(FATAL_ERROR "SLUICE_CUDA is ON: ${reason}")
  endif()
  message(STATUS "CUDA: ${reason}; the device is host memory")
  return()
endif()

# sluice_gpus_here(result): the architectures of this machine's GPUs, e.g. 90-real. Where there is none, and for one that
# nvcc does not know yet, 80: its PTX is translated by the driver of any later GPU when a program first runs there.
function(sluice_gpus_here result)
  set(found "")
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
    OUTPUT_VARIABLE output ERROR_QUIET RESULT_VARIABLE status TIMEOUT 30)
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
  if(status EQUAL 0)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]+" capabilities "${output}")
    foreach(capability IN LISTS capabilities)
      string(REPLACE "." "" architecture ${capability})
      if(known MATCHES "compute_${architecture}\n" AND architecture GREATER_EQUAL 80)
        list(APPEND found ${architecture}-real)
      else()
        list(APPEND found 80)
      endif()
    endforeach()
  endif()
  list(REMOVE_DUPLICATES found)
  if(NOT found)
    set(found 80)
  endif()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

if(SLUICE_CUDA_ARCHITECTURES STREQUAL AUTO)
  sluice_gpus_here(CMAKE_CUDA_ARCHITECTURES)
else()
  set(CMAKE_CUDA_ARCHITECTURES ${SLUICE_CUDA_ARCHITECTURES})
endif()
enable_language(CUDA)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has learned it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER} ${CUDAToolkit_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")

add_library(sluice_cuda_flags INTERFACE)
target_compile_options(sluice_cuda_flags INTERFACE
  # IEEE arithmetic as written, on the device as on the host: fused where the code says fma and nowhere else, denormals
  # kept, quotients and roots rounded once (the latter two are defaults).
  -fmad=false -Xcompiler=-ffp-contract=off
  # constexpr functions of include/ are the device's too
  --expt-relaxed-constexpr
  # source lines for profilers and compute-sanitizer; costs no speed
  -lineinfo
  -Xcompiler=-Wall,-Wextra $<$<BOOL:${SLUICE_WERROR}>:-Werror=all-warnings>)

# sluice_bundled(target): the program runs from a bundle (tools/gpu_check): libraries beside it come first, also for what
# they need themselves, and those that are not needed are not linked.
function(sluice_bundled target)
  set_target_properties(${target} PROPERTIES BUILD_RPATH "$ORIGIN/../lib")
  target_link_options(${target} PRIVATE -Wl,--as-needed -Wl,--disable-new-dtags)
endfunction()
