// How much memory the machine has.
#pragma once

#include <unistd.h>

#include <cstdint>

namespace mkernel::base {

/// Bytes of RAM that the kernel manages, whatever a container may use of it. Any thread.
inline std::uint64_t physical_memory_bytes() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace mkernel::base
