// A product whose tiles are summed over ranks, on the cuda executor: what the CTAs of such a kernel do. The
// operation says what becomes of the sums:
//
//   struct Operation {
//     using Parameters = ...;  // derived from TileReduceParameters
//     // A whole warp that has nothing else to do: sums own rows
//     // (sum_slots.cuh), and does what follows, until nothing is left.
//     // `warps` of them are called in a launch. No tile waits for it.
//     template <class Config>
//     static void spare_warp(const Parameters& p, std::uint32_t warps);
//     // Where owners share tiles: a multiplying warp after its last tile,
//     // when slots are marked. spare_warp() does nothing then.
//     template <class Config>
//     static void sum_marked(const Parameters& p);
//     // inter_send, over several nodes: one thread for each of
//     // 0 .. kSenders - 1. put_partials() is one of them.
//     static constexpr int kSenders;
//     static void send(const Parameters& p, std::uint64_t epoch, int sender);
//   };
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/comm/endpoint.cuh"
#include "kernels/cuda/gemm/sm90_body.cuh"
#include "kernels/cuda/launch/end.cuh"
#include "kernels/cuda/launch/first_cta.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/reduce/shared_tiles.cuh"
#include "kernels/cuda/reduce/sum_slots.cuh"
#include "kernels/cuda/reduce/tile_reduce_parameters.h"
#include "kernels/cuda/reduce/tile_schedule.cuh"
#include "kernels/cuda/sync/trace.cuh"
#include "kernels/cuda/sync/wait.cuh"
#include "kernels/plan/push_reduce_plan.h"
#include "kernels/plan/put_partials_plan.h"

namespace mkernel::kernels {

/// One warp of CTA 0. A launch ends only when it has seen a word of this launch from every rank of the node,
/// and an arrival of this launch from every rail peer: the halves of the lent workspace rest on it.
/// Owners with rows wait for tiles and partials; for those without, words and puts for nothing are written
/// and awaited.
__device__ __forceinline__ void exchange_empty(const TileReduceParameters& p, std::uint64_t epoch) {
  for (auto turn = static_cast<std::int32_t>(threadIdx.x % 32); turn < p.tiles.turns(); turn += 32) {
    if (p.owner(turn).rows == 0) ptx::st_release_sys(p.owner(turn).ready_there, PushReducePlan::count(epoch));
  }
  __syncwarp();
  for (std::int32_t node_turn = 0; node_turn <= p.units.others; ++node_turn) {
    if (p.owner(p.reduced(node_turn)).rows == 0 && !SumWait(p, epoch, node_turn, 0, 0).wait(p)) return;
  }
}

struct ChunkToPut {
  bool came;
  ptx::SysReleased released;
};

/// inter_send: until a chunk, `count` of whose units `word` counts over all launches, lies here complete. It
/// may then be put by this thread: the fence hands what was released at gpu scope on to who reads it for the
/// put. (When it did not come, the fence costs nobody anything.)
__device__ __forceinline__ ChunkToPut wait_chunk(const TileReduceParameters& p, const std::uint64_t* word,
                                                 std::uint64_t count, std::int32_t chunk, SumStage stage) {
  const DeviceWaitSite site{DeviceRole::kInterSend, DeviceTag::kChunkReady,
                            static_cast<std::int32_t>(p.endpoint.rank), static_cast<std::uint32_t>(chunk)};
  const bool came = wait_at_least(word, count, site, wait_scope(p, stage));
  return {came, ptx::fence_acq_rel_sys()};
}

/// inter_send, one thread: puts the partials of every rail peer as they are staged, each one's next chunk in
/// turn.
__device__ __forceinline__ void put_partials(const TileReduceParameters& p, std::uint64_t epoch) {
  const PartialsWire& wire = p.wire;
  const PutPartialsPlan& plan = wire.plan;
  const std::uint64_t half = p.half_at();
  constexpr DeviceRole kRole = DeviceRole::kInterSend;
  for (std::int32_t chunk = 0; chunk < wire.chunks; ++chunk) {
    for (std::int32_t turn = 0; turn < p.units.others; ++turn) {
      const std::int32_t units = wire.packed_units[turn];
      if (chunk >= plan.chunks(units)) continue;
      const std::int32_t begin = plan.chunk_begin(chunk, units), end = plan.chunk_begin(chunk + 1, units);
      const auto [came, released] = wait_chunk(p, wire.staged + turn * wire.chunks + chunk,
                                               (epoch + 1) * (end - begin), chunk, kAfterNode);
      if (!came) return;
      const std::uint64_t at = begin * PutPartialsPlan::kUnitBytes;
      const std::int32_t sender_turn = p.units.others - 1 - turn;
      if (!put(p.endpoint, p.owner(p.reduced(turn)).rank, 0,
               {wire.region, half + plan.staged_offset(turn) + at},
               {wire.region, half + plan.partial_offset(sender_turn) + at},
               (end - begin) * PutPartialsPlan::kUnitBytes, kRole, released)) {
        return;
      }
    }
  }
  // A later launch stages in the same place; and after the last one the operation may go.
  for (std::int32_t turn = 0; turn < p.units.others; ++turn) {
    const std::uint64_t puts = (epoch + 1) * plan.chunks(wire.packed_units[turn]);
    if (!wait_completed(p.endpoint, p.owner(p.reduced(turn)).rank, 0, puts, kRole)) return;
  }
}

/// intra_comm: a CTA of spare warps only.
template <class Config, class Operation>
__device__ __forceinline__ void tile_reduce_intra_comm(const typename Operation::Parameters& p) {
  const std::uint64_t epoch = p.endpoint.control->epoch;  // advanced only when every CTA has ended
  const auto sum = [&](int warp) {
    if (p.alone()) return;
    if (blockIdx.x == 0 && warp == 0) exchange_empty(p, epoch);
    Operation::template spare_warp<Config>(p, spare_warps<Config, Operation>(p));
  };
  communicate<Config::kThreads / 32>(p.endpoint, senders<Operation>(p), sum,
                                     [&](int sender) { Operation::send(p, epoch, sender); });
  if (blockIdx.x != 0) end_cta(*p.endpoint.control);
}

/// The whole kernel; `memory`: Sm90Shared<Config>.
template <class Config, class Operation>
__device__ __forceinline__ void tile_reduce(const typename Operation::Parameters& p, std::byte* memory) {
  begin_role(p.endpoint.trace);
  if (static_cast<std::int32_t>(blockIdx.x) < p.reduce_ctas) {
    if (p.endpoint.lent->stopped != 0) return count_out(*p.endpoint.control, p.endpoint.lent);
    tile_reduce_intra_comm<Config, Operation>(p);
    end_role(p.endpoint.trace, DeviceRole::kIntraComm);
  } else {
    using Schedule = std::conditional_t<Config::kSharedTiles, SharedTilesSchedule<Config, Operation>,
                                        TileReduceSchedule<Config, Operation>>;
    sm90_gemm(Schedule(p), *reinterpret_cast<Sm90Shared<Config>*>(memory));
    end_cta(*p.endpoint.control);
    end_role(p.endpoint.trace, DeviceRole::kCompute);
  }
}

}  // namespace mkernel::kernels
