#include "tools/mkrun/attention_operands.h"

#include <utility>
#include <vector>

namespace mkernel::mkrun {

Result<Operand> load_attention_tensor(const std::string& flag, const std::string& path, std::int64_t batch,
                                      std::int64_t positions, std::int64_t heads, std::int64_t head_dim,
                                      const Options& options) {
  std::vector<Extent> wanted{{"positions of this rank", positions}, {"heads", heads}, {"head_dim", head_dim}};
  if (!is_packed(options)) wanted.insert(wanted.begin(), {"batch", batch});
  return load_values(flag, path, wanted, options.dtype);
}

Result<PackedLengths> load_lengths(const Options& options) {
  PackedLengths lengths;
  if (!is_packed(options)) return lengths;
  auto of_queries = load_indices("--cu-seqlens", options.cu_seqlens, {{"sequences + 1"}});
  if (!of_queries.ok()) return of_queries.status();
  lengths.q = std::move(*of_queries);
  lengths.k = lengths.q;
  if (options.cu_seqlens_k.empty()) return lengths;
  auto of_keys =
      load_indices("--cu-seqlens-k", options.cu_seqlens_k, {{"sequences + 1", lengths.q.shape[0]}});
  if (!of_keys.ok()) return of_keys.status();
  lengths.k = std::move(*of_keys);
  return lengths;
}

}  // namespace mkernel::mkrun
