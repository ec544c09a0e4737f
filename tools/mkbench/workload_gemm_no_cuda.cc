// Built instead of workload_gemm_cuda.cc where there is no CUDA toolkit.
#include "tools/mkbench/workload.h"

namespace mkernel::bench {

Result<std::unique_ptr<Workload>> make_gemm_cuda_workload(Group&, OpKind kind, const GemmShape&, int) {
  return Status(StatusCode::kUnimplemented,
                to_string(kind) + " on a GPU: this mkbench was built without CUDA");
}

}  // namespace mkernel::bench
