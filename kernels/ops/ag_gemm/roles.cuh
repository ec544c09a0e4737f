// AG+GEMM on the cuda executor: the roles of its CTAs. See README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/lent_workspace.h"
#include "kernels/cuda/comm/endpoint.cuh"
#include "kernels/cuda/comm/fan_out.cuh"
#include "kernels/cuda/gemm/sm90_body.cuh"
#include "kernels/cuda/gemm/sm90_share.cuh"
#include "kernels/cuda/launch/end.cuh"
#include "kernels/cuda/launch/first_cta.cuh"
#include "kernels/cuda/launch/rehearsal.cuh"
#include "kernels/cuda/sync/wait.cuh"
#include "kernels/ops/ag_gemm/parameters.h"

namespace mkernel::kernels {

/// The schedule's arithmetic needs more registers in the loading thread than a plain product's.
template <Sm90Tile kTile, DataType kInput, Layout kLayoutB, Sm90Cluster kClusterShape = Sm90Cluster::kStacked>
struct AgGemmConfig : Sm90Config<kTile, kInput, kLayoutB, kClusterShape> {
  static constexpr int kProducerRegisters = 56;
  static constexpr int kMultiplyRegisters = 224;
};

/// Where this launch's half begins in every lent workspace. What says so changes only when every CTA has
/// ended.
__device__ __forceinline__ std::uint64_t half_at(const AgGemmParameters& p) {
  return lent_half_at(p.endpoint.lent->launches, p.half_bytes);
}

/// Until all shares of the chunk have been pushed here. False when it gave up. Over several nodes chunks come
/// through others, whose own waits end before this one.
__device__ __forceinline__ bool wait_chunk(const AgGemmParameters& p, std::uint64_t epoch,
                                           std::int32_t source, std::int32_t chunk, DeviceRole role) {
  const std::byte* words = p.words[p.local_rank] + p.gather.ready_offset(source);
  return wait_at_least(reinterpret_cast<const std::uint64_t*>(words) + chunk, p.gather.count(epoch),
                       {role, DeviceTag::kChunkReady, source, static_cast<std::uint32_t>(chunk)},
                       at_stage(wait_scope(p.endpoint), p.rails > 0 ? 1 : 0));
}

/// compute: which tiles of c this CTA computes, and when their rows are there.
template <class Config, class Tile = Config>
class AgGemmSchedule {
 public:
  static constexpr bool kWaits = true;

  struct Place : Sm90TilePlace {
    std::int32_t slab;
    std::int32_t block;  ///< of the slab's rows
  };

  explicit __device__ __forceinline__ AgGemmSchedule(const AgGemmParameters& p)
      : p_(p), epoch_(p.endpoint.control->epoch), slabs_(slabs_of(p)) {}

  __device__ __forceinline__ int tiles() const { return Share::tiles(p_.assignment, p_.comm_ctas); }
  __device__ __forceinline__ int k_blocks() const { return p_.k_blocks; }

  __device__ __forceinline__ Place tile(int i) const {
    const auto place = Share::place(p_.assignment, p_.comm_ctas, i);
    const auto [product, column] = p_.columns.place(place.column);
    const ArrivalSteps::Place step =
        p_.gather.shared ? ArrivalSteps::Place{.block = place.block} : p_.steps.place(place.block);
    const std::int32_t slab = step.source, first = Share::first_row(step.block, place.row);
    const std::int64_t c_first = p_.gather.slab_row(slab), rows = p_.gather.slab_rows(slab);
    const int row = first < rows ? first : kBeyond;
    return {{&p_.a, &p_.b[product], &p_.c[product][rows > p_.gather.min_rows()], row, column, 0, row, column,
             static_cast<std::int32_t>(c_first)},
            slab,
            step.block};
  }

  __device__ __forceinline__ int a_box_rows(const Place& tile) const {
    return tile.a_row == kBeyond ? 0 : p_.a_box_rows;
  }

  /// Own rows are there; those of others when the part of their block has been pushed here. Of a slab that
  /// all sources share: when the part of every source whose rows the tile holds has been, own ones included.
  __device__ __forceinline__ void before_part(const Place& tile, int s) const {
    if (tile.slab == p_.read_in_place || tile.a_row == kBeyond) return;
    if (p_.gather.shared) {
      p_.gather.each_source(tile.a_row, tile.a_row + Config::kTileM, [&](std::int32_t source) {
        return wait_chunk(p_, epoch_, source, s, DeviceRole::kCompute);
      });
    } else {
      wait_chunk(p_, epoch_, tile.slab, tile.block * p_.gather.row.parts + s, DeviceRole::kCompute);
    }
  }
  __device__ __forceinline__ Sm90Part part(const Place& tile, int s) const {
    if (tile.slab == p_.read_in_place) return {&p_.a, p_.k_blocks};
    return {&slabs_[tile.slab * p_.gather.row.parts + s], p_.gather.row.first_line(s + 1)};
  }
  __device__ __forceinline__ bool stopped() const { return p_.endpoint.lent->stopped != 0; }
  __device__ __forceinline__ const DeviceTrace& trace() const { return p_.endpoint.trace; }
  __device__ __forceinline__ auto tail() const requires Config::kHasTail {
    return AgGemmSchedule<Config, Sm90Tail<Config>>(p_);
  }

