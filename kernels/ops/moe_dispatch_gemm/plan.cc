#include "kernels/ops/moe_dispatch_gemm/plan.h"

#include "proto/abi/version.h"

namespace mkernel::kernels {
namespace {

constexpr std::int64_t kMaxField = (std::int64_t{1} << 31) - 1;  // what a BLAS call takes
constexpr double kMaxWorkspace = 2.8e14;                         // offsets in a work slot have 48 bits

Status refuse(const std::string& field, std::int64_t value, const std::string& limit) {
  return {StatusCode::kInvalidArgument,
          "moe: " + field + " = " + std::to_string(value) + ", but it must be " + limit};
}

Status check_range(const char* field, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return {};
  return refuse(field, value, std::to_string(least) + ".." + std::to_string(most));
}

Status check(const MoeShape& shape, const Topology& topology) {
  constexpr std::int64_t kMaxColumns = abi::kMaxPutBytes / 2;  // one row is at most one put
  MK_RETURN_IF_ERROR(check_range("max_tokens", shape.max_tokens, 1, kMaxField));
  MK_RETURN_IF_ERROR(check_range("hidden", shape.hidden, 1, kMaxColumns));
  MK_RETURN_IF_ERROR(check_range("n", shape.n, 1, kMaxColumns));
  MK_RETURN_IF_ERROR(check_range("intermediate", shape.intermediate, 0, kMaxField / 2));
  MK_RETURN_IF_ERROR(check_range("experts", shape.experts, 1, 1 << 20));
  MK_RETURN_IF_ERROR(check_range("topk", shape.topk, 1, shape.experts));
  if (shape.dtype != DataType::kBf16 && shape.dtype != DataType::kF16) {
    return refuse("dtype", static_cast<std::int64_t>(shape.dtype), "bf16 (1) or f16 (2)");
  }
  constexpr std::int64_t kMaxEntries = (abi::kMaxPutBytes - sizeof(MoeHeader)) / 8;
  if (shape.max_tokens > kMaxEntries / shape.topk) {
    return refuse("max_tokens", shape.max_tokens,
                  "at most " + std::to_string(kMaxEntries / shape.topk) +
                      " with topk = " + std::to_string(shape.topk) + ": the metadata of a launch is one put");
  }
  const double bytes = double(topology.world()) * double(shape.max_tokens) *
                       (8.0 * double(shape.hidden) + 8.0 * double(shape.n) + 16.0 * double(shape.topk));
  if (bytes > kMaxWorkspace) {
    return refuse("max_tokens", shape.max_tokens, "so small that the workspace stays below 2^48 bytes");
  }
  return {};
}

std::uint64_t whole_pages(std::uint64_t bytes) {
  constexpr std::uint64_t kPage = 4096;
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

Result<MoePlan> MoePlan::make(const MoeShape& shape, const Topology& topology) {
  MK_RETURN_IF_ERROR(check(shape, topology));
  return MoePlan(shape, topology);
}

MoePlan::MoePlan(const MoeShape& shape, const Topology& topology) : shape_(shape), topology_(topology) {
  rows_per_put_ = std::max<std::int64_t>(1, kChunkBytes / static_cast<std::int64_t>(row_bytes()));
  sums_per_put_ = std::max<std::int64_t>(1, kChunkBytes / static_cast<std::int64_t>(sum_bytes()));
  for (std::uint32_t rank = 0; rank < topology.world(); ++rank) {
    owner_.insert(owner_.end(), static_cast<std::size_t>(experts(rank).size()), rank);
  }
  const auto tokens = static_cast<std::uint64_t>(shape.max_tokens);
  workspace_.nodes = topology.nodes();
  workspace_.ranks_per_node = topology.ranks_per_node();
  workspace_.meta_bytes = whole_pages(meta_bytes(shape.max_tokens));
  workspace_.rows_bytes = whole_pages(tokens * row_bytes());
  workspace_.sums_bytes = whole_pages(tokens * sum_bytes());
  workspace_.partials_bytes = whole_pages(tokens * static_cast<std::uint64_t>(shape.n) * sizeof(float));
}

std::string MoePlan::signature() const {
  return "moe max_tokens=" + std::to_string(shape_.max_tokens) + " hidden=" + std::to_string(shape_.hidden) +
         " n=" + std::to_string(shape_.n) + " intermediate=" + std::to_string(shape_.intermediate) +
         " experts=" + std::to_string(shape_.experts) + " topk=" + std::to_string(shape_.topk) +
         (shape_.dtype == DataType::kBf16 ? " bf16" : " f16");
}

Requirements MoePlan::requirements() const {
  return {.workspace_bytes = workspace_.bytes(), .lanes = topology_.nodes() > 1 ? kLanes : 0};
}

}  // namespace mkernel::kernels
