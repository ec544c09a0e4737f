// The words of a node's barrier: each rank writes one in the memory of every other. See
// cuda/comm/barrier.cuh.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mkernel::kernels {

/// Addresses and tables in GPU memory.
struct NodeBarrier {
  std::byte* const* words = nullptr;            ///< by local rank: where its words are, here or over NVLink
  const std::int32_t* rank_of_local = nullptr;  ///< rank in the group, for errors
  std::uint32_t local_rank = 0;
  std::uint32_t local_size = 0;
};

}  // namespace mkernel::kernels
