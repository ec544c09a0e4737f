# How every program and library of ours is compiled against its own mistakes: mkerneld holds the memory of several users, and
# libmkernel.so lives in their processes. What a put goes through was measured with and without (tests/perf/notes.md).
include(CheckPIESupported)
check_pie_supported(LANGUAGES CXX)  # CMAKE_POSITION_INDEPENDENT_CODE then makes programs PIE

# The library's checks of indices, iterators and empty optionals: a mistake is an abort that names its line, not a write.
add_compile_definitions($<$<COMPILE_LANGUAGE:CXX>:_GLIBCXX_ASSERTIONS>)

add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong;-fstack-clash-protection>")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fcf-protection>)
endif()
add_link_options(LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)

# Needs an optimising build, and hides from sanitizers what they look for.
if(NOT MKERNEL_SANITIZE)
  set(optimised $<CONFIG:Release,RelWithDebInfo,MinSizeRel>)
  add_compile_options("$<$<AND:$<COMPILE_LANGUAGE:CXX>,${optimised}>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>")
endif()
