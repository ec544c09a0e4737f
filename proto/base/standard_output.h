// The last word of a program: whether all that it printed has arrived.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace mkernel {

/// Writes out what is buffered for standard output. Returns `status`, or 1 where that is 0 and standard
/// output did not take everything (a full disk, a closed descriptor); then a line on standard error says so
/// in the name of `program`. The return value of main(). std::cout counts too, since it writes through
/// stdout.
inline int finish_output(const char* program, int status) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  std::fprintf(stderr, "%s: standard output cannot be written: %s\n", program,
               errno != 0 ? std::strerror(errno) : "it did not take everything");
  return status == 0 ? 1 : status;
}

}  // namespace mkernel
