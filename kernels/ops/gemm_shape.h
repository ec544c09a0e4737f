// What the three GEMM operations check and say about a shape before anything is planned.
#pragma once

#include <cstdint>
#include <string>

#include "mkernel/ops.h"

namespace mkernel::kernels {

/// "ag_gemm", "gemm_rs", "gemm_ar", ...
const char* name_of(OpKind kind);

/// Refuses sizes below 1, sizes that a BLAS call or one put cannot take, unknown types and layouts:
/// kInvalidArgument with field, value and limit.
Status check_shape(OpKind kind, const GemmShape& shape);

/// Refuses operands that are null although `rank` of `world` has elements there: kInvalidArgument naming the
/// field.
Status check_operands(OpKind kind, const GemmShape& shape, const GemmArguments& arguments, std::uint32_t rank,
                      std::uint32_t world);

/// "ag_gemm m=4096 n=1024 k=4096 bf16 row-major"
std::string signature_of(OpKind kind, const GemmShape& shape);

}  // namespace mkernel::kernels
