// AG+GEMM on the cuda executor: the roles of its CTAs. See README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/comm/fan_out.cuh"
#include "kernels/gemm/sm90_body.cuh"
#include "kernels/ops/ag_gemm/cuda_parameters.h"
#include "kernels/sync/launch_end.cuh"
#include "kernels/sync/wait.cuh"

namespace mkernel::kernels {

/// Until all parts of the chunk have been pushed here. False when it gave up.
__device__ __forceinline__ bool wait_chunk(const AgGemmParameters& p, std::uint64_t epoch,
                                           std::int32_t source, std::int32_t chunk, DeviceRole role) {
  const auto* ready =
      reinterpret_cast<const std::uint64_t*>(p.workspace[p.steps.rank] + p.gather.ready_offset(source));
  return wait_at_least(ready + chunk, p.gather.count(epoch),
                       {role, DeviceTag::kChunkReady, source, static_cast<std::uint32_t>(chunk)},
                       {p.control, p.deadline_ns});
}

/// compute: which tiles of c this CTA computes, and when their rows are there.
template <class Config>
class AgGemmSchedule {
 public:
  static constexpr bool kWaits = true;

  explicit __device__ __forceinline__ AgGemmSchedule(const AgGemmParameters& p) : p_(p) {}

  __device__ __forceinline__ int tiles() const {
    return (p_.raster.tiles() - cluster() + clusters() - 1) / clusters();
  }
  __device__ __forceinline__ int k_blocks() const { return p_.k_blocks; }

  __device__ __forceinline__ Sm90TilePlace tile(int i) const {
    const Rows rows = rows_of(i);
    const bool own = rows.source == p_.steps.rank;
    const TensorMap* a = own ? &p_.a : &p_.slabs[(epoch() & 1) * p_.steps.world + rows.source];
    const int column = rows.column * Config::kTileN;
    // Sources have unequal numbers of rows. Beyond the last one TMA reads zeros and writes nothing; a source
    // without rows has a map of one row, which this keeps clear of.
    constexpr std::int32_t kBeyond = 1 << 30;
    const int row = rows.first < p_.gather.rows_of(rows.source) ? rows.first : kBeyond;
    return {a, &p_.b, &p_.c[rows.source], row, column, 0, row, column};
  }

  /// The chunks that hold the rows of this CTA's tile have been pushed here.
  __device__ __forceinline__ void before_load(int i) const {
    const Rows rows = rows_of(i);
    const auto end =
        min(static_cast<std::int64_t>(rows.first + Config::kTileM), p_.gather.rows_of(rows.source));
    if (rows.source == p_.steps.rank) return;
    for (std::int32_t chunk = rows.first / p_.gather.chunk_rows;
         static_cast<std::int64_t>(chunk) * p_.gather.chunk_rows < end; ++chunk) {
      if (!wait_chunk(p_, epoch(), rows.source, chunk, DeviceRole::kCompute)) return;
    }
  }
  __device__ __forceinline__ void after_store(int) const {}

 private:
  struct Rows {
    std::int32_t source;
    std::int32_t first;   ///< of the source's rows
    std::int32_t column;  ///< of tiles
  };
  __device__ __forceinline__ Rows rows_of(int i) const {
    const RasterPlace place = p_.raster.place(cluster() + i * clusters());
    const ArrivalSteps::Place step = p_.steps.place(place.row);
    const auto in_cluster = static_cast<std::int32_t>(blockIdx.x % Config::kCluster);
    return {step.source, (step.block * Config::kCluster + in_cluster) * Config::kTileM, place.column};
  }

  // Nothing is kept: the multiplying warps would carry it through their products, and have no register to
  // spare.
  __device__ __forceinline__ std::uint64_t epoch() const { return p_.control->epoch; }
  __device__ __forceinline__ std::int32_t cluster() const {
    return (static_cast<std::int32_t>(blockIdx.x) - p_.comm_ctas) / Config::kCluster;
  }
  __device__ __forceinline__ std::int32_t clusters() const {
    return (static_cast<std::int32_t>(gridDim.x) - p_.comm_ctas) / Config::kCluster;
  }

  const AgGemmParameters& p_;
};

/// Own rows, for every other rank of the node. One thread.
__device__ __forceinline__ void describe_stream(const AgGemmParameters& p, std::uint64_t epoch,
                                                FanOutStream& stream) {
  const std::int32_t rank = p.steps.rank;
  stream.source = p.rows;
  stream.bytes = p.steps.world > 1 ? p.gather.rows_of(rank) * p.gather.row_bytes : 0;
  stream.chunk_bytes = p.gather.chunk_rows * p.gather.row_bytes;
  stream.parts = p.gather.parts;
  stream.targets = p.steps.world - 1;
  // Everybody begins with the next: no rank is written by all.
  for (std::int32_t t = 0; t < stream.targets; ++t) {
    std::byte* peer = p.workspace[(rank + 1 + t) % p.steps.world];
    stream.target[t] = {peer + p.gather.slab_offset(epoch, rank),
                        reinterpret_cast<std::uint64_t*>(peer + p.gather.ready_offset(rank))};
  }
}

/// The launch ends when at least one chunk of every source was seen: the two slabs rest on it. Those with
/// rows are waited for by the tiles that need them; this thread waits for the others' empty chunk.
__device__ __forceinline__ void ag_gemm_wait_empty(const AgGemmParameters& p, std::uint64_t epoch) {
  for (std::int32_t source = 0; source < p.steps.world; ++source) {
    if (source == p.steps.rank || p.gather.rows_of(source) > 0) continue;
    if (!wait_chunk(p, epoch, source, 0, DeviceRole::kIntraComm)) return;
  }
}

/// intra_comm: a CTA that pushes. Its first warp moves its part of every chunk, the second counts it, the
/// third of CTA 0 watches the host.
__device__ __forceinline__ void ag_gemm_intra_comm(const AgGemmParameters& p, FanOutShared& shared) {
  const std::uint64_t epoch = p.control->epoch;  // advanced only when every CTA has ended
  const bool last_out = blockIdx.x == 0;
  if (threadIdx.x == 0) describe_stream(p, epoch, shared.stream);
  init_fan_out(shared);
  if (threadIdx.x == 0) {
    fan_out(shared.stream, static_cast<int>(blockIdx.x), shared);
    if (last_out) ag_gemm_wait_empty(p, epoch);
  } else if (threadIdx.x / 32 == 1) {
    signal_fan_out(shared.stream, shared);
  } else if (threadIdx.x / 32 == 2 && last_out) {
    relay_host(*p.control, p.host, {}, gridDim.x - 1);
  }
  if (last_out) {
    end_launch(*p.control, epoch);
  } else {
    end_cta(*p.control);
  }
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void ag_gemm_kernel(const __grid_constant__ AgGemmParameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  if (static_cast<std::int32_t>(blockIdx.x) < p.comm_ctas) {
    ag_gemm_intra_comm(p, *reinterpret_cast<FanOutShared*>(memory));
  } else {
    sm90_gemm(AgGemmSchedule<Config>(p), *reinterpret_cast<Sm90Shared<Config>*>(memory));
    end_cta(*p.control);
  }
}

}  // namespace mkernel::kernels
