// The GEMM body's way in: where operands lie, the thread that loads them, and the one that waits for rows of
// others ahead of it. What a schedule is: sm90_body.cuh.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/gemm/sm90_config.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/fence.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/sync/device_trace.cuh"

namespace mkernel::kernels {

/// Where the operands of one tile lie. Coordinates in elements of the map's matrix; maps in kernel parameters
/// or global memory. a and c may be another matrix for every tile: own, symmetric or a peer's memory.
struct Sm90TilePlace {
  const TensorMap* a;
  const TensorMap* b;
  const TensorMap* c;
  std::int32_t a_row;
  std::int32_t b_column;  ///< along n
  std::int32_t b_k;       ///< where k begins in b's matrix (experts stacked along k), else 0
  std::int32_t c_row;
  std::int32_t c_column;
};

/// A part along k of a tile's rows of a: columns 0 .. of its map are the product's steps [end of the part
/// before, end).
struct Sm90Part {
  const TensorMap* a;
  std::int32_t end;  ///< in steps of kTileK; of the last part k_blocks()
};

/// One box into this CTA's stage, or into that of both CTAs of the cluster when they share the operand.
template <bool kShared>
__device__ __forceinline__ void sm90_load_box(std::uint32_t to, const TensorMap* map, int x, int y,
                                              std::uint32_t barrier) {
  if constexpr (kShared) {
    ptx::tma_load_multicast_2d(to, map, x, y, barrier, std::uint16_t{0b11});
  } else {
    ptx::tma_load_2d(to, map, x, y, barrier);
  }
}

/// The s-th part of a tile's rows: the only one when they do not come in parts.
template <class Schedule, class Place>
__device__ __forceinline__ Sm90Part sm90_part(const Schedule& schedule, const Place& tile, int s) {
  if constexpr (requires { schedule.part(tile, s); }) {
    return schedule.part(tile, s);
  } else {
    return {tile.a, schedule.k_blocks()};
  }
}

/// What a role that others wait for begins with.
template <class Schedule>
struct Sm90Start {
  using Place = decltype(std::declval<const Schedule&>().tile(0));
  std::int32_t tiles;
  Place first;  ///< when there are tiles
};

template <class Schedule>
__device__ __forceinline__ Sm90Start<Schedule> sm90_start(const Schedule& schedule) {
  Sm90Start<Schedule> start{schedule.tiles(), {}};
  if (start.tiles > 0) start.first = schedule.tile(0);
  return start;
}

/// Where the roles of this schedule tell what they do when.
template <class Schedule>
__device__ __forceinline__ decltype(auto) sm90_trace(const Schedule& schedule) {
  if constexpr (requires { schedule.trace(); }) {
    return schedule.trace();
  } else {
    return NoTrace{};
  }
}

/// Until the stage is empty in all CTAs of the cluster.
template <class Config>
__device__ __forceinline__ void sm90_wait_empty(const Pipeline<Config::kStages>& stages) {
  if constexpr (Config::kCluster == 1) {
    stages.wait_empty();
  } else {
    stages.wait_empty_cluster();
  }
}

/// One thread, of a schedule that waits: waits for the parts of the tiles' rows, one or two before the
/// loading thread comes to them. A wait that is over at once, and a map that nobody has read yet, take a
/// microsecond or two: here they pass beside the loads of the part before.
template <class Config, class Schedule>
__device__ __forceinline__ void sm90_wait(const Schedule& schedule, const Sm90Start<Schedule>& start,
                                          Pipeline<Config::kAhead>& ahead) {
  const int k_blocks = schedule.k_blocks();
  for (int i = 0; i < start.tiles; ++i) {
    const auto tile = i == 0 ? start.first : schedule.tile(i);
    for (int s = 0, end = 0; end < k_blocks; ++s, ahead.advance()) {
      const Sm90Part part = sm90_part(schedule, tile, s);
      ahead.wait_empty();
      ptx::tma_prefetch_descriptor(part.a);
      schedule.before_part(tile, s);
      // What the hook has acquired was written by ordinary stores or by others' copies; TMA reads it next.
      ptx::fence_proxy_async_global();
      ahead.arrive_full();
      end = part.end;
    }
  }
}

/// One thread: a and b into the stages; of the operand that the cluster shares this CTA's part, for both.
/// Here and below Config is the kernel's (stages, cluster), Tile what is computed: Config or
/// Sm90Tail<Config>.
template <class Config, class Tile, class Schedule>
__device__ __forceinline__ void sm90_load(const Schedule& schedule, const Sm90Start<Schedule>& start,
                                          Sm90Shared<Config>& shared, Pipeline<Config::kStages>& stages,
                                          Pipeline<Config::kAhead>& ahead) {
  constexpr bool kShareA = Config::kClusterColumns > 1, kShareB = Config::kClusterRows > 1;
  using Stage = Sm90Stage<Config, Tile>;
  constexpr int kBoxBytes = Tile::kBBytes / Tile::kBBoxes;
  constexpr int kBoxColumns = Tile::kTileN / Tile::kBBoxes;
  const int part = Config::kCluster == 1 ? 0 : static_cast<int>(ptx::cluster_cta_rank());
  const int a_part = kShareA ? part : 0, b_part = kShareB ? part : 0;
  const int first_box = b_part * Tile::kBBoxes / Config::kClusterRows;
  const int last_box = (b_part + 1) * Tile::kBBoxes / Config::kClusterRows;
  const std::uint32_t operands = ptx::shared_address(shared.a);
  const int k_blocks = schedule.k_blocks();

  for (int i = 0; i < start.tiles; ++i) {
    const auto tile = i == 0 ? start.first : schedule.tile(i);
    const int a_row = tile.a_row + a_part * (Config::kTileM / Config::kABoxes);
    int first = 0;  // step along k with which the part begins
    for (int s = 0; first < k_blocks; ++s) {
      const Sm90Part rows = sm90_part(schedule, tile, s);
      if constexpr (Schedule::kWaits) {
        ahead.wait_full();
        ahead.arrive_empty();
        ahead.advance();
      }
      begin_work(sm90_trace(schedule));
      for (int block = first; block < rows.end; ++block) {
        const int k = block * Config::kTileK;
        const int step = block % Stage::kSteps;
        // Empty means in both CTAs of the cluster: the shared operand goes into both. The bytes of the
        // neighbour's part may come in before this thread announces them; the phase cannot end without its
        // arrival.
        if (step == 0) {
          sm90_wait_empty<Config>(stages);
          stages.arrive_full_expect(min(Stage::kSteps, k_blocks - block) * Stage::kStepBytes);
        }
        const std::uint32_t full = stages.full_barrier();
        const std::uint32_t a = operands + Stage::a(stages.stage(), step);
        const std::uint32_t b = operands + Stage::b(stages.stage(), step);
        sm90_load_box<kShareA>(a + a_part * (Config::kABytes / Config::kABoxes), rows.a,
                               (block - first) * Config::kTileK, a_row, full);
        for (int box = first_box; box < last_box; ++box) {
          const std::uint32_t to = b + box * kBoxBytes;
          const int column = tile.b_column + box * kBoxColumns;
          if constexpr (Config::kLayoutB == Layout::kRowMajor) {
            sm90_load_box<kShareB>(to, tile.b, column, tile.b_k + k, full);
          } else {
            sm90_load_box<kShareB>(to, tile.b, tile.b_k + k, column, full);
          }
        }
        if (step == Stage::kSteps - 1 || block == k_blocks - 1) stages.advance();
      }
      end_work(sm90_trace(schedule), DeviceWork::kLoad, i);
      first = rows.end;
    }
  }
}

}  // namespace mkernel::kernels
