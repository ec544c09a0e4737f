// The product of two matrices on one Hopper GPU: the GEMM body alone, or the body for few rows. Plain C++: no
// CUDA header needed.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/plan/sm90_skinny.h"
#include "mkernel/ops.h"
#include "proto/abi/status.h"

struct CUstream_st;

namespace mkernel::kernels {

/// c[m, n] = a[m, k] x b[k, n] on the current device; all dense in device memory, 16-byte aligned, c
/// overlapping neither a nor b. Sums are fp32 in one fixed order: the same bits on every run of the same
/// plan. `plan`: instead of plan_sm90_local().
///
/// Asynchronous: queued on `stream` (null: the default stream), can be captured in a graph; the operands must
/// stay until it is done. Any thread. Errors, before anything is queued: kInvalidArgument naming field, value
/// and limit (k % 8 and n % 8 must be 0, each dimension under 2^31; TMA's 16-byte rows); kUnimplemented when
/// the device is not of compute capability 9.0; else CUDA's error.
Status gemm_sm90(const GemmArguments& arguments, const GemmShape& shape,
                 const std::optional<Sm90LocalPlan>& plan, CUstream_st* stream);

}  // namespace mkernel::kernels
