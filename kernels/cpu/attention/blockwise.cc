#include "kernels/cpu/attention/blockwise.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/memory/convert.h"

namespace mkernel::kernels {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

}  // namespace

void load_rows(const HeadRows& source, std::int64_t rows, float* target) {
  for (std::int64_t i = 0; i < rows; ++i) {
    widen(source.dtype, source.from(i).data, target + i * source.head_dim,
          static_cast<std::size_t>(source.head_dim));
  }
}

void store_rows(const float* source, std::int64_t rows, const HeadRows& target) {
  for (std::int64_t i = 0; i < rows; ++i) {
    narrow(target.dtype, source + i * target.head_dim, const_cast<void*>(target.from(i).data),
           static_cast<std::size_t>(target.head_dim));
  }
}

HeadRows head_rows(const AttentionShape& shape, const void* tensor, std::int64_t heads,
                   std::int64_t positions, std::int64_t batch, std::int64_t head) {
  const std::int64_t stride = heads * shape.head_dim;
  const auto first = static_cast<std::uint64_t>(batch * positions * stride + head * shape.head_dim) *
                     element_bytes(shape.dtype);
  const auto* begin = static_cast<const std::byte*>(tensor);  // null where a rank holds nothing
  return {begin == nullptr ? nullptr : begin + first, stride, shape.head_dim, shape.dtype};
}

Range attention_seen_keys(const AttentionWindow& window, std::int64_t position) {
  constexpr std::int64_t kFar = std::int64_t{1} << 62;
  return {window.left == AttentionWindow::kAll ? -kFar : position - window.left,
          window.right == AttentionWindow::kAll ? kFar : position + window.right + 1};
}

AttentionTile::AttentionTile(std::int64_t first_position, std::int64_t rows, std::int64_t head_dim,
                             const AttentionWindow& window)
    : first_position_(first_position),
      rows_(rows),
      head_dim_(head_dim),
      window_(window),
      query_(rows * head_dim),
      sum_(rows * head_dim),
      maximum_(rows),
      weight_(rows) {}

void AttentionTile::begin(const HeadRows& queries, double scale) {
  load_rows(queries, rows_, query_.data());
  for (float& value : query_) value *= static_cast<float>(scale);
  std::fill(sum_.begin(), sum_.end(), 0.0F);
  std::fill(maximum_.begin(), maximum_.end(), kMinusInfinity);
  std::fill(weight_.begin(), weight_.end(), 0.0F);
}

bool AttentionTile::hides(Range positions) const {
  return positions.size() == 0 || positions.begin >= seen_by(rows_ - 1).end ||
         positions.end <= seen_by(0).begin;
}

bool AttentionTile::hides(const Positions& positions) const {
  return hides(positions.part[0]) && hides(positions.part[1]);
}

void AttentionTile::attend(const HeadRows& keys, const HeadRows& values, const Positions& positions,
                           AttentionScratch& scratch) {
  for (int part = 0; part < 2; ++part) {
    const Range rows = positions.rows(part);
    for (std::int64_t row = rows.begin; row < rows.end; row += kAttentionTile) {
      const std::int64_t count = std::min(kAttentionTile, rows.end - row);
      const std::int64_t first = positions.at(row);
      if (hides(Range{first, first + count})) continue;
      attend_tile(keys.from(row), values.from(row), {first, first + count}, scratch);
    }
  }
}

void AttentionTile::attend_tile(const HeadRows& keys, const HeadRows& values, Range positions,
                                AttentionScratch& scratch) {
  const std::int64_t count = positions.size();
  load_rows(keys, count, scratch.keys.data());
  load_rows(values, count, scratch.values.data());
  float* scores = scratch.scores.data();
  sgemm(Transpose::kYes, rows_, count, head_dim_, query_.data(), head_dim_, scratch.keys.data(), head_dim_,
        false, scores, count);  // [rows, count]
  if (positions.end > seen_by(0).end || positions.begin < seen_by(rows_ - 1).begin) mask(positions, scores);
  for (std::int64_t row = 0; row < rows_; ++row) {
    const float rescale = update_row(row, count, scores + row * count);
    if (rescale == 1.0F) continue;
    for (std::int64_t i = 0; i < head_dim_; ++i) sum_[row * head_dim_ + i] *= rescale;
  }
  sgemm(Transpose::kNo, rows_, head_dim_, count, scores, count, scratch.values.data(), head_dim_, true,
        sum_.data(), head_dim_);  // [rows, head_dim]
}

void AttentionTile::mask(Range positions, float* scores) const {
  const std::int64_t count = positions.size();
  for (std::int64_t row = 0; row < rows_; ++row, scores += count) {
    const Range seen = seen_by(row);
    const std::int64_t begin = std::clamp<std::int64_t>(seen.begin - positions.begin, 0, count);
    const std::int64_t end = std::clamp<std::int64_t>(seen.end - positions.begin, begin, count);
    std::fill(scores, scores + begin, kMinusInfinity);
    std::fill(scores + end, scores + count, kMinusInfinity);
  }
}

/// Turns a row of scores into exponentials relative to the running maximum; returns the factor that brings
/// what was summed before to the new maximum.
float AttentionTile::update_row(std::int64_t row, std::int64_t count, float* scores) {
  const float before = maximum_[row];
  float maximum = before;
  for (std::int64_t i = 0; i < count; ++i) maximum = std::max(maximum, scores[i]);
  if (maximum == kMinusInfinity) {  // nothing visible yet: inf - inf below would be a NaN
    std::fill(scores, scores + count, 0.0F);
    return 1.0F;
  }
  float sum = 0.0F;
  for (std::int64_t i = 0; i < count; ++i) {
    scores[i] = std::exp(scores[i] - maximum);
    sum += scores[i];
  }
  const float rescale = before == maximum ? 1.0F : std::exp(before - maximum);
  weight_[row] = weight_[row] * rescale + sum;
  maximum_[row] = maximum;
  return rescale;
}

void AttentionTile::log_sum_exp(float* lse) const {
  for (std::int64_t row = 0; row < rows_; ++row)
    lse[row] = weight_[row] == 0.0F ? kMinusInfinity : maximum_[row] + std::log(weight_[row]);
}

void AttentionTile::finish(void* out, std::int64_t stride, DataType dtype) {
  const auto bytes = static_cast<std::int64_t>(element_bytes(dtype));
  for (std::int64_t row = 0; row < rows_; ++row) {
    float* sum = sum_.data() + row * head_dim_;
    const float inverse = weight_[row] == 0.0F ? 0.0F : 1.0F / weight_[row];
    for (std::int64_t i = 0; i < head_dim_; ++i) sum[i] *= inverse;
    narrow(dtype, sum, static_cast<std::byte*>(out) + row * stride * bytes,
           static_cast<std::size_t>(head_dim_));
  }
}

}  // namespace mkernel::kernels
