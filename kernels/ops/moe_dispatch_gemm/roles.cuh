// The kernel of the mixture of experts: who of its CTAs does what.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gemm/sm90_feed.cuh"
#include "kernels/cuda/launch/end.cuh"
#include "kernels/cuda/launch/first_cta.cuh"
#include "kernels/cuda/launch/rehearsal.cuh"
#include "kernels/ops/moe_dispatch_gemm/dispatch.cuh"
#include "kernels/ops/moe_dispatch_gemm/kernel.h"
#include "kernels/ops/moe_dispatch_gemm/parameters.h"
#include "kernels/ops/moe_dispatch_gemm/tasks.cuh"

namespace mkernel::kernels {

/// Its producing warps do more than those of a GEMM.
template <DataType kType, Layout kLayoutW>
struct MoeConfig : Sm90Config<kMoeTile, kType, kLayoutW> {
  static constexpr int kProducerRegisters = 72;
  static constexpr int kMultiplyRegisters = 216;
};

/// intra_comm: a dispatching CTA; over several nodes a warp of the first one sends.
template <class Config>
__device__ __forceinline__ void moe_intra_comm(const MoeParameters& p, std::uint64_t epoch,
                                               std::byte* memory) {
  constexpr int kWarps = Config::kThreads / 32;
  const bool sends = blockIdx.x == 0 && p.plan.others() > 0;
  const int workers = kWarps - (blockIdx.x == 0 ? 1 : 0) - (sends ? 1 : 0);
  const auto work = [&](int warp) {
    if (warp < workers) {
      moe_dispatch<Config::kInput>(p, epoch, {warp, workers}, memory);
    } else {
      MoeSender(p, epoch).run();
    }
    __syncwarp();
  };
  communicate<kWarps>(p.endpoint, 0, work, [](int) {});
}

/// Dispatching CTAs come first. The first of these sum when they have pushed; the others compute then, as all
/// others do from the beginning.
template <class Config>
__device__ __forceinline__ void moe_cta(const MoeParameters& p, std::byte* memory) {
  LaunchControl& control = *p.endpoint.control;
  if (control.stopped != 0) return count_out(control);
  begin_role(p.endpoint.trace);
  const std::uint64_t epoch = control.epoch;  // advanced only when every CTA has ended
  const auto cta = static_cast<std::int32_t>(blockIdx.x);
  if (cta < p.dispatch_ctas) {
    moe_intra_comm<Config>(p, epoch, memory);
    __syncthreads();  // the role ends with the CTA's last warp; tiles come where the routing was
    end_role(p.endpoint.trace, DeviceRole::kIntraComm);
    if (cta == 0) return;
  }
  if (cta >= p.summing_ctas) {
    begin_role(p.endpoint.trace);
    sm90_feed(MoeTasks<Config>(p, epoch), *reinterpret_cast<Sm90FeedShared<Config>*>(memory));
    end_role(p.endpoint.trace, DeviceRole::kCompute);
  }
  end_cta(control);
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void moe_kernel(const __grid_constant__ MoeParameters p) {
  extern __shared__ __align__(1024) std::byte memory[];
  if (!is_rehearsal(p.endpoint)) moe_cta<Config>(p, memory);
}

}  // namespace mkernel::kernels
