// Barriers that nobody resets: counts that only grow, over all launches.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/global.cuh"
#include "kernels/cuda/sync/thread_group.cuh"
#include "kernels/cuda/sync/wait.cuh"
#include "mkernel/device_endpoint.h"

namespace mkernel::kernels {

/// All threads of every CTA but 0, which polls; all of them resident. What any of them wrote before is
/// visible to all of them afterwards. False when it gave up, the same in the whole CTA.
///
/// Every CTA counts itself in once per barrier, so barrier b of a launch is over at (b + 1) * CTAs; what a
/// CTA found there says which b it is.
__device__ __forceinline__ bool meet_grid(LaunchControl& control, DeviceRole role,
                                          std::uint64_t deadline_ns) {
  const Cta cta;
  cta.sync();
  bool over = true;
  if (cta.leads()) {
    const std::uint64_t ctas = cta_count() - 1;
    const std::uint64_t before = control.met_before;
    const std::uint64_t mine = ptx::atom_add_release_gpu(&control.met, 1) - before;
    over = wait_until([&control] { return ptx::ld_acquire_gpu(&control.met); },
                      before + (mine / ctas + 1) * ctas, {role, DeviceTag::kGridBarrier, -1, 0},
                      {&control, deadline_ns});
  }
  return cta.agree(over);
}

/// One whole warp of every rank of the node, one at a time. Release and acquire at system scope: what the
/// ranks wrote before, into whose memory ever, is visible to all of them afterwards. The same in all lanes.
__device__ __forceinline__ bool meet_node(const NodeBarrier& node, LaunchControl& control, DeviceRole role,
                                          std::uint64_t deadline_ns) {
  const std::uint32_t lane = thread_index() % 32;
  const std::uint64_t phase = control.node_phase + 1;
  const auto word = [&node](std::uint32_t owner, std::uint32_t writer) {
    return reinterpret_cast<std::uint64_t*>(node.words[owner]) + writer;
  };
  __syncwarp();
  for (std::uint32_t peer = lane; peer < node.local_size; peer += 32) {
    ptx::st_release_sys(word(peer, node.local_rank), phase);
  }
  bool over = true;
  for (std::uint32_t peer = lane; over && peer < node.local_size; peer += 32) {
    over =
        wait_at_least(word(node.local_rank, peer), phase,
                      {role, DeviceTag::kNodeBarrier, node.rank_of_local[peer], 0}, {&control, deadline_ns});
  }
  over = __all_sync(~0U, over) != 0;
  if (lane == 0 && over) control.node_phase = phase;
  __syncwarp();
  return over;
}

}  // namespace mkernel::kernels
