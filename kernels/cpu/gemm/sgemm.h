// The one fp32 matrix product of the cpu executor.
#pragma once

#include <cstdint>

namespace mkernel::kernels {

/// How the second operand of sgemm() lies in memory.
enum class Transpose { kNo, kYes };

/// c[m, n] = a[m, k] x op(b), or c += with `accumulate`, on the caller's thread; all row-major with `ld*`
/// elements between rows. b: [k, n], or [n, k] with Transpose::kYes. Any number of threads at a time; the
/// result depends on values and shape only, never on the caller or its neighbours.
void sgemm(Transpose transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
           std::int64_t lda, const float* b, std::int64_t ldb, bool accumulate, float* c, std::int64_t ldc);

}  // namespace mkernel::kernels
