#include "tools/mkbench/op_attention_measurement.h"

#include <algorithm>

#include "tools/mkbench/random.h"
#include "tools/mkbench/report.h"
#include "tools/mkbench/workload.h"

namespace mkernel::bench {

void AttentionMeasurement::set_shape(const AttentionShape& shape) {
  shape_ = shape;
  if (shape_.keys == 0) shape_.keys = shape_.sequence;
}

std::uint64_t AttentionMeasurement::seed(std::uint64_t iteration) const {
  const std::uint64_t rank = is_alone() ? group().rank() : 0;
  return seed_of(static_cast<std::uint64_t>(kind_), iteration, rank, 0);
}

std::int64_t AttentionMeasurement::step() const {
  const std::int64_t looked = is_backward() ? 1 << 13 : 1 << 15;
  const std::int64_t rows = shape_.batch * shape_.heads * shape_.sequence / world();
  return rows > looked ? (rows / looked) | 1 : 1;
}

int AttentionMeasurement::sets() const {
  return std::min(options().iterations, kMostPerRound / 4) + 1;
}

void AttentionMeasurement::describe(Row& row) const {
  row.shape = json_of(kind_, shape_);
  row.shape["executor"] = "cuda";
  row.shape_text = text_of(shape_);
}

void AttentionMeasurement::finish(Row& row) const {
  // Of a rank's part of two products, or of five.
  const double operations = (is_backward() ? 10 : 4) * pairs() *
                            static_cast<double>(shape_.batch * shape_.heads * shape_.head_dim) /
                            static_cast<double>(world());
  row.shape["tflops"] = 1e-9 * operations / median(row.milliseconds);
}

double AttentionMeasurement::pairs() const {
  return static_cast<double>(shape_.sequence) * static_cast<double>(shape_.keys) * (shape_.causal ? 0.5 : 1);
}

}  // namespace mkernel::bench
