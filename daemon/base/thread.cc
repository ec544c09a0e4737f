#include "daemon/base/thread.h"

#include <pthread.h>
#include <sched.h>

#include <cstring>

namespace mkernel::base {

void name_this_thread(const std::string& name) {
  ::pthread_setname_np(::pthread_self(), name.substr(0, 15).c_str());
}

Status pin_this_thread(std::span<const std::uint32_t> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::string names;
  for (const std::uint32_t cpu : cpus) {
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
    names += (names.empty() ? "" : ", ") + std::to_string(cpu);
  }
  const int error = ::pthread_setaffinity_np(::pthread_self(), sizeof(set), &set);
  if (error == 0) return {};
  return {StatusCode::kInvalidArgument, "cannot stay on CPU " + names + ": " + std::strerror(error)};
}

}  // namespace mkernel::base
