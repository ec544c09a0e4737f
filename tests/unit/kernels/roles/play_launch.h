// A launch of one rank that plays a whole kernel.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>

#include "kernels/base/lent_workspace.h"
#include "kernels/cuda/sync/launch_control.h"
#include "tests/support/host_grid.h"
#include "tests/support/on_host/sm90.h"

namespace mkernel::test {

/// A deadline for two launches at the same time, where a wait for what the other one has taken may expire:
/// long compared with an emulated launch.
constexpr std::uint64_t kHostTwoLaunchesNs = 5000 * kHostRoundNs;

/// What two launches of one rank leave that ran at the same time, the first ones behind launch number
/// `before`: one of them counts, the other one reports that it was not alone, and nothing that is queued
/// behind them does any more. `lent`: the control block of the shared workspace, where there is one.
inline void check_two_at_a_time(const kernels::LaunchControl& control, std::uint64_t before,
                                const kernels::LentControl* lent = nullptr) {
  CHECK(control.epoch == before + 1);
  CHECK(control.failed != 0);
  CHECK(control.stopped != 0);
  CHECK(control.site.role == kernels::DeviceRole::kPoller);
  CHECK(control.site.tag == kernels::DeviceTag::kEpoch);
  CHECK(control.expected == before);
  CHECK(control.seen == before + 1);
  if (lent == nullptr) return;
  CHECK(lent->launches == before + 1);
  CHECK(lent->stopped != 0);
}

/// Runs the CTAs of `grid`, with a copy engine beside them, as the next launch of `control`, which must not
/// fail by itself, or as two of them at the same time.
inline void play_launch(HostGrid& grid, const kernels::LaunchControl& control, int at_a_time = 1) {
  grid.add_service(host_copy_engine);
  const std::uint64_t before = control.epoch;
  const std::uint32_t failed_before = control.failed;
  grid.run();
  if (at_a_time == 2) return check_two_at_a_time(control, before);
  CHECK(control.failed == failed_before);
  CHECK(control.epoch == before + 1);
}

}  // namespace mkernel::test
