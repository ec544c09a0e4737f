// Links that are modelled, of launches that are played: what they were given, without the time they take.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>

#include "kernels/cuda/comm/paced_links.cuh"
#include "kernels/cuda/comm/paced_links_of.h"

namespace mkernel::test {

/// The links of a rank whose plan models them, else none.
class PlayedLinks {
 public:
  kernels::PacedLinks open(const kernels::Machine& machine) {
    if (machine.paced_links == 0) return {};
    links_ = kernels::paced_links_of(machine, &free_ns_);
    links_.most_ns = 1000;
    return links_;
  }
  /// Before a launch: busy for so long that the clock does not catch up, and counts nothing but bytes.
  void begin() { begin_ns_ = free_ns_ = kernels::ptx::globaltimer() + (std::uint64_t{1} << 50); }
  /// After a launch that gave the links so many bytes.
  void check(std::int64_t bytes) const {
    if (!kernels::are_paced(links_)) return;
    const double busy_ns = static_cast<double>(bytes) * links_.fs_per_byte / 1e6;
    CHECK(std::abs(static_cast<double>(free_ns_ - begin_ns_) - busy_ns) <= 0.001 * busy_ns);
  }

 private:
  kernels::PacedLinks links_{};
  std::uint64_t free_ns_ = 0, begin_ns_ = 0;
};

}  // namespace mkernel::test
