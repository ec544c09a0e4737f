// intra_comm: what a dispatching CTA does from the routing of its tokens to their sums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops/moe_dispatch_gemm/combine.cuh"
#include "kernels/ops/moe_dispatch_gemm/crossing.cuh"
#include "kernels/ops/moe_dispatch_gemm/parameters.h"
#include "kernels/ops/moe_dispatch_gemm/push.cuh"
#include "kernels/ops/moe_dispatch_gemm/routing.cuh"
#include "kernels/ops/moe_dispatch_gemm/table.cuh"
#include "kernels/ops/moe_dispatch_gemm/workers.cuh"

namespace mkernel::kernels {

/// intra_comm, one working warp of a dispatching CTA: routes, pushes, and then sums if its CTA does not
/// compute.
template <DataType kInput>
__device__ __forceinline__ void moe_dispatch(const MoeParameters& p, std::uint64_t epoch,
                                             const MoeWorkers& workers, std::byte* memory) {
  MoeRouting routing(p, epoch, workers, memory);
  if (!routing.count() || !routing.place()) return;
  std::int32_t* told = routing.told();
  if (blockIdx.x == 0) {
    if (!moe_forward_counts(p, epoch, workers, told)) return;
    if (!MoeTable(p, epoch, workers, told).build()) return;
  } else {
    if (workers.thread() == 0) {
      *told = moe_wait_own(p, p.scratch.table_ready, ExpertExchangePlan::stamp(epoch), DeviceRole::kIntraComm,
                           DeviceTag::kGridBarrier, MoeStage::kTable);
    }
    if (moe_told(workers, told) == 0) return;
  }
  if (moe_refused(p, epoch)) return;
  if (p.plan.others() > 0) moe_stage(p, epoch);
  moe_push<kInput>(p, routing, epoch);
  if (p.plan.others() > 0 && !moe_forward<kInput>(p, epoch)) return;
  if (static_cast<std::int32_t>(blockIdx.x) < p.summing_ctas) moe_sum<kInput>(p, epoch);
}

}  // namespace mkernel::kernels
