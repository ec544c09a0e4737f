#include "kernels/ops/ag_gemm/plan.h"

#include <algorithm>
#include <utility>

#include "kernels/cpu/memory/convert.h"
#include "kernels/plan/gemm_shape.h"

namespace mkernel::kernels {

Result<AgGemmPlan> AgGemmPlan::make(const GemmShape& shape, const Topology& topology,
                                    const AgGemmOptions& options) {
  if (Status status = check_shape(OpKind::kAgGemm, shape); !status.ok()) return status;
  return AgGemmPlan(shape, topology, options);
}

AgGemmPlan::AgGemmPlan(const GemmShape& shape, const Topology& topology, const AgGemmOptions& options)
    : shape_(shape) {
  const auto row_bytes = shape.k * static_cast<std::int64_t>(element_bytes(shape.dtype));
  rows_per_chunk_ = std::max<std::int64_t>(1, options.chunk_bytes / row_bytes);
  std::vector<std::vector<std::uint64_t>> bounds(topology.world());
  for (std::uint32_t source = 0; source < topology.world(); ++source) {
    const std::int64_t rows = block_range(shape.m, topology.world(), source).size();
    const ChunkSplit chunks{rows, rows_per_chunk_};
    for (std::int64_t i = 0; i < chunks.chunks(); ++i) {
      bounds[source].push_back(static_cast<std::uint64_t>(chunks.chunk(i).begin * row_bytes));
    }
    bounds[source].push_back(static_cast<std::uint64_t>(rows * row_bytes));
    grids_.push_back({rows, shape.n, options.tile_rows, options.tile_columns});
  }
  gather_ = GatherPlan(std::move(bounds), 0);
}

Range AgGemmPlan::chunk_rows(std::uint32_t source, std::uint64_t index) const {
  return split(source).chunk(static_cast<std::int64_t>(index));
}

std::uint64_t AgGemmPlan::chunks_needed(std::uint32_t source, std::int64_t tile) const {
  const std::int64_t last_row = grids_[source].tile(tile).rows.end - 1;
  return static_cast<std::uint64_t>(split(source).chunk_of(last_row)) + 1;
}

}  // namespace mkernel::kernels
