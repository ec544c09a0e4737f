// The GEMM body's way in: where operands lie, the thread that loads them, and the one that waits for rows of
// others ahead of it. What a schedule is: sm90_body.cuh.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/cuda/gemm/sm90_config.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/sync/trace.cuh"
#include "proto/abi/host_device.h"

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
  std::int32_t c_first = 0;  ///< the row of c's memory from which c_row counts
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

/// Rows of a box of a that the compiler knows.
template <int kRows>
struct Sm90BoxRows {
  MK_HOST_DEVICE constexpr operator int() const { return kRows; }  // NOLINT(google-explicit-constructor)
};

/// Rows of each box of a that this tile is loaded with; 0: no box is. Where the schedule does not say, as
/// many as fill the tile, and the machine code has no trace of the question.
template <class Config, class Schedule, class Place>
__device__ __forceinline__ auto sm90_a_box_rows(const Schedule& schedule, const Place& tile) {
  if constexpr (requires { schedule.a_box_rows(tile); }) {
    return schedule.a_box_rows(tile);
  } else {
    return Sm90BoxRows<Config::kTileM / Config::kABoxes>{};
  }
}

/// Bytes of one step along k that come into this CTA's stage, from whichever CTA of the cluster.
template <class Config, class Tile>
MK_HOST_DEVICE constexpr int sm90_step_bytes(int a_box_rows) {
  return Config::kABoxes * a_box_rows * Config::kRowBytes + Tile::kBBytes;
}

/// The operands of one step along k into a stage; `a_k` and `k`: where it begins in a's map and in b. Of the
/// operand that the cluster shares this CTA's part, for both; or, `kAlone`, everything for this CTA. The
/// compiler knows how many boxes that is: loops that ask at run time make this thread the slowest of all.
/// What boxes of fewer rows leave of the stage is multiplied as it is, whatever it was before: it comes into
/// rows of the product that nobody stores. Here and below Config is the kernel's (stages, cluster), Tile what
/// is computed: Config or Sm90Tail<Config>.
template <class Config, class Tile, bool kAlone, class Rows>
__device__ __forceinline__ void sm90_load_step(const TensorMap* a, const Sm90TilePlace& tile, Rows a_box_rows,
                                               int a_k, int k, Sm90Shared<Config>& shared,
                                               const Pipeline<Config::kStages>& stages, int step) {
  constexpr int kBeside = Tile::kClusterColumns, kStacked = Config::kCluster / kBeside;  // CTAs
  constexpr bool kShareA = !kAlone && kBeside > 1;
  constexpr bool kShareB = !kAlone && kStacked > 1;
  constexpr Sm90Boxes kBoxesA{Config::kABoxes, kShareA ? kBeside : 1};
  constexpr Sm90Boxes kBoxesB{Tile::kBBoxes, kShareB ? kStacked : 1};
  constexpr int kBytesB = Tile::kBBytes / Tile::kBBoxes, kColumns = Tile::kTileN / Tile::kBBoxes;
  using Stage = Sm90Stage<Config, Tile>;
  const int part = kShareA || kShareB ? static_cast<int>(ptx::cluster_cta_rank()) : 0;
  const std::uint32_t operands = ptx::shared_address(shared.a), full = stages.full_barrier();
  const int box_rows = a_box_rows;
  // A box that all of them read is loaded by one after the other, step by step.
  constexpr bool kInTurns = kBoxesA.boxes < kBoxesA.parts;
  if (box_rows > 0 && (!kInTurns || k / Config::kTileK % kBoxesA.parts == part)) {
#pragma unroll
    for (int i = 0; i < kBoxesA.each(); ++i) {
      const int row = ((kShareA && !kInTurns ? kBoxesA.first(part) : 0) + i) * box_rows;
      const std::uint32_t to = operands + Stage::a(stages.stage(), step) + row * Config::kRowBytes;
      sm90_load_box<kShareA>(to, a, a_k, tile.a_row + row, full);
    }
  }
  if (kBoxesB.none(part)) return;
#pragma unroll
  for (int i = 0; i < kBoxesB.each(); ++i) {
    const int box = (kShareB ? kBoxesB.first(part) : 0) + i;
    const std::uint32_t to = operands + Stage::b(stages.stage(), step) + box * kBytesB;
    const int column = tile.b_column + box * kColumns;
    if constexpr (Config::kLayoutB == Layout::kRowMajor) {
      sm90_load_box<kShareB>(to, tile.b, column, tile.b_k + k, full);
    } else {
      sm90_load_box<kShareB>(to, tile.b, tile.b_k + k, column, full);
    }
  }
}

