// What the three GEMM operations check and say about a shape before anything is planned.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/types.h"
#include "kernels/plan/machine.h"
#include "kernels/plan/topology.h"

namespace mkernel::kernels {

/// "ag_gemm", "gemm_rs", "gemm_ar", ...
const char* name_of(OpKind kind);

/// Refuses sizes below 1, sizes that a BLAS call or one put cannot take, unknown types and layouts:
/// kInvalidArgument with field, value and limit.
Status check_shape(OpKind kind, const GemmShape& shape);

/// The same, and what `machine` refuses: kInvalidArgument for more ranks than it allows, for rows that TMA
/// cannot move (n % 8, k % 8), and for a number of CTAs `comm_ctas` that is not even and within half of the
/// multiprocessors, or for too few of these.
Status check_on_machine(OpKind kind, const GemmShape& shape, const Topology& topology, std::int32_t comm_ctas,
                        const Machine& machine);

/// Refuses operands that are null although `rank` of `world` has elements there, and gathered rows where none
/// are: kInvalidArgument naming the field.
Status check_operands(OpKind kind, const GemmShape& shape, const GemmArguments& arguments, std::uint32_t rank,
                      std::uint32_t world);

/// "ag_gemm m=4096 n=1024 k=4096 bf16 row-major"
std::string signature_of(OpKind kind, const GemmShape& shape);

}  // namespace mkernel::kernels
