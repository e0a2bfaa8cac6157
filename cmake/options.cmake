option(SLUICE_TESTS "build tests and benches" ON)
option(SLUICE_WERROR "warnings are errors" ON)
option(SLUICE_CHECKSUMS "verify what comes back from drives; OFF is only for measuring what that costs" ON)
option(SLUICE_FUZZ "the parsers and their fuzz targets alone; needs clang" OFF)
set(SLUICE_SANITIZE "" CACHE STRING "address;undefined or thread")
set(SLUICE_CUDA AUTO CACHE STRING "the CUDA device: ON, OFF, or AUTO where a toolkit of version 12 or later is found")
set_property(CACHE SLUICE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(SLUICE_CUDA_ARCHITECTURES AUTO CACHE STRING
  "GPUs to build for, as CMAKE_CUDA_ARCHITECTURES (a bare number is also PTX); AUTO: this machine's, or 80 where there is none")
set(SLUICE_MPI AUTO CACHE STRING "ranks in processes of their own: ON, OFF, or AUTO where MPI is found")
set_property(CACHE SLUICE_MPI PROPERTY STRINGS AUTO ON OFF)
option(SLUICE_PCH "precompiled headers, of the standard library and what else most files of a part include" ON)
option(SLUICE_UNITY "compile eight files as one: a whole build takes less time, one after a change of a file more" ON)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(SLUICE_CCACHE ccache)
if(SLUICE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SLUICE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${SLUICE_CCACHE})
endif()

add_library(sluice_flags INTERFACE)
target_compile_options(sluice_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor
  $<$<BOOL:${SLUICE_WERROR}>:-Werror> $<$<NOT:$<BOOL:${SLUICE_CHECKSUMS}>>:-DSLUICE_NO_CHECKSUMS>
  $<$<CONFIG:Debug>:-DSLUICE_POISON=1>
  # IEEE arithmetic as written: a fused multiply-add happens where the code says fma and nowhere else.
  -ffp-contract=off
  # g++ 12 sees overlaps in std::string's operator+ that are not there (GCC bug 105651).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
if(SLUICE_FUZZ)
  target_compile_options(sluice_flags INTERFACE -fsanitize=fuzzer-no-link
    -fsanitize-coverage-ignorelist=${CMAKE_SOURCE_DIR}/tests/fuzz/coverage.ignore)
endif()
foreach(sanitizer IN LISTS SLUICE_SANITIZE)
  # GCC 12 takes the standard library's own members for uninitialized where a sanitizer watches them.
  target_compile_options(sluice_flags INTERFACE -fsanitize=${sanitizer} -fno-omit-frame-pointer -g1
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(sluice_flags INTERFACE -fsanitize=${sanitizer})
endforeach()

# For programs and files that do little of the work themselves. What they call is built for speed elsewhere; compiling
# them takes a quarter less time like this.
add_library(sluice_flags_cold INTERFACE)
target_compile_options(sluice_flags_cold INTERFACE $<$<CONFIG:Release>:-O1>)
target_link_libraries(sluice_flags_cold INTERFACE sluice_flags)

add_library(sluice_flags_no_shadow INTERFACE)
target_compile_options(sluice_flags_no_shadow INTERFACE -Wno-shadow)

# sluice_library(NAME dir... DEPENDS ...): every .cpp below the given folders, flags and include rule in one place.
function(sluice_library name)
  cmake_parse_arguments(ARG "" "" "DIRS;DEPENDS;PRIVATE" ${ARGN})
  set(sources "")
  foreach(dir IN LISTS ARG_DIRS)
    file(GLOB_RECURSE found CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${dir}/*.cpp)
    list(APPEND sources ${found})
  endforeach()
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC sluice_include ${ARG_DEPENDS} PRIVATE sluice_flags ${ARG_PRIVATE})
endfunction()

# sluice_precompile(NAME <header>...): what most files of NAME include, parsed once. No header of ours is in it. Of parts
# that are compiled with -O1: with -O3 g++ 12 warns of the standard library's own code, which it no longer knows to be a
# system's. Off (SLUICE_PCH), files have to include what they use.
function(sluice_precompile name)
  if(SLUICE_PCH)
    target_precompile_headers(${name} PRIVATE <algorithm> <array> <atomic> <chrono> <cmath> <cstring> <filesystem>
      <fstream> <functional> <map> <memory> <numeric> <optional> <set> <span> <string> <thread> <vector> ${ARGN})
  endif()
endfunction()

# sluice_unite(NAME <file>...): compile NAME's files eight as one (SLUICE_UNITY), where headers and templates are most of
# the work. The given files are compiled alone, in all targets of this folder. A batch is what is next to each other in
# the list, so that no two files of NAME may define one name, not even in anonymous namespaces.
function(sluice_unite name)
  if(SLUICE_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    # g++ takes the files of a batch for headers, whose types should not have members of anonymous namespaces.
    target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# expose(NAME folder): make `#include "folder/..."` work for NAME and those who link it, and no other folder of ours.
function(sluice_expose name folder)
  set(view ${CMAKE_BINARY_DIR}/view/${name})
  file(MAKE_DIRECTORY ${view})
  file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${folder} ${view}/${folder} SYMBOLIC)
  target_include_directories(${name} PUBLIC ${view})
endfunction()
