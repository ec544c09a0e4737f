// The gathered rows, for callers who want them too: copied out of the workspace behind a launch.
#pragma once

#include <cstdint>

#include "kernels/ops/ag_gemm/parameters.h"
#include "proto/abi/status.h"

struct CUstream_st;

namespace mkernel::kernels {

/// Queues the copy, of about `ctas` CTAs, right behind its launch: no other launch of the group may lie
/// between them. The next one writes into the other half; the one after that waits for this rank, which is
/// through here before it begins the next one. Copies nothing when the launch has failed.
Status copy_gathered(const GatheredRows& rows, std::int32_t ctas, CUstream_st* stream);

/// load_kernel() of its kernel.
Status load_copy_gathered();

}  // namespace mkernel::kernels
