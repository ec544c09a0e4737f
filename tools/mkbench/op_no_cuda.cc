// mkbench where there is no CUDA toolkit.
#include "tools/mkbench/nccl.h"
#include "tools/mkbench/op_cuda.h"

namespace mkernel::bench {

Result<Row> measure_op_cuda(Group&, OpKind, const GemmShape&, const OpCudaOptions&) {
  return Status(StatusCode::kUnimplemented, "mkbench was built without CUDA");
}

Result<Row> measure_moe_cuda(Group&, const MoeShape&, const OpCudaOptions&) {
  return Status(StatusCode::kUnimplemented, "mkbench was built without CUDA");
}

Result<Row> measure_attention_cuda(Group&, OpKind, const AttentionShape&, const OpCudaOptions&) {
  return Status(StatusCode::kUnimplemented, "mkbench was built without CUDA");
}

Result<Row> measure_backward_cuda(Group&, OpKind, const AttentionShape&, const OpCudaOptions&) {
  return Status(StatusCode::kUnimplemented, "mkbench was built without CUDA");
}

Result<Row> measure_varlen_cuda(Group&, OpKind, const AttentionShape&, const std::vector<std::int32_t>&,
                                const OpCudaOptions&) {
  return Status(StatusCode::kUnimplemented, "mkbench was built without CUDA");
}

Result<Nccl> Nccl::join(Group&, int) {
  return Status(StatusCode::kUnavailable, "mkbench was built without CUDA");
}
void Nccl::Destroy::operator()(void*) const {}

}  // namespace mkernel::bench
