// The backward pass of attention by pairs of a tile of queries and a tile of keys of a head: weights again
// from the log-sum-exps, the gradients of the scores, and what they add to the gradients of the operands. In
// fp32.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/attention/blockwise.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// A head of queries, and a block of keys that it meets: what is the same for all their tiles.
struct BackwardHead {
  HeadRows q, out, d_out;
  HeadRows k, v;
  const float* lse;         ///< of the queries
  Positions queries, keys;  ///< where their rows stand
  AttentionWindow window;   ///< a causal mask ends it at the right
  double scale;

  /// Whether a query of a tile may see a key of the other one. Each tile lies in one part.
  bool sees(Range query_rows, Range key_rows) const;
};

/// Rows `rows` of a block, cut into tiles: of at most kAttentionTile rows, each in one part of the positions.
std::vector<Range> attention_tiles(const Positions& positions, Range rows);

/// Adds what pairs of tiles contribute, in the order of their rows. Not thread-safe; one per thread, reused.
class BackwardTiles {
 public:
  explicit BackwardTiles(std::int64_t head_dim);

  /// What all queries of the head add to d_k and d_v of a tile of keys, [rows of the tile, head_dim].
  void add_to_keys(const BackwardHead& head, Range key_rows, float* d_k, float* d_v);
  /// What the keys `key_rows`, of any number, add to d_q of a tile of queries, [rows of the tile, head_dim].
  void add_to_queries(const BackwardHead& head, Range query_rows, Range key_rows, float* d_q);

 private:
  void load_queries(const BackwardHead& head, Range rows);
  void load_keys(const BackwardHead& head, Range rows);
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
