// AG+GEMM on the cuda executor: the roles of its CTAs. See README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/comm/fan_out.cuh"
#include "kernels/gemm/sm90_body.cuh"
#include "kernels/gemm/sm90_share.cuh"
#include "kernels/ops/ag_gemm/cuda_parameters.h"
#include "kernels/sync/launch_end.cuh"
#include "kernels/sync/wait.cuh"

namespace mkernel::kernels {

/// Until all shares of the chunk have been pushed here. False when it gave up.
__device__ __forceinline__ bool wait_chunk(const AgGemmParameters& p, std::uint64_t epoch,
                                           std::int32_t source, std::int32_t chunk, DeviceRole role) {
  const auto* ready =
      reinterpret_cast<const std::uint64_t*>(p.workspace[p.steps.rank] + p.gather.ready_offset(source));
  return wait_at_least(ready + chunk, p.gather.count(epoch),
                       {role, DeviceTag::kChunkReady, source, static_cast<std::uint32_t>(chunk)},
                       {p.control, p.deadline_ns, p.trace});
}

/// compute: which tiles of c this CTA computes, and when their rows are there.
template <class Config, class Tile = Config>
class AgGemmSchedule {
 public:
  static constexpr bool kWaits = true;

  explicit __device__ __forceinline__ AgGemmSchedule(const AgGemmParameters& p) : p_(p) {}

  __device__ __forceinline__ int tiles() const { return Share::tiles(p_.deal, p_.comm_ctas); }
  __device__ __forceinline__ int k_blocks() const { return p_.k_blocks; }

  __device__ __forceinline__ Sm90TilePlace tile(int i) const {
    const Rows rows = rows_of(i);
    // Sources have unequal numbers of rows. Beyond the last one TMA reads zeros and writes nothing; a source
    // without rows has a map of one row, which this keeps clear of.
    constexpr std::int32_t kBeyond = 1 << 30;
    const int row = rows.first < p_.gather.rows_of(rows.source) ? rows.first : kBeyond;
    return {&p_.a, &p_.b, &p_.c[rows.source], row, rows.column, 0, row, rows.column};
  }

  /// Own rows are there; those of others when the part of their block has been pushed here.
  __device__ __forceinline__ Sm90Segment segment(int i, int s) const {
    const Rows rows = rows_of(i);
    if (rows.source == p_.steps.rank) return {&p_.a, p_.k_blocks};
    const std::int32_t parts = p_.gather.row.parts;
    if (rows.first < p_.gather.rows_of(rows.source))
      wait_chunk(p_, epoch(), rows.source, rows.block * parts + s, DeviceRole::kCompute);
    const std::int32_t slab = static_cast<std::int32_t>(epoch() & 1) * p_.steps.world + rows.source;
    return {&p_.slabs[slab * parts + s], p_.gather.row.first_line(s + 1)};
  }
  __device__ __forceinline__ void after_store(int) const {}
  __device__ __forceinline__ const DeviceTrace& trace() const { return p_.trace; }
  __device__ __forceinline__ auto tail() const requires Config::kHasTail {
    return AgGemmSchedule<Config, Sm90Tail<Config>>(p_);
  }

 private:
  struct Rows {
    std::int32_t source;
    std::int32_t block;   ///< of the source's rows
    std::int32_t first;   ///< of this CTA's tile
    std::int32_t column;  ///< of c
  };
  __device__ __forceinline__ Rows rows_of(int i) const {
    const auto [block, column] = Share::place(p_.deal, p_.comm_ctas, i);
    const ArrivalSteps::Place step = p_.steps.place(block);
    return {step.source, step.block, Share::first_row(step.block), column};
  }
  __device__ __forceinline__ std::uint64_t epoch() const { return p_.control->epoch; }

  using Share = Sm90Share<Config, Tile>;
  const AgGemmParameters& p_;
};

/// Own rows, for every other rank of the node. One thread.
__device__ __forceinline__ void describe_stream(const AgGemmParameters& p, std::uint64_t epoch,
                                                FanOutStream& stream) {
  const std::int32_t rank = p.steps.rank;
  stream.source = p.rows;
  stream.rows = p.steps.world > 1 ? p.gather.rows_of(rank) : 0;
  stream.row = p.gather.row;
  stream.block_rows = p.gather.block_rows;
  stream.chunks = p.gather.chunks(rank);
  stream.shares = p.gather.shares;
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

/// intra_comm: a CTA that pushes its share of every chunk: a warp loads, one stores, one counts; the fourth
/// of CTA 0 watches the host.
__device__ __forceinline__ void ag_gemm_intra_comm(const AgGemmParameters& p, FanOutShared& shared) {
  const std::uint64_t epoch = p.control->epoch;  // advanced only when every CTA has ended
  const bool last_out = blockIdx.x == 0;
  const auto share = static_cast<int>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool first_lane = threadIdx.x % 32 == 0;
  if (threadIdx.x == 0) describe_stream(p, epoch, shared.stream);
  init_fan_out(shared);
  if (warp == 0 && first_lane) {
    load_fan_out(shared.stream, share, shared);
  } else if (warp == 1 && first_lane) {
    store_fan_out(shared.stream, share, p.trace, shared);
    if (last_out) ag_gemm_wait_empty(p, epoch);
  } else if (warp == 2) {
    signal_fan_out(shared.stream, p.trace, shared);
  } else if (warp == 3 && last_out) {
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
  begin_role(p.trace);
  if (static_cast<std::int32_t>(blockIdx.x) < p.comm_ctas) {
    ag_gemm_intra_comm(p, *reinterpret_cast<FanOutShared*>(memory));
    end_role(p.trace, DeviceRole::kIntraComm);
  } else {
    sm90_gemm(AgGemmSchedule<Config>(p), *reinterpret_cast<Sm90Shared<Config>*>(memory));
    end_cta(*p.control);
    end_role(p.trace, DeviceRole::kCompute);
  }
}

}  // namespace mkernel::kernels
