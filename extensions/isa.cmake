# Instruction sets: one source file each, with flags of its own.
include(CheckCXXSourceCompiles)

# isa_file(<target> <prefix> <name> <architecture macro> <flags>...): builds isa_<name>.cpp into the
# target with these flags and defines <prefix>_HAVE_<NAME>, where the file exists, the machine is that
# architecture and the compiler takes the flags. An empty macro means every architecture.
function(isa_file target prefix name macro)
  set(source "${CMAKE_CURRENT_SOURCE_DIR}/isa_${name}.cpp")
  set_property(TARGET ${target} APPEND PROPERTY isa_rows "${source}")
  if(NOT EXISTS "${source}")
    return()
  endif()
  string(TOUPPER "${prefix}_HAVE_${name}" have)
  if(macro)
    list(JOIN ARGN " " CMAKE_REQUIRED_FLAGS)
    check_cxx_source_compiles("
      #ifndef ${macro}
      #error other architecture
      #endif
      int main() { return 0; }" ${have})
  else()
    set(${have} ON)
  endif()
  if(${have})
    target_sources(${target} PRIVATE "${source}")
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND name MATCHES "^(avx512|amx)")
      # GCC bug 105593: its own AVX-512 headers set these off.
      list(APPEND ARGN -Wno-uninitialized -Wno-maybe-uninitialized)
    endif()
    set_source_files_properties("${source}" PROPERTIES COMPILE_OPTIONS "${ARGN}")
    target_compile_definitions(${target} PRIVATE ${have})
  endif()
endfunction()

# Fails unless every isa_<name>.cpp of this folder has its row.
function(check_isa_rows target)
  get_target_property(isa_rows ${target} isa_rows)
  file(GLOB isa_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/isa_*.cpp")
  foreach(source IN LISTS isa_sources)
    if(NOT source IN_LIST isa_rows)
      message(FATAL_ERROR "${source} has no row in ${CMAKE_CURRENT_SOURCE_DIR}/CMakeLists.txt.")
    endif()
  endforeach()
endfunction()
