#include "tools/mkbench/workload.h"

#include <algorithm>
#include <cmath>

namespace mkernel::bench {

Verdict compare(const std::vector<float>& out, const std::vector<float>& reference,
                const std::vector<float>& bound) {
  Verdict verdict;
  verdict.elements = reference.size();
  double squares = 0, largest = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double difference = std::abs(static_cast<double>(out[i]) - reference[i]);
    // A NaN (an element nobody wrote) is neither above nor below a bound: ask for "within" and negate.
    if (!(difference <= bound[i])) ++verdict.wrong;
    if (!(difference <= largest)) largest = difference;
    squares += static_cast<double>(reference[i]) * reference[i];
  }
  const double rms = reference.empty() ? 0 : std::sqrt(squares / static_cast<double>(reference.size()));
  verdict.max_rel_err = rms > 0 ? largest / rms : largest;
  return verdict;
}

std::string to_string(OpKind kind) {
  switch (kind) {
    case OpKind::kAgGemm: return "ag_gemm";
    case OpKind::kGemmRs: return "gemm_rs";
    case OpKind::kGemmAr: return "gemm_ar";
    case OpKind::kMoeDispatchGemm: return "moe_dispatch_gemm";
    case OpKind::kRingAttention: return "ring_attention";
    case OpKind::kGroupedGemm: return "grouped_gemm";
    case OpKind::kAttention: return "attention";
    case OpKind::kAttentionBackward: return "attention_backward";
    case OpKind::kRingAttentionBackward: return "ring_attention_backward";
  }
  return "unknown";
}

std::string to_string(DataType type) {
  return type == DataType::kBf16 ? "bf16" : "f16";
}

}  // namespace mkernel::bench
