// Attention of one tile of query rows over key/value blocks that come one after the other: the online softmax
// in fp32. The result depends on the order of the blocks and on nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/memory/convert.h"
#include "kernels/plan/attention_sequences.h"
#include "kernels/plan/positions.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// Rows of a query tile and of a key tile at most. A tile never spans two parts of Positions, so its rows
/// have consecutive positions and a masked pair of tiles is recognised by its corners.
inline constexpr std::int64_t kAttentionTile = 128;

/// Rows of one head within a tensor whose rows are `stride` elements apart.
struct HeadRows {
  const void* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t head_dim = 0;
  DataType dtype = DataType::kBf16;

  HeadRows from(std::int64_t row) const {
    const std::int64_t bytes = row * stride * static_cast<std::int64_t>(element_bytes(dtype));
    return {static_cast<const std::byte*>(data) + bytes, stride, head_dim, dtype};
  }
};

/// The first `rows` of them in fp32, one behind the other.
void load_rows(const HeadRows& source, std::int64_t rows, float* target);
/// Rounds `rows` of them from fp32, one behind the other, into where the first ones of `target` lie.
void store_rows(const float* source, std::int64_t rows, const HeadRows& target);

/// Rows of head `head` of batch entry `batch` of a tensor [batch, positions, heads, head_dim].
HeadRows head_rows(const AttentionShape& shape, const void* tensor, std::int64_t heads,
                   std::int64_t positions, std::int64_t batch, std::int64_t head);

/// Positions of the keys that a query at `position` sees; beyond all positions where there is no limit.
Range attention_seen_keys(const AttentionWindow& window, std::int64_t position);

/// What a compute thread needs besides the tile itself: one per thread, reused for every tile.
struct AttentionScratch {
  std::vector<float> keys;    // [kAttentionTile, head_dim]
  std::vector<float> values;  // [kAttentionTile, head_dim]
  std::vector<float> scores;  // [kAttentionTile, kAttentionTile]

  explicit AttentionScratch(std::int64_t head_dim)
      : keys(kAttentionTile * head_dim),
        values(kAttentionTile * head_dim),
        scores(kAttentionTile * kAttentionTile) {}
};

/// State of up to kAttentionTile query rows of one head. Not thread-safe; one thread at a time.
class AttentionTile {
 public:
  /// `first_position`: absolute position of row 0; row i stands at first_position + i.
  AttentionTile(std::int64_t first_position, std::int64_t rows, std::int64_t head_dim,
                const AttentionWindow& window);
  AttentionTile(std::int64_t first_position, std::int64_t rows, std::int64_t head_dim, bool causal)
      : AttentionTile(first_position, rows, head_dim,
                      AttentionWindow{.right = causal ? 0 : AttentionWindow::kAll}) {}

  /// Loads the query rows, scaled, and forgets everything seen before.
  void begin(const HeadRows& queries, double scale);
  /// Attends to `positions.size()` rows of keys and values. Key tiles that the mask hides are skipped.
  void attend(const HeadRows& keys, const HeadRows& values, const Positions& positions,
              AttentionScratch& scratch);
  /// Writes the normalised rows in the io type; a row that attended to nothing becomes zero.
  void finish(void* out, std::int64_t stride, DataType dtype);
  /// The logarithm of the sum of exponentials of every row, minus infinity for one that attended to nothing.
  void log_sum_exp(float* lse) const;

  /// True when no row of this tile sees a key of `positions`.
  bool hides(const Positions& positions) const;

 private:
  void attend_tile(const HeadRows& keys, const HeadRows& values, Range positions, AttentionScratch& scratch);
  /// Keys that row `row` sees.
  Range seen_by(std::int64_t row) const { return attention_seen_keys(window_, first_position_ + row); }
  bool hides(Range positions) const;
  void mask(Range positions, float* scores) const;
  float update_row(std::int64_t row, std::int64_t count, float* scores);

  std::int64_t first_position_;
  std::int64_t rows_;
  std::int64_t head_dim_;
  AttentionWindow window_;
  std::vector<float> query_;    // [rows, head_dim], scaled
  std::vector<float> sum_;      // [rows, head_dim], not yet normalised
  std::vector<float> maximum_;  // [rows]
  std::vector<float> weight_;   // [rows], sum of exponentials
};

}  // namespace mkernel::kernels
