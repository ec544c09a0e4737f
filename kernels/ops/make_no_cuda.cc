// make_gemm_on_gpu() of a build without CUDA.
#include <string>

#include "kernels/ops/make.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {

Result<std::unique_ptr<GemmOperation>> make_gemm_on_gpu(OpKind kind, const GemmShape&, const GroupView&,
                                                        Topology, const MakeOptions& options) {
  return Status(StatusCode::kUnimplemented, std::string(name_of(kind)) + " on GPU " +
                                                std::to_string(options.device) +
                                                ": this libmkernel was built without CUDA");
}

}  // namespace mkernel::kernels
