// Small help for threads: a name that people see in top and gdb, a CPU to stay on, a pause while spinning.
#pragma once

#include <string>

#include "proto/abi/status.h"

namespace mkernel::base {

/// Names the calling thread; the kernel keeps the first 15 characters.
void name_this_thread(const std::string& name);

/// Keeps the calling thread on one CPU. Errors: kInvalidArgument naming the CPU when the machine or the
/// container does not have it.
Status pin_this_thread(int cpu);

/// Tells the core that this is a spin loop.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace mkernel::base
