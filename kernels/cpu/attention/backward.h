// The backward pass of attention for one tile of queries and one tile of keys of a head: weights again from
// the log-sum-exps, the gradients of the scores, and what they add to the gradients of the operands. In fp32.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/attention/blockwise.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// What is the same for all tiles of one head of queries.
struct BackwardHead {
  HeadRows q, out, d_out;  ///< of `queries` rows
  HeadRows k, v;           ///< of `keys` rows
  const float* lse;        ///< [queries]
  std::int64_t queries, keys;
  bool causal;
  double scale;

  /// Whether a query of `rows` sees a key of the other rows.
  bool sees(Range rows, Range keys_of) const;
};

/// A tile of queries and one of keys, of at most kAttentionTile rows each. Not thread-safe; one per thread,
/// reused for every pair of tiles.
class BackwardTiles {
 public:
  explicit BackwardTiles(std::int64_t head_dim);

  void load_queries(const BackwardHead& head, Range rows);
  void load_keys(const BackwardHead& head, Range rows);
  /// Of the loaded tiles: adds to d_k and d_v, [keys of the tile, head_dim].
  void add_to_keys(const BackwardHead& head, float* d_k, float* d_v);
  /// Likewise to d_q, [queries of the tile, head_dim].
  void add_to_queries(const BackwardHead& head, float* d_q);

 private:
  /// Leaves weights and gradients of scores, the loaded queries as rows or as columns.
  void weigh(const BackwardHead& head, bool queries_are_rows);

  const std::int64_t head_dim_;
  Range queries_, keys_;
  std::vector<float> q_, d_out_, k_, v_;   // [kAttentionTile, head_dim]
  std::vector<float> row_;                 // [head_dim]
  std::vector<float> delta_, lse_;         // [kAttentionTile], of the queries
  std::vector<float> weights_, d_scores_;  // [kAttentionTile, kAttentionTile]
};

}  // namespace mkernel::kernels
