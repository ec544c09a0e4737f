#include "kernels/ops/ring_attention/attention_backward/queries.h"

#include <cstddef>
#include <cstdint>

#include "kernels/base/types.h"
#include "kernels/ops/ring_attention/attention/parameters.h"
#include "kernels/ops/ring_attention/shape.h"

namespace mkernel::kernels {

AttentionBackwardScratch attention_backward_scratch(const AttentionShape& shape,
                                                    const AttentionBackwardParts& parts) {
  constexpr std::int64_t kWord = sizeof(std::uint64_t), kAlign = 128;
  const std::int64_t heads = shape.batch * shape.heads, units = shape.head_dim / 64;
  const std::int64_t tiles = heads * (parts.tiles(0) + parts.tiles(1));
  AttentionBackwardScratch at{};
  const auto place = [&at](std::int64_t bytes) {
    const std::int64_t begin = at.bytes;
    at.bytes += (bytes + kAlign - 1) / kAlign * kAlign;
    return begin;
  };
  place(sizeof(AttentionBackwardCounters));
  at.prepared = place(heads * kWord);
  at.added = place(tiles * units * kWord);
  at.rows = place(tiles * static_cast<std::int64_t>(sizeof(AttentionBackwardRows)));
  at.sums = place(tiles * kBackwardTileQueries * shape.head_dim * static_cast<std::int64_t>(sizeof(float)));
  return at;
}

void describe_backward_queries(const AttentionShape& shape, const AttentionBackwardParts& parts, void* memory,
                               AttentionBackwardQueries& described) {
  const AttentionBackwardScratch at = attention_backward_scratch(shape, parts);
  const auto narrow = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
  auto* const base = static_cast<std::byte*>(memory);
  AttentionBackwardQueries& p = described;
  p.counters = reinterpret_cast<AttentionBackwardCounters*>(base);
  p.prepared = reinterpret_cast<std::uint64_t*>(base + at.prepared);
  p.added = reinterpret_cast<std::uint64_t*>(base + at.added);
  p.rows = reinterpret_cast<AttentionBackwardRows*>(base + at.rows);
  p.sums = reinterpret_cast<float*>(base + at.sums);
  p.scale = static_cast<float>(attention_scale(shape));
  p.scale_log2 = attention_scale_log2(shape);
  p.queries = narrow(parts.queries[0] + parts.queries[1]);
  p.first_queries = narrow(parts.queries[0]);
  p.first_tiles = narrow(parts.tiles(0));
  p.all_heads = narrow(shape.batch * shape.heads);
  p.row_bytes = narrow(shape.heads * shape.head_dim * static_cast<std::int64_t>(element_bytes(shape.dtype)));
  p.heads = narrow(shape.heads);
  p.query_tiles = narrow(parts.tiles(0) + parts.tiles(1));
  p.group = narrow(shape.heads / shape.kv_heads);
}

MatrixView backward_rows_view(const AttentionBackwardQueries& described) {
  constexpr std::int64_t kColumns = sizeof(AttentionBackwardRows) / 2;  // in elements of two bytes
  return {.base = described.rows,
          .rows = std::int64_t{described.all_heads} * described.query_tiles,
          .columns = kColumns,
          .box_rows = 1,
          .box_columns = kColumns};
}

}  // namespace mkernel::kernels