 private:
  /// Sources have unequal numbers of rows. Beyond the last one TMA reads zeros and writes nothing; for
  /// sources without rows the map has one, which this keeps clear of.
  static constexpr std::int32_t kBeyond = kMostRows;
  using Share = Sm90Share<Config, Tile>;

  /// Those of this launch's half.
  static __device__ __forceinline__ const TensorMap* slabs_of(const AgGemmParameters& p) {
    return p.slabs + (p.endpoint.lent->launches & 1) * p.gather.slabs() * p.gather.row.parts;
  }

  const AgGemmParameters& p_;
  const std::uint64_t epoch_;
  const TensorMap* const slabs_;
};

/// Rows of `source`. One thread.
__device__ __forceinline__ void describe_stream(const AgGemmParameters& p, std::int32_t source,
                                                FanOutStream& stream) {
  const std::int32_t ranks = p.steps.near + 1;
  stream.rows = p.gather.rows_of(source);
  stream.chunks = p.gather.chunks(source);
  stream.rows_at = half_at(p) + p.gather.slab_offset(p.gather.slab_of(source));
  stream.ready_at = p.gather.ready_offset(source);
  stream.slab_rows = p.gather.slab_rows(source);
  stream.slab_row = p.gather.row_in_slab(source);
  if (source == p.steps.rank) {
    // Own rows are put from this workspace, and in a shared slab they are multiplied with those of others.
    describe_own_rows(p.rows, ranks, p.rails > 0 || p.gather.shared, stream);
  } else {
    describe_far_rows(p.lent[p.local_rank], ranks, stream);
  }
}

/// Own rows, then those that the rail peers put here, in the order in which they go round: the node before
/// this one begins with it. One thread.
__device__ __forceinline__ void describe_streams(const AgGemmParameters& p, FanOutPlan& plan) {
  plan.row = p.gather.row;
  plan.block_rows = p.gather.block_rows;
  plan.shares = p.gather.shares;
  plan.streams = 1 + p.rails;
  plan.most_chunks = p.gather.max_chunks();
  describe_targets(p.local_rank, p.steps.near + 1, p.lent, p.words, plan.target);
  describe_stream(p, p.steps.rank, plan.stream[0]);
  for (std::int32_t i = 1; i <= p.rails; ++i) describe_stream(p, p.rail[p.rails - i], plan.stream[i]);
}

/// inter_recv: until the chunk of a stream has arrived, for bulk copies. Own rows are there.
__device__ __forceinline__ bool wait_put(const AgGemmParameters& p, std::uint64_t epoch,
                                         const FanOutPlan::Turn& turn) {
  if (turn.stream == 0) return true;
  const std::int32_t source = p.rail[p.rails - turn.stream];
  const std::uint64_t before = epoch * static_cast<std::uint64_t>(p.gather.chunks(source));
  if (!wait_arrival(p.endpoint, source, 0, before + turn.chunk + 1, DeviceRole::kInterRecv)) return false;
  ptx::fence_proxy_async_global();
  return true;
}

/// inter_send: own chunks to all rail peers, as they become whole in the own slab. One thread. Ends when
/// their sources may be overwritten: the halves rest on it, and whoever destroys the operation after its last
/// launch.
__device__ __forceinline__ void ag_gemm_inter_send(const AgGemmParameters& p, std::uint64_t epoch) {
  const std::int32_t me = p.steps.rank, chunks = p.gather.chunks(me);
  const std::uint64_t half = half_at(p);
  for (std::int32_t chunk = 0; chunk < chunks; ++chunk) {
    if (!wait_chunk(p, epoch, me, chunk, DeviceRole::kInterSend)) return;
    // Carries the stores of all pushing CTAs on to whoever reads the ring.
    const ptx::SysReleased released = ptx::fence_acq_rel_sys();
    const device::Place place{p.region, half + p.gather.chunk_offset(me, chunk)};
    const std::uint64_t bytes = p.gather.chunk_bytes(me, chunk);
    for (std::int32_t i = 0; i < p.rails; ++i) {
      if (!put(p.endpoint, p.rail[i], 0, place, place, bytes, DeviceRole::kInterSend, released)) return;
    }
  }
  const std::uint64_t puts = (epoch + 1) * static_cast<std::uint64_t>(chunks);
  for (std::int32_t i = 0; i < p.rails; ++i) {
    if (!wait_completed(p.endpoint, p.rail[i], 0, puts, DeviceRole::kInterSend)) return;
  }
}

/// The launch ends when at least one chunk of every source was seen: the halves rest on it. Those with
/// rows are waited for by the tiles that need them; this thread waits for the others' empty chunk.
__device__ __forceinline__ void ag_gemm_wait_empty(const AgGemmParameters& p, std::uint64_t epoch) {
  for (std::int32_t source = 0; source < p.steps.world; ++source) {
    if (source == p.steps.rank || p.gather.rows_of(source) > 0) continue;
    if (!wait_chunk(p, epoch, source, 0, DeviceRole::kIntraComm)) return;
  }
}

/// intra_comm, then inter_recv: a CTA that pushes its share of every chunk: a warp loads, others store and
/// count.
template <class Config>
__device__ __forceinline__ void ag_gemm_communicate(const AgGemmParameters& p,
                                                    FanOutShared<FanOutPlan>& shared) {
  const std::uint64_t epoch = p.endpoint.control->epoch;  // advanced only when every CTA has ended
  const auto share = static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0) describe_streams(p, shared.plan);
  init_fan_out(shared);
  const auto push = [&](int warp) {
    if (threadIdx.x % 32 == 0) {
      if (warp == 0) {
        load_fan_out(shared.plan, share, shared,
                     [&](const FanOutPlan::Turn& turn) { return wait_put(p, epoch, turn); });
      } else if (warp <= kFanOutStorers) {
        store_fan_out(shared.plan, share, warp - 1, p.endpoint.trace, p.links, shared);
        if (warp == 1 && share == 0) ag_gemm_wait_empty(p, epoch);
      }
    }
    __syncwarp();  // the lanes that had nothing to do meet the one that had
  };
  communicate<Config::kThreads / 32>(p.endpoint, p.rails > 0 ? 1 : 0, push,
                                     [&](int) { ag_gemm_inter_send(p, epoch); });
}

