// The GEMM body for sm_90a: what a persistent kernel does with its share of the tiles of one product. Fused
// kernels use it unchanged and bring a schedule, which says what the tiles are and is told when they begin
// and end:
//
//   struct Schedule {                   // every CTA's own; const, read by three roles at their own pace
//     static constexpr bool kWaits;     // others write rows of a while the kernel runs
//     int tiles() const;                // of this CTA; the same in both CTAs of a cluster
//     int k_blocks() const;             // ceil(k / kTileK) >= 1
//     Place tile(int i) const;          // i-th tile: Sm90TilePlace, or derived from it with what the
//                                       // schedule wants to know of it again (finding it takes divisions);
//                                       // stacked CTAs of a cluster agree on b, those side by side on a
//     int a_box_rows(const Place& tile) const;  // optional, where tiles may have few rows: rows of the boxes
//                                       // of a's maps (plan/sm90_tile.h), and for a tile without rows 0:
//                                       // the same for the CTAs of a cluster that share a
//     void before_part(const Place& tile, int s) const;  // when kWaits: one thread, before the first byte of
//                                       // part s of the tile's rows is loaded: returns when it may be read
//                                       // (acquired at the right scope)
//     Sm90Part part(const Place& tile, int s) const;  // optional, when kWaits: rows of a come in parts along
//                                       // k, the first of at least two steps; where the s-th is
//     void for_each_c(const Place& tile, int row, const auto& store) const;
//                                       // optional, instead of c: the 64 rows from c_row = `row` on go to
//                                       // several matrices, or to none: store(map, row of it, skipped) for
//                                       // each, without the first `skipped` of the 64 rows
//     bool stopped() const;             // optional: there is nothing to be done after all; looked at while
//                                       // the CTA sets up its barriers, so it costs no time
//     void after_store(int i) const;    // optional; one thread, once tile i is complete in memory and
//                                       // visible to it: a release at the right scope hands the tile on
//     void after_products() const;      // optional; every multiplying warp, after its last tile: may
//                                       // wait for tiles that are stored, no tile may wait for it
//     const DeviceTrace& trace() const; // optional: where the roles tell what they do when
//     Tail tail() const;                // optional, when Config::kHasTail: a schedule of narrow tiles
//                                       // (Sm90Tail<Config>) that come after tiles()
//   };
//
// Contract: all threads of all CTAs of a cluster call sm90_gemm(), with the same kind of schedule.
// before_part() may wait for tiles that this or any other CTA has stored before: the store of a tile never
// depends on the load of a later one. A hook that gives up (deadline, abort) returns; the rest is then
// computed from whatever memory holds, so that every pipeline drains, and the caller reports the failure.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/sm90_config.cuh"
#include "kernels/cuda/gemm/sm90_load.cuh"
#include "kernels/cuda/gemm/sm90_output.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/registers.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/sync/trace.cuh"

namespace mkernel::kernels {

/// One step along k of one warpgroup: issues kTileK / 16 products of its rows and closes the group.
template <class Tile>
__device__ __forceinline__ void sm90_multiply_block(float (&sums)[Tile::kBlocks][Tile::kSums],
                                                    std::uint64_t a, std::uint64_t b, bool accumulate) {
  // In units of 16 bytes, as descriptors count: 16 elements along a row of 64; 16 rows of b when k is
  // outside.
  constexpr std::uint64_t kStepA = 2;
  constexpr std::uint64_t kStepB = Tile::kMajorB == ptx::WgmmaMajor::kK ? 2 : 16 * 128 / 16;
  constexpr std::uint64_t kBlockA = 64 * 128 / 16;
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < Tile::kTileK / 16; ++step) {
#pragma unroll
    for (int block = 0; block < Tile::kBlocks; ++block) {
      const std::uint64_t from_a = a + block * kBlockA + step * kStepA;
      const std::uint64_t from_b = b + step * kStepB;
      const bool add = accumulate || step > 0;
      if constexpr (Tile::kTileN == 256) {
        ptx::wgmma_m64n256k16<Tile::kWgmmaElement, Tile::kMajorB>(sums[block], from_a, from_b, add);
      } else if constexpr (Tile::kTileN == 128) {
        ptx::wgmma_m64n128k16<Tile::kWgmmaElement, Tile::kMajorB>(sums[block], from_a, from_b, add);
      } else {
        ptx::wgmma_m64n64k16<Tile::kWgmmaElement, Tile::kMajorB>(sums[block], from_a, from_b, add);
      }
    }
  }
  ptx::wgmma_commit_group();
}

