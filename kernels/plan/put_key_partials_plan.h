// Plan of what crosses nodes when gradients of keys and values are summed over ranks: the rail peer of an
// owner adds up what its node has of the owner's, and puts the sums. Pure; the same on host and device.
#pragma once

#include <cstdint>

#include "kernels/base/divisor.h"
#include "kernels/plan/key_partials_plan.h"
#include "kernels/plan/kv_gather_plan.h"
#include "kernels/plan/ring_backward_tasks.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Its part of the half of the lent workspace that a launch uses, behind the slots of KeyPartialsPlan:
///   staged[distance]   the sums of this node for the rail peer so many nodes behind this one
///   partial[distance]  those of that node, for this rank
/// Both hold units as slots do. Distances count from 1. At distance d of one lies what is at distance
/// nodes - d of the other one.
///
/// A node's sums are of the units of which one of its queries sees a key: of every head the first
/// `head_units`, for who sees the second part of another rank's keys sees the first one, too. They travel in
/// the order in which tasks make them: head after head, of each the last keys first. `packed` is the number
/// of a unit in this order. Units travel in chunks of `chunk_units`, one put each; a node that sees nothing
/// puts nothing, and its peer waits for nothing.
///
/// What the halves rest on (base/lent_workspace.h): a launch ends when all chunks of all rail peers have
/// come, for they are summed, and when its own puts are completed.
struct PutKeyPartialsPlan {
  /// Shorter puts do not fill the wire (kernels/ops/ring_attention/gpu_plan.cc).
  static constexpr std::uint64_t kFewestPutBytes = 1 << 20;

  std::uint64_t begin = 0;  ///< a multiple of 128
  std::int32_t nodes = 1;
  std::int32_t max_units = 0;  ///< of the owner that has most
  std::uint64_t unit_bytes = 0;
  Divisor chunk_units;  ///< of one put

  PutKeyPartialsPlan() = default;
  PutKeyPartialsPlan(const KvGatherPlan& gather, const KeyPartialsPlan& partials)
      : begin(partials.data_bytes()),
        nodes(gather.rails() + 1),
        max_units(partials.max_units),
        unit_bytes(partials.unit_bytes()),
        chunk_units(static_cast<std::int32_t>((kFewestPutBytes + unit_bytes - 1) / unit_bytes)) {}

  MK_HOST_DEVICE std::uint64_t staged_offset(std::int32_t distance, std::int32_t packed) const {
    return block_offset(distance - 1) + static_cast<std::uint64_t>(packed) * unit_bytes;
  }
  MK_HOST_DEVICE std::uint64_t partial_offset(std::int32_t distance, std::int32_t packed) const {
    return block_offset(nodes - 1 + distance - 1) + static_cast<std::uint64_t>(packed) * unit_bytes;
  }
  MK_HOST_DEVICE std::uint64_t data_bytes() const { return block_offset(2 * (nodes - 1)); }

  /// Of a node that puts so many units in a launch.
  MK_HOST_DEVICE std::int32_t chunks(std::int32_t units) const { return chunk_units.ceil(units); }
  MK_HOST_DEVICE std::int32_t chunk_begin(std::int32_t chunk, std::int32_t units) const {
    return chunk * chunk_units < units ? chunk * chunk_units : units;
  }
  /// The first chunk that is not whole when the first `made` of these units are.
  MK_HOST_DEVICE std::int32_t chunks_whole(std::int32_t made, std::int32_t units) const {
    return made < units ? made / chunk_units : chunks(units);
  }
  /// Puts from which that chunk of launch `epoch` has come.
  MK_HOST_DEVICE std::uint64_t count(std::uint64_t epoch, std::int32_t chunk, std::int32_t units) const {
    return epoch * chunks(units) + chunk + 1;
  }

  /// The rail peer of `gather.rank` that many nodes behind its own.
  static std::int32_t rail_peer(const KvGatherPlan& gather, std::int32_t distance) {
    return gather.source(first_step(gather, distance));
  }
  /// Units of a head of the owner's of which the queries of the node that many nodes behind see a key.
  static std::int32_t head_units(const KvGatherPlan& gather, std::int32_t distance, std::int32_t owner) {
    std::int32_t units = 0;
    for (std::int32_t part = 0; part < 2; ++part) {
      bool seen = false;
      for (std::int32_t i = 0; i <= gather.near; ++i) {
        const std::int32_t rank = gather.source(first_step(gather, distance) + i);
        seen |= RingBackwardTasks::is_seen(gather, rank, owner, part);
      }
      if (seen) units += KeyPartialsPlan::units_of(gather, owner, part);
    }
    return units;
  }
  /// Of unit number `inside` of a head.
  static MK_HOST_DEVICE std::int32_t packed(std::int32_t head, std::int32_t inside, std::int32_t head_units) {
    return head * head_units + head_units - 1 - inside;
  }

 private:
  /// Of KvGatherPlan::source(), which begins a node with the rail peer and goes from node to node backwards.
  static std::int32_t first_step(const KvGatherPlan& gather, std::int32_t distance) {
    return distance == 0 ? 0 : (gather.rails() + 1 - distance) * (gather.near + 1);
  }
  MK_HOST_DEVICE std::uint64_t block_offset(std::int32_t block) const {
    return begin + static_cast<std::uint64_t>(block) * max_units * unit_bytes;
  }
};

}  // namespace mkernel::kernels
