// The bound of every bound.
#pragma once

#include <cstdint>

namespace mkernel::kernels {

/// Longest deadline of a wait. More is refused by name where the host gives it, and counts as this where a
/// kernel does. Everything that has no deadline of its own and waits for waits that do (pipelines of a CTA,
/// the poller, claims of the work ring) is bounded by a multiple of this.
inline constexpr std::uint64_t kLongestDeadlineNs = 1'800'000'000'000;  // 30 minutes

}  // namespace mkernel::kernels