/// One warpgroup (`group` 0 or 1): its rows of every tile. Needs counts only, no coordinates.
template <class Config, class Tile, class Schedule>
__device__ __forceinline__ void sm90_multiply(const Schedule& schedule, int group, Sm90Shared<Config>& shared,
                                              Pipeline<Config::kStages>& stages,
                                              Pipeline<Config::kSlots>& pieces) {
  using Stage = Sm90Stage<Config, Tile>;
  constexpr int kGroupABytes = Config::kABytes / Config::kMultiplyWarpgroups;
  const int tiles = schedule.tiles();
  const int k_blocks = schedule.k_blocks();
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t operands = ptx::shared_address(shared.a);
  const std::uint64_t a =
      ptx::wgmma_descriptor_swizzle128(operands + group * kGroupABytes, 16, 8 * 128);  // [64, 64] K-major
  const std::uint64_t b = ptx::wgmma_descriptor_swizzle128(
      operands, Config::kMajorB == ptx::WgmmaMajor::kK ? 16 : 64 * 128, 8 * 128);
  Pipeline<Config::kStages> used = stages;  // trails by the products in flight
  Sm90Output<Config, Tile> output(shared, group, pieces);
  float sums[Tile::kBlocks][Tile::kSums];

  // Every warp gives a stage back for itself, in every CTA that loads into it.
  const auto give_back = [&] {
    if constexpr (Config::kCluster == 1) {
      if (lane == 0) used.arrive_empty();
    } else {
      if (lane < Config::kCluster) used.arrive_empty_at(lane);
    }
    used.advance();
  };
  // The product begins when its first operands are here, and not when it begins to wait for them.
  const auto begin = [&] {
    if (!is_traced(sm90_trace(schedule))) return;
    stages.wait_full();
    if (threadIdx.x % 128 == 0) begin_work(sm90_trace(schedule));
  };
  const auto multiply = [&](int first, int last) {
    for (int block = first; block < last; ++block) {
      const int step = block % Stage::kSteps;
      if (step == 0) stages.wait_full();
      sm90_multiply_block<Tile>(sums, a + Stage::a(stages.stage(), step) / 16,
                                b + Stage::b(stages.stage(), step) / 16, block > 0);
      if (step == Stage::kSteps - 1 || block == k_blocks - 1) stages.advance();
      // One group stays in flight, so the one before it is done with its operands.
      ptx::wgmma_wait_group<1>();
      if (block > 0 && step == 0) give_back();
    }
  };

  for (int i = 0; i < tiles; ++i) {
    // What the tile before left in registers is written under this tile's first products. When those are
    // still to be loaded, it is written first: their load may be waiting for just this store.
    if constexpr (Tile::kHeld > 0) {
      bool held = i > 0;
      if (held && !__shfl_sync(~0U, stages.test_full(), 0)) {
        output.write_held();
        held = false;
      }
      const int first = min(2, k_blocks);
      begin();
      multiply(0, first);
      if (held) output.write_held();
      multiply(first, k_blocks);
    } else {
      begin();
      multiply(0, k_blocks);
    }
    ptx::wgmma_wait_group<0>();
    if (threadIdx.x % 128 == 0) end_work(sm90_trace(schedule), DeviceWork::kProduct, i);
    give_back();
    output.write(sums);
  }
  if (tiles > 0) output.write_held();
}

