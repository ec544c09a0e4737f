// A launch of one rank that plays a whole kernel.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>

#include "kernels/cuda/sync/launch_control.h"
#include "tests/support/host_grid.h"
#include "tests/support/on_host/sm90.h"

namespace mkernel::test {

/// Runs the CTAs of `grid`, with a copy engine beside them, as the next launch of `control`, which must end
/// well.
inline void play_launch(HostGrid& grid, const kernels::LaunchControl& control) {
  grid.add_service(host_copy_engine);
  const std::uint64_t before = control.epoch;
  grid.run();
  CHECK(control.failed == 0);
  CHECK(control.epoch == before + 1);
}

}  // namespace mkernel::test
