#include "kernels/plan/gemm_shape.h"

#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>

#include "kernels/plan/product_columns.h"
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

/// The tiles of all products together are counted in 32 bits too.
Status check_more_n(OpKind kind, const GemmShape& shape) {
  std::int64_t all = shape.n;
  bool ended = false;
  for (int i = 0; i < kMostMoreB; ++i) {
    const std::int64_t n = shape.more_n[i];
    const std::string field = "more_n[" + std::to_string(i) + "]";
    if (n != 0 && kind != OpKind::kAgGemm)
      return refuse(kind, field + " = " + std::to_string(n) + ", and only ag_gemm takes more than one b");
    if (n != 0 && ended)
      return refuse(kind, field + " = " + std::to_string(n) + ", and the one before it is 0");
    if (n == 0) {
      ended = true;
      continue;
    }
    MK_RETURN_IF_ERROR(check_size(kind, field.c_str(), n, kMaxSize));
    MK_RETURN_IF_ERROR(check_size(kind, ("k * " + field).c_str(), shape.k * n, kMaxElements));
    MK_RETURN_IF_ERROR(check_size(kind, ("m * " + field).c_str(), shape.m * n, kMaxElements));
    all += n;
  }
  return check_size(kind, "n of all products", all, kMaxSize);
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
    case OpKind::kAttention: return "attention";
    case OpKind::kAttentionBackward: return "attention_backward";
    case OpKind::kRingAttentionBackward: return "ring_attention_backward";
  }
  return "unknown operation";
}

Status check_shape(OpKind kind, const GemmShape& shape) {
  MK_RETURN_IF_ERROR(check_size(kind, "m", shape.m, kMostRows));
  MK_RETURN_IF_ERROR(check_size(kind, "n", shape.n, kMaxSize));
  // One row of a travels in one put.
  MK_RETURN_IF_ERROR(check_size(kind, "k", shape.k, abi::kMaxPutBytes / 2));
  MK_RETURN_IF_ERROR(check_size(kind, "m * k", shape.m * shape.k, kMaxElements));
  MK_RETURN_IF_ERROR(check_size(kind, "k * n", shape.k * shape.n, kMaxElements));
  MK_RETURN_IF_ERROR(check_size(kind, "m * n", shape.m * shape.n, kMaxElements));
  MK_RETURN_IF_ERROR(check_more_n(kind, shape));
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
  for (const auto& [name, value] :
       {std::pair{"n", shape.n}, std::pair{"k", shape.k}, std::pair{"more_n[0]", shape.more_n[0]},
        std::pair{"more_n[1]", shape.more_n[1]}, std::pair{"more_n[2]", shape.more_n[2]}}) {
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
  for (int product = 0; product < products_of(shape); ++product) {
    if (b_of(arguments, product) == nullptr)
      return refuse(kind, std::string(kNamesOfB[product]) + " is null");
    if (c_of(arguments, product) == nullptr && (rows || kind != OpKind::kGemmRs))
      return refuse(kind, std::string(kNamesOfC[product]) + " is null");
  }
  if (arguments.gathered != nullptr && kind != OpKind::kAgGemm)
    return refuse(kind, "gathered is not null, and only ag_gemm gathers rows");
  return {};
}

std::string signature_of(OpKind kind, const GemmShape& shape) {
  std::string n = std::to_string(shape.n);
  for (int product = 1; product < products_of(shape); ++product)
    n += "+" + std::to_string(columns_of(shape, product));
  return std::string(name_of(kind)) + " m=" + std::to_string(shape.m) + " n=" + n +
         " k=" + std::to_string(shape.k) + (shape.dtype == DataType::kBf16 ? " bf16" : " f16") +
         (shape.b_layout == Layout::kRowMajor ? " row-major" : " column-major");
}

}  // namespace mkernel::kernels