/// One thread per multiplying warpgroup (`group`): its pieces of every tile from shared memory to c.
/// `before`: tiles that it has stored already.
template <class Config, class Tile, class Schedule>
__device__ __forceinline__ void sm90_store(const Schedule& schedule, int before, int group,
                                           Sm90Shared<Config>& shared, Pipeline<Config::kSlots>& pieces) {
  constexpr int kAcross = Tile::kTileN / Config::kPieceColumns;
  const std::uint32_t out = ptx::shared_address(shared.out[group]);
  const int tiles = schedule.tiles();
  Pipeline<Config::kSlots> read = pieces;  // trails by the store that may still read its slot
  const auto give_back = [&] {
    read.arrive_empty();
    read.advance();
  };

  for (int i = 0; i < tiles; ++i) {
    const auto tile = schedule.tile(i);
    const int row = tile.c_row + group * Tile::kBlocks * 64;
    bool reading = false;
    if (is_traced(sm90_trace(schedule))) {
      pieces.wait_full();  // it begins with the first piece, and not with the wait for it
      begin_work(sm90_trace(schedule));
    }
    for (int piece = 0; piece < Tile::kPieces; ++piece, pieces.advance()) {
      // No slot is kept while there is nothing to store: a warp may need it before the next piece is whole.
      if (reading && !pieces.test_full()) {
        ptx::bulk_wait_group_read<0>();
        give_back();
        reading = false;
      }
      pieces.wait_full();
      const auto store = [&](const TensorMap* c, int c_row, int skipped = 0) {
        ptx::tma_store_3d(c, tile.c_column + piece % kAcross * Config::kPieceColumns, c_row, tile.c_first,
                          out + pieces.stage() * Config::kPieceBytes + skipped * (Config::kPieceBytes / 64));
      };
      if constexpr (requires { schedule.for_each_c(tile, row, store); }) {
        schedule.for_each_c(tile, row + piece / kAcross * 64, store);
      } else {
        store(tile.c, row + piece / kAcross * 64);
      }
      ptx::bulk_commit_group();
      if (reading) {
        ptx::bulk_wait_group_read<1>();
        give_back();
      }
      reading = true;
    }
    ptx::bulk_wait_group_read<0>();
    give_back();
    // Without .read: complete in memory and visible to this thread. The count hands that on between the two
    // store threads (acq_rel), so whoever comes second speaks for the whole tile.
    constexpr bool kTells = requires {
      schedule.after_store(i);
    };
    if constexpr (kTells) ptx::bulk_wait_group<0>();
    end_work(sm90_trace(schedule), DeviceWork::kStore, i);
    if constexpr (kTells) {
      const std::uint32_t stored = ptx::shared_address(&shared.stored[(before + i) % shared.kStored]);
      if (ptx::atom_add_acq_rel_cta_shared(stored, 1) % Config::kMultiplyWarpgroups ==
          Config::kMultiplyWarpgroups - 1)
        schedule.after_store(i);
    }
  }
}

/// The roles, each over tiles() and then over those of tail().
template <class Config, class Schedule>
__device__ __forceinline__ void sm90_wait_all(const Schedule& schedule, const Sm90Start<Schedule>& start,
                                              Sm90Shared<Config>& shared) {
  Pipeline<Config::kAhead> ahead(shared.parts);
  sm90_wait<Config>(schedule, start, ahead);
  if constexpr (requires { schedule.tail(); }) {
    const auto tail = schedule.tail();
    sm90_wait<Config>(tail, sm90_start(tail), ahead);
  }
}

template <class Config, class Schedule>
__device__ __forceinline__ void sm90_load_all(const Schedule& schedule, const Sm90Start<Schedule>& start,
                                              Sm90Shared<Config>& shared) {
  Pipeline<Config::kStages> stages(shared.stages);
  Pipeline<Config::kAhead> ahead(shared.parts);
  const int loaded = sm90_loaded_first<Config>(schedule, start);
  for (int step = 0; step < Config::kAlone; ++step)
    if (step < loaded) stages.advance();
  sm90_load<Config, Config>(schedule, start, loaded, shared, stages, ahead);
  if constexpr (requires { schedule.tail(); }) {
    const auto tail = schedule.tail();
    sm90_load<Config, Sm90Tail<Config>>(tail, sm90_start(tail), 0, shared, stages, ahead);
  }
  // The CTA stays until every stage is empty: a neighbour still arrives at its barriers until then, and what
  // it copies into its stages was used by then.
  for (int stage = 0; stage < Config::kStages; ++stage, stages.advance()) sm90_wait_empty<Config>(stages);
}

