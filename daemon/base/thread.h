// Small help for threads: a name that people see in top and gdb, CPUs to stay on, a pause while spinning.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "proto/abi/status.h"

namespace mkernel::base {

/// Names the calling thread; the kernel keeps the first 15 characters.
void name_this_thread(const std::string& name);

/// Keeps the calling thread on these CPUs. Errors: kInvalidArgument naming them when the machine or the
/// container has none of them.
Status pin_this_thread(std::span<const std::uint32_t> cpus);

/// Tells the core that this is a spin loop.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace mkernel::base
