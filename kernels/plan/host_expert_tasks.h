// The order of an owner's tasks on the host.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/plan/expert_tasks.h"

namespace mkernel::kernels {

/// Tasks that own what they look up. Neither copied nor moved: `tasks` points into it.
struct HostExpertTasks {
  HostExpertTasks(const OwnedExperts& owned, std::int32_t columns1, std::int32_t columns2, std::int32_t lead)
      : tasks{owned, columns1, columns2, lead, nullptr} {
    for (std::int32_t step = 0; step <= owned.experts; ++step) followers.push_back(tasks.followers(step));
    tasks.followers_at = followers.data();
  }
  HostExpertTasks(const HostExpertTasks&) = delete;
  HostExpertTasks& operator=(const HostExpertTasks&) = delete;

  std::vector<std::int32_t> followers;  ///< [experts + 1]
  ExpertTasks tasks;
};

}  // namespace mkernel::kernels
