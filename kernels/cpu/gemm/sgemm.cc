#include "kernels/cpu/gemm/sgemm.h"

#include <blis.h>

namespace mkernel::kernels {

void sgemm(Transpose transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
           std::int64_t lda, const float* b, std::int64_t ldb, bool accumulate, float* c, std::int64_t ldc) {
  if (m == 0 || n == 0) return;
  float one = 1, beta = accumulate ? 1 : 0;
  // One thread for this call, whatever BLIS_NUM_THREADS says: compute threads are the executor's to plan.
  rntm_t runtime = BLIS_RNTM_INITIALIZER;
  bli_rntm_set_num_threads(1, &runtime);
  const trans_t trans_b = transpose_b == Transpose::kYes ? BLIS_TRANSPOSE : BLIS_NO_TRANSPOSE;
  // BLIS takes operands it only reads by non-const pointer.
  bli_sgemm_ex(BLIS_NO_TRANSPOSE, trans_b, m, n, k, &one, const_cast<float*>(a), lda, 1,
               const_cast<float*>(b), ldb, 1, &beta, c, ldc, 1, nullptr, &runtime);
}

}  // namespace mkernel::kernels
