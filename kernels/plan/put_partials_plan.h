// Plan of what crosses nodes when tiles are summed over ranks: a reducer puts the sums of its node to their
// owners, its rail peers, in chunks. Pure; the same on every rank, on host and device.
#pragma once

#include <cstdint>

#include "kernels/base/divisor.h"
#include "kernels/plan/reduce_units.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Its part of the half of the lent workspace that a launch uses, from `begin` on; nothing on one node:
///   staged[node turn]      at the reducer: its node's partial for the owner that many nodes on
///   partial[sender turn]   at the owner: that of the node that many nodes on
/// each of them units of ReduceUnits, [unit rows, tile columns] in the operation's type, packed: those beyond
/// the owner's rows are left out, so that they need not travel. What the owner nodes on t is to a reducer,
/// the reducer is to the owner nodes - 2 - t (turns count from 0, the next node).
///
/// An owner's units travel in order, in chunks of `chunk_units`, one put each; an owner without rows gets an
/// empty one. So the arrival count says which units have come, and every launch of a rank sees an arrival of
/// the same launch from every rail peer: the halves rest on it (base/lent_workspace.h). A launch ends only
/// when its puts are completed.
struct PutPartialsPlan {
  static constexpr std::uint64_t kUnitBytes = kReduceUnitElements * 2;

  std::uint64_t begin = 0;  ///< a multiple of 128
  std::int32_t nodes = 1;
  std::int32_t units = 0;  ///< of the owner that has most
  Divisor chunk_units;     ///< of one put

  MK_HOST_DEVICE std::uint64_t block_bytes() const { return units * kUnitBytes; }
  MK_HOST_DEVICE std::uint64_t staged_offset(std::int32_t node_turn) const {
    return begin + node_turn * block_bytes();
  }
  MK_HOST_DEVICE std::uint64_t partial_offset(std::int32_t sender_turn) const {
    return staged_offset(nodes - 1 + sender_turn);
  }
  MK_HOST_DEVICE std::uint64_t end() const { return partial_offset(nodes - 1); }

  /// Of an owner with `packed` units: puts of one launch on the channel (reducer -> owner).
  MK_HOST_DEVICE std::int32_t chunks(std::int32_t packed) const {
    return packed == 0 ? 1 : chunk_units.ceil(packed);
  }
  MK_HOST_DEVICE std::int32_t chunk_begin(std::int32_t chunk, std::int32_t packed) const {
    return chunk * chunk_units < packed ? chunk * chunk_units : packed;
  }
  /// Arrivals (and completions) from which that chunk of launch `epoch` has come.
  MK_HOST_DEVICE std::uint64_t count(std::uint64_t epoch, std::int32_t packed, std::int32_t chunk) const {
    return epoch * chunks(packed) + chunk + 1;
  }
};

}  // namespace mkernel::kernels
