#include "kernels/cpu/attention/backward.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/gemm/gemm.h"

namespace mkernel::kernels {

bool BackwardHead::sees(Range query_rows, Range key_rows) const {
  return keys.at(key_rows.begin) < attention_seen_keys(window, queries.at(query_rows.end - 1)).end &&
         keys.at(key_rows.end - 1) >= attention_seen_keys(window, queries.at(query_rows.begin)).begin;
}

std::vector<Range> attention_tiles(const Positions& positions, Range rows) {
  std::vector<Range> tiles;
  for (int part = 0; part < 2; ++part) {
    const Range held = positions.rows(part);
    const std::int64_t end = std::min(rows.end, held.end);
    for (std::int64_t row = std::max(rows.begin, held.begin); row < end; row += kAttentionTile)
      tiles.push_back({row, std::min(end, row + kAttentionTile)});
  }
  return tiles;
}

BackwardTiles::BackwardTiles(std::int64_t head_dim)
    : head_dim_(head_dim),
      q_(kAttentionTile * head_dim),
      d_out_(kAttentionTile * head_dim),
      k_(kAttentionTile * head_dim),
      v_(kAttentionTile * head_dim),
      row_(head_dim),
      delta_(kAttentionTile),
      lse_(kAttentionTile),
      weights_(kAttentionTile * kAttentionTile),
      d_scores_(kAttentionTile * kAttentionTile) {}

void BackwardTiles::load_queries(const BackwardHead& head, Range rows) {
  queries_ = rows;
  load_rows(head.q.from(rows.begin), rows.size(), q_.data());
  load_rows(head.d_out.from(rows.begin), rows.size(), d_out_.data());
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    load_rows(head.out.from(rows.begin + i), 1, row_.data());
    float delta = 0;
    for (std::int64_t c = 0; c < head_dim_; ++c) delta += row_[c] * d_out_[i * head_dim_ + c];
    delta_[i] = delta;
    // Of a query that sees no key all weights are zero.
    const float lse = head.lse[rows.begin + i];
    lse_[i] = std::isinf(lse) ? std::numeric_limits<float>::infinity() : lse;
  }
}

void BackwardTiles::load_keys(const BackwardHead& head, Range rows) {
  keys_ = rows;
  load_rows(head.k.from(rows.begin), rows.size(), k_.data());
  load_rows(head.v.from(rows.begin), rows.size(), v_.data());
}

void BackwardTiles::weigh(const BackwardHead& head, bool queries_are_rows) {
  const std::int64_t rows = queries_are_rows ? queries_.size() : keys_.size();
  const std::int64_t columns = queries_are_rows ? keys_.size() : queries_.size();
  const auto product = [&](const std::vector<float>& of_queries, const std::vector<float>& of_keys,
                           std::vector<float>& to) {
    const float* a = queries_are_rows ? of_queries.data() : of_keys.data();
    const float* b = queries_are_rows ? of_keys.data() : of_queries.data();
    sgemm(Transpose::kYes, rows, columns, head_dim_, a, head_dim_, b, head_dim_, false, to.data(), columns);
  };
  product(q_, k_, weights_);
  product(d_out_, v_, d_scores_);
  const auto scale = static_cast<float>(head.scale);
  // Among the loaded keys.
  const std::int64_t ahead = head.queries.at(queries_.begin) - head.keys.at(keys_.begin);
  const Range first = attention_seen_keys(head.window, ahead);  // what the first query sees
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t query = queries_are_rows ? row : column, key = queries_are_rows ? column : row;
      float& weight = weights_[row * columns + column];
      float& d_score = d_scores_[row * columns + column];
      const bool seen = key >= first.begin + query && key < first.end + query;
      weight = seen ? std::exp(weight * scale - lse_[query]) : 0.0F;
      d_score = weight * (d_score - delta_[query]) * scale;
    }
  }
}

void BackwardTiles::add_to_keys(const BackwardHead& head, Range key_rows, float* d_k, float* d_v) {
  load_keys(head, key_rows);
  for (const Range rows : attention_tiles(head.queries, {0, head.queries.size()})) {
    if (!head.sees(rows, key_rows)) continue;
    load_queries(head, rows);
    weigh(head, false);
    sgemm(Transpose::kNo, keys_.size(), head_dim_, queries_.size(), weights_.data(), queries_.size(),
          d_out_.data(), head_dim_, true, d_v, head_dim_);
    sgemm(Transpose::kNo, keys_.size(), head_dim_, queries_.size(), d_scores_.data(), queries_.size(),
          q_.data(), head_dim_, true, d_k, head_dim_);
  }
}

void BackwardTiles::add_to_queries(const BackwardHead& head, Range query_rows, Range key_rows, float* d_q) {
  load_queries(head, query_rows);
  for (const Range rows : attention_tiles(head.keys, key_rows)) {
    if (!head.sees(query_rows, rows)) continue;
    load_keys(head, rows);
    weigh(head, true);
    sgemm(Transpose::kNo, queries_.size(), head_dim_, keys_.size(), d_scores_.data(), keys_.size(), k_.data(),
          head_dim_, true, d_q, head_dim_);
  }
}

}  // namespace mkernel::kernels
