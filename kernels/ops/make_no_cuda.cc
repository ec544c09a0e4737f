// make_*_on_gpu() of a build without CUDA.
#include <string>

#include "kernels/ops/make.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {

namespace {

Status without_cuda(OpKind kind, const MakeOptions& options) {
  return {StatusCode::kUnimplemented, std::string(name_of(kind)) + " on GPU " +
                                          std::to_string(options.device) +
                                          ": this libmkernel was built without CUDA"};
}

}  // namespace

Result<std::unique_ptr<GemmOperation>> make_gemm_on_gpu(OpKind kind, const GemmShape&, const Topology&,
                                                        std::uint32_t, const MakeOptions& options) {
  return without_cuda(kind, options);
}

Result<std::unique_ptr<MoeOperation>> make_moe_on_gpu(const MoeShape&, const Topology&, std::uint32_t,
                                                      const MakeOptions& options) {
  return without_cuda(OpKind::kMoeDispatchGemm, options);
}

Result<std::unique_ptr<GroupedGemmOperation>> make_grouped_gemm_on_gpu(const GroupedGemmShape&,
                                                                       const Topology&, std::uint32_t,
                                                                       const MakeOptions& options) {
  return without_cuda(OpKind::kGroupedGemm, options);
}

Result<std::unique_ptr<AttentionOperation>> make_attention_on_gpu(OpKind kind, const AttentionShape&,
                                                                  const Topology&, std::uint32_t,
                                                                  const MakeOptions& options) {
  return without_cuda(kind, options);
}

Result<std::unique_ptr<AttentionBackwardOperation>> make_attention_backward_on_gpu(
    OpKind kind, const AttentionShape&, const Topology&, std::uint32_t, const MakeOptions& options) {
  return without_cuda(kind, options);
}

}  // namespace mkernel::kernels
