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

/// One warp: rows into the pools, in the order in which they are computed (plan/expert_sections.h): those of
/// own tokens, and between them those that have crossed from other nodes. False: a wait gave up.
template <DataType kInput>
__device__ __forceinline__ bool moe_send_rows(const MoeParameters& p, std::uint64_t epoch,
                                              const MoeRouting& routing) {
  const bool crosses = p.plan.others() > 0;
  MoePushes<kInput> pushes(p, routing, epoch);
  if (crosses) {
    const MoeTraced work(p, DeviceWork::kStage);
    moe_stage(p, epoch, pushes);
  }
  {
    const MoeTraced work(p, DeviceWork::kPush);
    while (pushes.push_first()) continue;
  }
  if (!crosses) return true;
  const MoeTraced work(p, DeviceWork::kForward);
  if (!moe_forward<kInput>(p, epoch, pushes)) return false;
  while (pushes.push()) continue;
  return true;
}

/// intra_comm, one working warp of a dispatching CTA: routes, pushes, and then sums if its CTA does not
/// compute.
template <DataType kInput>
__device__ __forceinline__ void moe_dispatch(const MoeParameters& p, std::uint64_t epoch,
                                             const MoeWorkers& workers, std::byte* memory) {
  MoeRouting routing(p, epoch, workers, memory);
  {
    const MoeTraced work(p, DeviceWork::kRoute);
    if (!routing.count() || !routing.place()) return;
  }
  std::int32_t* told = routing.told();
  if (blockIdx.x == 0) {
    const MoeTraced work(p, DeviceWork::kTable);
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
  if (!moe_send_rows<kInput>(p, epoch, routing)) return;
  if (static_cast<std::int32_t>(blockIdx.x) < p.summing_ctas) moe_sum<kInput>(p, epoch);
}

}  // namespace mkernel::kernels
