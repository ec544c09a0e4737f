// The backward pass of ring attention on the cpu executor.
#include <memory>
#include <string>

#include "kernels/ops/make.h"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {

Result<std::unique_ptr<AttentionBackwardOperation>> make_cpu_ring_attention_backward(
    const AttentionShape& shape, const Topology&, std::uint32_t) {
  constexpr OpKind kKind = OpKind::kRingAttentionBackward;
  MK_RETURN_IF_ERROR(check_ring_attention_shape(kKind, shape));
  return Status(StatusCode::kUnimplemented,
                std::string(name_of(kKind)) + ": the cpu executor does not have it yet");
}

}  // namespace mkernel::kernels