/// Whether a CTA that pushes computes when that is done. The poller stays to the end, and with it its
/// cluster.
template <class Config>
__device__ __forceinline__ bool computes_late(const AgGemmParameters& p) {
  return p.assignment.late > 0 && blockIdx.x >= Config::kCluster;
}

/// compute, where all rows are pushed before they are read: what a CTA can read of b meanwhile. One thread,
/// of a warp that has nothing else to do at first. In all it is about a third of the L2, which memory
/// delivers in about as long as rows take.
template <class Config>
__device__ __forceinline__ void ag_gemm_prefetch(const AgGemmSchedule<Config>& schedule) {
  constexpr int kBytes = 128 << 10;
  sm90_prefetch_b<Config>(schedule, kBytes);
  if constexpr (Config::kHasTail) {
    if (schedule.tiles() == 0) sm90_prefetch_b<Sm90Tail<Config>>(schedule.tail(), kBytes);
  }
}

/// The whole kernel, with the CTA's shared memory.
template <class Config>
__device__ __forceinline__ void ag_gemm(const AgGemmParameters& p, std::byte* memory) {
  const bool pushes = static_cast<std::int32_t>(blockIdx.x) < p.comm_ctas;
  const bool computes = !pushes || computes_late<Config>(p);
  begin_role(p.endpoint.trace);
  if (pushes) {
    if (p.endpoint.lent->stopped != 0) return count_out(*p.endpoint.control, p.endpoint.lent);
    FanOutShared<FanOutPlan>& shared = *reinterpret_cast<FanOutShared<FanOutPlan>*>(memory);
    ag_gemm_communicate<Config>(p, shared);
    end_fan_out(shared);
    end_role(p.endpoint.trace, DeviceRole::kIntraComm);
    if (blockIdx.x == 0) return;
    begin_role(p.endpoint.trace);
  }
  if (computes) {
    const AgGemmSchedule<Config> schedule(p);
    if (p.gather.shared && !pushes && threadIdx.x == 5 * 32) ag_gemm_prefetch(schedule);
    sm90_gemm(schedule, *reinterpret_cast<Sm90Shared<Config>*>(memory));
  }
  end_cta(*p.endpoint.control);
  if (computes) end_role(p.endpoint.trace, DeviceRole::kCompute);
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void ag_gemm_kernel(const __grid_constant__ AgGemmParameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  if (!is_rehearsal(p.endpoint)) ag_gemm<Config>(p, memory);
}

}  // namespace mkernel::kernels
