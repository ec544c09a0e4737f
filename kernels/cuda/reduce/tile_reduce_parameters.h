// What a kernel is given that multiplies and has the partial tiles summed at their owners: filled by
// TileReduceOperation, read by tile_reduce.cuh.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/lent_workspace.h"
#include "kernels/cuda/comm/paced_links.h"
#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/plan/put_partials_plan.h"
#include "kernels/plan/raster.h"
#include "kernels/plan/reduce_units.h"
#include "kernels/plan/shared_tiles.h"
#include "kernels/plan/sm90_tile.h"
#include "mkernel/device_endpoint.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// What crosses nodes; on one node only `plan` is set.
struct PartialsWire {
  PutPartialsPlan plan;
  std::byte* lent;                             ///< this rank's lent workspace
  std::uint32_t region;                        ///< region of that, for puts
  std::int32_t packed_units[kMaxKernelNodes];  ///< units with rows, by node turn: of the rail peers, own last
  std::uint64_t* staged;                       ///< [node turn][chunk]: units staged, over all launches
  std::int32_t chunks;                         ///< chunks of the owner that has most
};

/// An owner as the kernel sees it: of PushReducePlan, what the kernel would need divisions for.
struct OwnerOnDevice {
  std::uint64_t* ready_there;  ///< words that this rank writes at the reducer
  std::int32_t rank;
  std::int32_t first_row;
  std::int32_t rows;
};

struct TileReduceParameters {
  TensorMap a;                ///< [m, k]
  TensorMap b;                ///< [k, n]
  TensorMap direct_c;         ///< [m, n]; only for a rank alone
  const TensorMap* slots;     ///< of slot_views(): this rank's at the reducers; in device memory
  std::uint64_t* claimed;     ///< units that warps have asked for, over all launches; in device memory
  device::Endpoint endpoint;  ///< lane 0: partials of the other nodes
  PacedLinks links;
  OwnerOnDevice first_owners[kMaxNodeRanks];  ///< by turn (OwnerTiles): what is here no launch waits for
  const OwnerOnDevice* owners;                ///< by turn: all of them; in device memory
  std::int32_t source_rank[kMaxNodeRanks];    ///< by source
  const std::uint64_t* ready;                 ///< words that are written here, of node turn 0, source 0
  std::byte* slots_here[2];                   ///< [half]: of node turn 0, source 0
  std::uint64_t half_bytes;                   ///< bytes of a half of a lent workspace
  std::uint64_t ready_words;                  ///< from source to source; a node turn has all sources
  std::uint64_t slot_bytes;                   ///< from source to source
  std::byte* own_c;                           ///< c's rows of this rank
  std::int32_t columns;
  OwnerTiles tiles;  ///< where owners share tiles, only its turns count
  ReduceUnits units;
  PartialsWire wire;
  std::int32_t k_blocks;
  std::int32_t reduce_ctas;
  SharedTiles shared;       ///< which tiles there are, where owners share them
  std::int32_t rows;        ///< of the product
  std::int32_t a_box_rows;  ///< of the map of a
  bool marked;              ///< slots have marks, not words (PushReducePlan)

  MK_HOST_DEVICE OwnerOnDevice owner(std::int32_t turn) const {
    return turn < kMaxNodeRanks ? first_owners[turn] : owners[turn];
  }
  MK_HOST_DEVICE std::int32_t sources() const { return tiles.node_turns; }
  /// Which half of the lent workspaces this launch has, and where it begins. What says so changes only when
  /// every CTA has ended.
  MK_HOST_DEVICE std::uint64_t half() const { return endpoint.lent->launches & 1; }
  MK_HOST_DEVICE std::uint64_t half_at() const { return lent_half_at(half(), half_bytes); }
  /// Nothing is to be summed: tiles are stored into c at once.
  MK_HOST_DEVICE bool alone() const { return tiles.turns() == 1; }
  /// Turn of the owner that this rank reduces for on the node that many turns on: its rail peer, itself last.
  MK_HOST_DEVICE std::int32_t reduced(std::int32_t node_turn) const {
    return node_turn * sources() + sources() - 1;
  }
};

}  // namespace mkernel::kernels
