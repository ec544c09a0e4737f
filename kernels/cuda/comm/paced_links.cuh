// The wait of a kernel for links that are modelled.
#pragma once

#include <cstdint>

#include "kernels/cuda/comm/paced_links.h"
#include "kernels/cuda/ptx/address.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

MK_HOST_DEVICE inline bool are_paced(const PacedLinks& links) {
  return __builtin_expect(links.fs_per_byte != 0, 0);
}

/// One thread, when `bytes` for other ranks of the node are stored and before it says that they are there:
/// until links would have brought them, PacedLinks::most_ns at most.
__device__ __forceinline__ void await_links(const PacedLinks& links, std::uint64_t bytes) {
  if (!are_paced(links)) return;
  const std::uint64_t begin = ptx::globaltimer(), busy = bytes * links.fs_per_byte / 1'000'000;
  std::uint64_t before = ptx::ld_relaxed_gpu(links.free_ns), end = 0;
  for (bool taken = false; !taken;) {
    end = (before < begin ? begin : before) + busy;
    const std::uint64_t seen = ptx::atom_cas_relaxed_gpu(links.free_ns, before, end);
    taken = seen == before;
    before = seen;
  }
  const std::uint64_t there = end + links.latency_ns;
  for (std::uint64_t now = begin; now < there && now - begin < links.most_ns;) now = ptx::globaltimer();
}

}  // namespace mkernel::kernels