/// One thread, before the roles of a schedule that waits: the first `bytes` of b of its first tile into the
/// L2, which are read there when the rows are here. The CTAs of a cluster that share b share the steps.
template <class Tile, class Schedule>
__device__ __forceinline__ void sm90_prefetch_b(const Schedule& schedule, int bytes) {
  if (schedule.tiles() == 0) return;
  const Sm90TilePlace tile = schedule.tile(0);
  const int steps = min(schedule.k_blocks(), bytes / Tile::kBBytes);
  const int part = Tile::kClusterRows > 1 ? static_cast<int>(ptx::cluster_cta_rank()) : 0;
  for (int step = part; step < steps; step += Tile::kClusterRows) {
    const int k = tile.b_k + step * Tile::kTileK;
    for (int box = 0; box < Tile::kBBoxes; ++box) {
      const int column = tile.b_column + box * (Tile::kTileN / Tile::kBBoxes);
      if constexpr (Tile::kLayoutB == Layout::kRowMajor) {
        ptx::tma_prefetch_2d(tile.b, column, k);
      } else {
        ptx::tma_prefetch_2d(tile.b, k, column);
      }
    }
  }
}

/// How many steps of the first tile are under way when the roles begin. A schedule that waits has none.
template <class Config, class Schedule>
__device__ __forceinline__ int sm90_loaded_first(const Schedule& schedule, const Sm90Start<Schedule>& start) {
  if constexpr (Schedule::kWaits) {
    return 0;
  } else {
    return start.tiles > 0 ? min(Config::kAlone, schedule.k_blocks()) : 0;
  }
}

/// The loading thread, before the CTA and its cluster have met, which takes as long as a load: sets up the
/// first stages and loads them for this CTA alone. The neighbour does the same: nothing comes from it.
template <class Config, class Schedule>
__device__ __forceinline__ void sm90_load_first(const Schedule& schedule, const Sm90Start<Schedule>& start,
                                                Sm90Shared<Config>& shared) {
  Pipeline<Config::kStages>::init(shared.stages, 1, Config::kStageReaders, 0, Config::kAlone);
  ptx::fence_mbarrier_init_release_cluster();
  Pipeline<Config::kStages> stages(shared.stages);
  const int steps = sm90_loaded_first<Config>(schedule, start);
  const auto a_box_rows = sm90_a_box_rows<Config>(schedule, start.first);
  const int step_bytes = sm90_step_bytes<Config, Config>(a_box_rows);
#pragma unroll
  for (int block = 0; block < Config::kAlone; ++block, stages.advance()) {
    if (block >= steps) return;
    const int k = block * Config::kTileK;
    stages.arrive_full_expect(step_bytes);
    sm90_load_step<Config, Config, true>(start.first.a, start.first, a_box_rows, k, k, shared, stages, 0);
  }
}

/// The same thread, instead of what follows: until those loads are over, as they must be when a CTA ends.
template <class Config, class Schedule>
__device__ __forceinline__ void sm90_await_first(const Schedule& schedule, const Sm90Start<Schedule>& start,
                                                 Sm90Shared<Config>& shared) {
  Pipeline<Config::kStages> stages(shared.stages);
  const int steps = sm90_loaded_first<Config>(schedule, start);
  for (int block = 0; block < steps; ++block, stages.advance()) stages.wait_full();
}

/// The same thread: the rest, a and b into the stages. `loaded`: steps of the first tile that are under way.
template <class Config, class Tile, class Schedule>
__device__ __forceinline__ void sm90_load(const Schedule& schedule, const Sm90Start<Schedule>& start,
                                          int loaded, Sm90Shared<Config>& shared,
                                          Pipeline<Config::kStages>& stages,
                                          Pipeline<Config::kAhead>& ahead) {
  using Stage = Sm90Stage<Config, Tile>;
  const int k_blocks = schedule.k_blocks();

  for (int i = 0; i < start.tiles; ++i) {
    const auto tile = i == 0 ? start.first : schedule.tile(i);
    const auto a_box_rows = sm90_a_box_rows<Config>(schedule, tile);
    const int step_bytes = sm90_step_bytes<Config, Tile>(a_box_rows);
    int first = 0;  // step along k with which the part begins
    for (int s = 0; first < k_blocks; ++s) {
      const Sm90Part rows = sm90_part(schedule, tile, s);
      if constexpr (Schedule::kWaits) {
        ahead.wait_full();
        ahead.arrive_empty();
        ahead.advance();
      }
      begin_work(sm90_trace(schedule));
      for (int block = max(first, i == 0 ? loaded : 0); block < rows.end; ++block) {
        const int step = block % Stage::kSteps;
        // Empty means in both CTAs of the cluster: the shared operand goes into both. The bytes of the
        // neighbour's part may come in before this thread announces them; the phase cannot end without its
        // arrival.
        if (step == 0) {
          sm90_wait_empty<Config>(stages);
          stages.arrive_full_expect(min(Stage::kSteps, k_blocks - block) * step_bytes);
        }
        sm90_load_step<Config, Tile, false>(rows.a, tile, a_box_rows, (block - first) * Config::kTileK,
                                            block * Config::kTileK, shared, stages, step);
        if (step == Stage::kSteps - 1 || block == k_blocks - 1) stages.advance();
      }
      end_work(sm90_trace(schedule), DeviceWork::kLoad, i);
      first = rows.end;
    }
  }
}

}  // namespace mkernel::kernels
