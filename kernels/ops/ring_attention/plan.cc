#include "kernels/ops/ring_attention/plan.h"

#include <algorithm>

#include "kernels/cpu/attention/blockwise.h"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/cuts.h"
#include "proto/abi/version.h"

namespace mkernel::kernels {
namespace {

constexpr OpKind kKind = OpKind::kRingAttention;
constexpr std::int64_t kElementBytes = 2;

Status check(const AttentionShape& shape) {
  MK_RETURN_IF_ERROR(check_ring_attention_shape(OpKind::kRingAttention, shape));
  const double position_bytes = 2.0 * kElementBytes * double(shape.kv_heads) * double(shape.head_dim);
  if (position_bytes <= abi::kMaxPutBytes) return {};
  return {StatusCode::kInvalidArgument,
          "ring_attention: kv_heads * head_dim = " + std::to_string(shape.kv_heads * shape.head_dim) +
              ", but it must be so small that one position fits a put of " +
              std::to_string(abi::kMaxPutBytes) + " bytes"};
}

}  // namespace

Result<RingAttentionPlan> RingAttentionPlan::make(const AttentionShape& shape, const Topology& topology) {
  MK_RETURN_IF_ERROR(check(shape));
  return RingAttentionPlan(shape, topology);
}

RingAttentionPlan::RingAttentionPlan(const AttentionShape& shape, const Topology& topology)
    : shape_(shape), topology_(topology) {
  const std::int64_t position_bytes = 2 * static_cast<std::int64_t>(row_bytes());
  page_rows_ = std::max<std::int64_t>(1, kChunkBytes / position_bytes);
  if (page_rows_ > kAttentionTile) page_rows_ -= page_rows_ % kAttentionTile;  // whole tiles
  std::int64_t longest = 0;
  for (std::uint32_t rank = 0; rank < topology_.world(); ++rank) {
    longest = std::max(longest, positions(rank).size());
  }
  const std::uint64_t slot =
      static_cast<std::uint64_t>(shape_.batch) * static_cast<std::uint64_t>(longest * position_bytes);
  workspace_.local_ranks = topology_.ranks_per_node();
  workspace_.slot_bytes = (slot + RingWorkspace::kPage - 1) / RingWorkspace::kPage * RingWorkspace::kPage;
}

std::string RingAttentionPlan::signature() const {
  return attention_signature(kKind, shape_);
}

Requirements RingAttentionPlan::requirements() const {
  return {.workspace_bytes = workspace_.bytes(), .lanes = topology_.nodes() > 1 ? kLanes : 0};
}

std::uint32_t RingAttentionPlan::neighbour(std::uint32_t rank, std::uint32_t distance) const {
  return topology_.rail_peer(rank, (topology_.node_of(rank) + distance) % topology_.nodes());
}

std::uint64_t RingAttentionPlan::row_bytes() const {
  return static_cast<std::uint64_t>(shape_.kv_heads * shape_.head_dim * kElementBytes);
}

std::uint64_t RingAttentionPlan::pages(std::uint32_t rank) const {
  const std::int64_t per_batch = ceil_div(positions(rank).size(), page_rows_);
  return static_cast<std::uint64_t>(per_batch * shape_.batch);
}

KvPage RingAttentionPlan::page(std::uint32_t rank, std::uint64_t index) const {
  const std::int64_t length = positions(rank).size();
  const std::int64_t per_batch = ceil_div(length, page_rows_);
  KvPage page;
  page.batch = static_cast<std::int64_t>(index) / per_batch;
  page.rows.begin = static_cast<std::int64_t>(index) % per_batch * page_rows_;
  page.rows.end = std::min(length, page.rows.begin + page_rows_);
  page.offset = static_cast<std::uint64_t>(page.batch * length + page.rows.begin) * 2 * row_bytes();
  page.bytes = static_cast<std::uint64_t>(page.rows.size()) * 2 * row_bytes();
  return page;
}

std::vector<QueryTile> RingAttentionPlan::tiles(std::uint32_t rank) const {
  std::vector<QueryTile> tiles;
  const Positions held = positions(rank);
  for (int part = 0; part < 2; ++part) {
    const Range rows = held.rows(part);
    for (std::int64_t row = rows.begin; row < rows.end; row += kAttentionTile) {
      const Range tile{row, std::min(row + kAttentionTile, rows.end)};
      for (std::int64_t batch = 0; batch < shape_.batch; ++batch) {
        for (std::int64_t head = 0; head < shape_.heads; ++head) tiles.push_back({batch, head, tile});
      }
    }
  }
  return tiles;
}

std::uint64_t RingAttentionPlan::received_before(std::uint32_t rank, std::uint32_t step) const {
  std::uint64_t pages_before = 0;
  for (std::uint32_t s = 1; s < step; ++s) pages_before += pages(origin(rank, s));
  return pages_before;
}

std::uint64_t RingAttentionPlan::sent_before(std::uint32_t rank, std::uint32_t step) const {
  std::uint64_t pages_before = 0;
  for (std::uint32_t s = 0; s < std::min(step, steps() - 1); ++s) pages_before += pages(origin(rank, s));
  return pages_before;
}

}  // namespace mkernel::kernels
