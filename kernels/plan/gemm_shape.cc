#include "kernels/plan/gemm_shape.h"

#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>

#include "proto/abi/version.h"

namespace mkernel::kernels {
namespace {

constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();  // of a BLAS argument
constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;                 // offsets in a region: 48 bits

Status refuse(OpKind kind, const std::string& what) {
  return {StatusCode::kInvalidArgument, std::string(name_of(kind)) + ": " + what};
}

Status check_size(OpKind kind, const char* field, std::int64_t value, std::int64_t limit) {
  if (value >= 1 && value <= limit) return {};
  return refuse(kind,
                std::string(field) + " = " + std::to_string(value) + ", must be 1.." + std::to_string(limit));
}

}  // namespace

const char* name_of(OpKind kind) {
  switch (kind) {
    case OpKind::kAgGemm: return "ag_gemm";
    case OpKind::kGemmRs: return "gemm_rs";
    case OpKind::kGemmAr: return "gemm_ar";
    case OpKind::kMoeDispatchGemm: return "moe_dispatch_gemm";
    case OpKind::kRingAttention: return "ring_attention";
    case OpKind::kGroupedGemm: return "grouped_gemm";
  }
  return "unknown operation";
}

Status check_shape(OpKind kind, const GemmShape& shape) {
  MK_RETURN_IF_ERROR(check_size(kind, "m", shape.m, kMaxSize));
  MK_RETURN_IF_ERROR(check_size(kind, "n", shape.n, kMaxSize));
  // One row of a travels in one put.
  MK_RETURN_IF_ERROR(check_size(kind, "k", shape.k, abi::kMaxPutBytes / 2));
  MK_RETURN_IF_ERROR(check_size(kind, "m * k", shape.m * shape.k, kMaxElements));
  MK_RETURN_IF_ERROR(check_size(kind, "k * n", shape.k * shape.n, kMaxElements));
  MK_RETURN_IF_ERROR(check_size(kind, "m * n", shape.m * shape.n, kMaxElements));
  if (shape.dtype != DataType::kBf16 && shape.dtype != DataType::kF16) {
    return refuse(kind, "dtype = " + std::to_string(static_cast<std::uint32_t>(shape.dtype)) +
                            ", must be bf16 (1) or f16 (2)");
  }
  if (shape.b_layout != Layout::kRowMajor && shape.b_layout != Layout::kColumnMajor) {
    return refuse(kind, "b_layout = " + std::to_string(static_cast<std::uint32_t>(shape.b_layout)) +
                            ", must be row-major (0) or column-major (1)");
  }
  return {};
}

Status check_on_machine(OpKind kind, const GemmShape& shape, const Topology& topology, std::int32_t comm_ctas,
                        const Machine& machine) {
  MK_RETURN_IF_ERROR(check_shape(kind, shape));
  for (const auto& [name, value, most] :
       {std::tuple{"world", topology.world(), machine.most_ranks},
        std::tuple{"nodes", topology.nodes(), machine.most_nodes},
        std::tuple{"ranks of a node", topology.ranks_per_node(), machine.most_node_ranks}}) {
    if (value > static_cast<std::uint32_t>(most)) {
      return refuse(kind, std::string(name) + " = " + std::to_string(value) + ", must be 1.." +
                              std::to_string(most) + " on this executor");
    }
  }
  for (const auto& [name, value] : {std::pair{"n", shape.n}, std::pair{"k", shape.k}}) {
    if (value % machine.row_elements != 0) {
      return refuse(kind, std::string(name) + " = " + std::to_string(value) + ", must be a multiple of " +
                              std::to_string(machine.row_elements) +
                              " on the cuda executor (TMA moves rows of whole 16 bytes)");
    }
  }
  constexpr std::int32_t kFewestSms = 4;  // two that watch and move, a cluster of two that computes
  const std::int32_t sms = machine.sms;
  if (sms < kFewestSms)
    return refuse(kind, "sms = " + std::to_string(sms) + ", must be at least " + std::to_string(kFewestSms));
  if (comm_ctas >= 0 && comm_ctas % machine.cta_multiple == 0 && comm_ctas <= sms / 2) return {};
  return refuse(kind, "comm_ctas = " + std::to_string(comm_ctas) + ", must be " +
                          (machine.cta_multiple == 2 ? "even, " : "") + "0.." + std::to_string(sms / 2));
}

Status check_operands(OpKind kind, const GemmShape& shape, const GemmArguments& arguments, std::uint32_t rank,
                      std::uint32_t world) {
  // A rank without rows has no operand (AG) or result (RS) to point at.
  const bool rows = block_range(shape.m, world, rank).size() > 0;
  if (arguments.a == nullptr && (rows || kind != OpKind::kAgGemm)) return refuse(kind, "a is null");
  if (arguments.b == nullptr) return refuse(kind, "b is null");
  if (arguments.c == nullptr && (rows || kind != OpKind::kGemmRs)) return refuse(kind, "c is null");
  if (arguments.gathered != nullptr && kind != OpKind::kAgGemm)
    return refuse(kind, "gathered is not null, and only ag_gemm gathers rows");
  return {};
}

std::string signature_of(OpKind kind, const GemmShape& shape) {
  return std::string(name_of(kind)) + " m=" + std::to_string(shape.m) + " n=" + std::to_string(shape.n) +
         " k=" + std::to_string(shape.k) + (shape.dtype == DataType::kBf16 ? " bf16" : " f16") +
         (shape.b_layout == Layout::kRowMajor ? " row-major" : " column-major");
}

}  // namespace mkernel::kernels