template <class Config, class Schedule>
__device__ __forceinline__ void sm90_multiply_all(const Schedule& schedule, int group,
                                                  Sm90Shared<Config>& shared) {
  Pipeline<Config::kStages> stages(shared.stages);
  Pipeline<Config::kSlots> pieces(shared.pieces[group]);
  sm90_multiply<Config, Config>(schedule, group, shared, stages, pieces);
  if constexpr (requires { schedule.tail(); }) {
    sm90_multiply<Config, Sm90Tail<Config>>(schedule.tail(), group, shared, stages, pieces);
  }
}

template <class Config, class Schedule>
__device__ __forceinline__ void sm90_store_all(const Schedule& schedule, int group,
                                               Sm90Shared<Config>& shared) {
  Pipeline<Config::kSlots> pieces(shared.pieces[group]);
  sm90_store<Config, Config>(schedule, 0, group, shared, pieces);
  if constexpr (requires { schedule.tail(); })
    sm90_store<Config, Sm90Tail<Config>>(schedule.tail(), schedule.tiles(), group, shared, pieces);
}

/// The barriers and counts that the roles meet at, but for the first stages (sm90_load_first()). One after
/// the other takes a quarter of a microsecond, so two threads share them.
template <class Config>
__device__ __forceinline__ void sm90_init(int warp, Sm90Shared<Config>& shared) {
  if (warp == 1 && ptx::elect_sync()) {
    Pipeline<Config::kStages>::init(shared.stages, 1, Config::kStageReaders, Config::kAlone);
    ptx::fence_mbarrier_init_release_cluster();
  } else if (warp == 2 && ptx::elect_sync()) {
    for (auto& pieces : shared.pieces) Pipeline<Config::kSlots>::init(pieces, 4, 1);
    Pipeline<Config::kAhead>::init(shared.parts, 1, 1);
    for (std::uint32_t& stored : shared.stored) stored = 0;
    ptx::fence_mbarrier_init_release_cluster();
  }
}

template <class Schedule>
__device__ __forceinline__ bool sm90_stopped(const Schedule& schedule) {
  if constexpr (requires { schedule.stopped(); }) {
    return schedule.stopped();
  } else {
    return false;
  }
}

/// The whole body: every thread of the CTA, once per kernel.
template <class Config, class Schedule>
__device__ __forceinline__ void sm90_gemm(const Schedule& schedule, Sm90Shared<Config>& shared) {
  const int warp = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / 32, 0);
  // Where the first tile lies is found, and its load begins, while the barriers are set up: everything else
  // waits for that.
  Sm90Start<Schedule> start{};
  if (warp == 0 || (Schedule::kWaits && warp == 3)) {
    start = sm90_start(schedule);
    ptx::compute_now(start);
    if (warp == 0 && ptx::elect_sync()) sm90_load_first<Config>(schedule, start, shared);
    __syncwarp();
  } else if (warp == 4 && schedule.tiles() > 0 && ptx::elect_sync()) {
    const Sm90TilePlace first = schedule.tile(0);
    ptx::tma_prefetch_descriptor(first.a);
    ptx::tma_prefetch_descriptor(first.b);
    ptx::tma_prefetch_descriptor(first.c);
  }
  const bool stopped = sm90_stopped(schedule);
  sm90_init(warp, shared);
  __syncthreads();
  if constexpr (Config::kCluster > 1) {
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait_acquire();
  }
  if (stopped) {
    if (warp == 0 && ptx::elect_sync()) sm90_await_first<Config>(schedule, start, shared);
    return;
  }

  if (warp < 4) {
    ptx::setmaxnreg_dec<Config::kProducerRegisters>();
    if (warp == 0) {
      if (ptx::elect_sync()) sm90_load_all(schedule, start, shared);
    } else if (warp <= Config::kMultiplyWarpgroups) {
      if (ptx::elect_sync()) sm90_store_all(schedule, warp - 1, shared);
    } else if constexpr (Schedule::kWaits) {
      if (ptx::elect_sync()) sm90_wait_all(schedule, start, shared);
    }
    __syncwarp();
  } else {
    ptx::setmaxnreg_inc<Config::kMultiplyRegisters>();
    sm90_multiply_all(schedule, warp / 4 - 1, shared);
    if constexpr (requires { schedule.after_products(); }) schedule.after_products();
  }
}

}  // namespace mkernel::kernels
