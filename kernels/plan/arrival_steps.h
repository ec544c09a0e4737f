// The order in which row blocks of a gathered matrix arrive, which is the order in which they are computed.
// Pure functions, the same on host and device.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/divisor.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

class Topology;

/// Every source has rows in blocks of equal height (the last may be lower), and as many as another one or one
/// more. Own blocks first: they are there. Then those of the other ranks of this node, over NVLink: the j-th
/// block of every one in turn, because all of them push at the same time and at the same pace, each beginning
/// with its first rows. Then those of the other nodes, again in turn, in the order in which their senders go
/// round.
struct ArrivalSteps {
  static constexpr std::int32_t kMaxSources = 64;
  struct Place {
    std::int32_t source = 0;
    std::int32_t block = 0;  ///< of the source's rows
    std::int32_t turn = 0;   ///< of the source in `sources`
  };

  std::int32_t rank = 0;
  std::int32_t world = 1;  ///< 1 .. kMaxSources
  std::int32_t own_blocks = 1;
  std::int32_t blocks = 1;                ///< that every other source has
  Divisor near = 0;                       ///< other ranks of this node
  Divisor far = 0;                        ///< ranks of other nodes
  std::int32_t near_more = 0;             ///< of those, with one block more
  std::int32_t far_more = 0;              ///< ranks of other nodes, likewise
  std::int8_t sources[kMaxSources] = {};  ///< in the order in which they come: own, near, far
  std::int8_t more[kMaxSources] = {};     ///< turns of those with one block more: near, far

  /// `blocks_of`: of every rank.
  static ArrivalSteps of(const Topology& topology, std::uint32_t rank,
                         std::span<const std::int32_t> blocks_of);

  MK_HOST_DEVICE std::int32_t near_steps() const { return near * blocks + near_more; }
  MK_HOST_DEVICE std::int32_t steps() const { return own_blocks + near_steps() + far * blocks + far_more; }
  MK_HOST_DEVICE Place place(std::int32_t step) const {
    if (step < own_blocks) return {rank, step, 0};
    step -= own_blocks;
    if (step < near_steps())
      return step < near * blocks ? among(1, near, step) : one_more(step - near * blocks);
    step -= near_steps();
    return step < far * blocks ? among(1 + near, far, step) : one_more(near_more + step - far * blocks);
  }

 private:
  /// Of `count` sources from turn `first` on.
  MK_HOST_DEVICE Place among(std::int32_t first, const Divisor& count, std::int32_t step) const {
    const std::int32_t turn = first + step % count;
    return {sources[turn], step / count, turn};
  }
  MK_HOST_DEVICE Place one_more(std::int32_t index) const {
    return {sources[more[index]], blocks, more[index]};
  }
};

}  // namespace mkernel::kernels
