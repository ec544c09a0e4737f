// Processor time of a thread, for tests of what work costs it.
#pragma once

#include <chrono>
#include <ctime>

namespace mkernel::test {

/// Of the calling thread. On a virtual machine it includes what its host took the processor away for: some
/// milliseconds, once in a while.
inline std::chrono::nanoseconds thread_time() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

}  // namespace mkernel::test
