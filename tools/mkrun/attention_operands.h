// What jobs of attention and of its backward pass read alike: tensors with a batch, or of packed sequences.
#pragma once

#include <cstdint>
#include <string>

#include "tools/mkrun/operand.h"
#include "tools/mkrun/options.h"

namespace mkernel::mkrun {

inline bool is_packed(const Options& options) {
  return !options.cu_seqlens.empty();
}

/// [batch, positions, heads, head_dim]; packed sequences have no batch. -1: any.
Result<Operand> load_attention_tensor(const std::string& flag, const std::string& path, std::int64_t batch,
                                      std::int64_t positions, std::int64_t heads, std::int64_t head_dim,
                                      const Options& options);
inline std::int64_t positions_of(const Operand& tensor) {
  return tensor.shape[tensor.shape.size() - 3];
}
inline std::int64_t heads_of(const Operand& tensor) {
  return tensor.shape[tensor.shape.size() - 2];
}

/// Where packed sequences begin and end; without these both are empty.
struct PackedLengths {
  Operand q, k;

  std::int64_t sequences() const { return q.shape.empty() ? 0 : q.shape[0] - 1; }
};
Result<PackedLengths> load_lengths(const Options& options);

}  // namespace mkernel::mkrun
