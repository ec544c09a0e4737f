// What the measurements of attention on the cuda executor have in common, forward and backward, of each rank
// alone and of ring attention; see op_cuda.h.
#pragma once

#include <cstdint>

#include "tools/mkbench/op_cuda.h"
#include "tools/mkbench/op_measurement.h"

namespace mkernel::bench {

class AttentionMeasurement : public OpMeasurement {
 public:
  AttentionMeasurement(Group& group, OpKind kind, const OpCudaOptions& options)
      : OpMeasurement(group, options), kind_(kind) {}

 protected:
  OpKind kind() const { return kind_; }
  /// Of the operation, with `keys` filled in.
  const AttentionShape& shape() const { return shape_; }
  void set_shape(const AttentionShape& shape);
  bool is_alone() const { return kind_ == OpKind::kAttention || kind_ == OpKind::kAttentionBackward; }
  bool is_backward() const {
    return kind_ == OpKind::kAttentionBackward || kind_ == OpKind::kRingAttentionBackward;
  }
  /// Ranks that share a sequence.
  std::int64_t world() const { return is_alone() ? 1 : group().world_size(); }
  /// Of the inputs. A rank alone has inputs of its own.
  std::uint64_t seed(std::uint64_t iteration) const;
  /// All rows of small shapes are looked at; of large ones every so many-th, some thousands, of all heads.
  std::int64_t step() const;

  int sets() const override;
  void describe(Row& row) const override;
  void finish(Row& row) const override;

 private:
  /// Pairs of a query and a key of one head; of a causal mask half of all, as is usual.
  virtual double pairs() const;

  const OpKind kind_;
  AttentionShape shape_;
};

}  // namespace mkernel::bench
