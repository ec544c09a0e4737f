#include "kernels/ops/grouped_gemm/parameters.h"

#include "kernels/cuda/gemm/sm90_maps.h"
#include "kernels/cuda/gemm/sm90_task.h"
#include "kernels/ops/grouped_gemm/plan.h"
#include "kernels/plan/cuts.h"
#include "kernels/plan/tile_pairs.h"

namespace mkernel::kernels {

GroupedGemmParameters grouped_gemm_parameters(const GroupedGemmPlan& plan, GroupedGemmScratch* scratch) {
  const GroupedGemmShape& shape = plan.shape;
  GroupedGemmParameters p{};
  p.scratch = scratch;
  p.max_rows = static_cast<std::int32_t>(shape.max_rows);
  p.k = static_cast<std::int32_t>(shape.k);
  p.n = static_cast<std::int32_t>(shape.n);
  p.groups = static_cast<std::int32_t>(shape.groups);
  p.matrix_rows = static_cast<std::int32_t>(plan.matrix_rows());
  p.column_pairs = static_cast<std::int32_t>(ceil_div(shape.n, 2 * tile_columns(kGroupedGemmTile)));
  p.band_blocks = most_blocks_of_band(tile_rows(kGroupedGemmTile), shape.k);
  return p;
}

MatrixView grouped_gemm_a_view(const GroupedGemmPlan& plan, const void* a) {
  // CTAs side by side load half of the rows each.
  return sm90_a_view(a_box_rows(kGroupedGemmTile, Sm90Cluster::kSideBySide), plan.shape.dtype, a,
                     plan.shape.max_rows, plan.shape.k);
}

MatrixView grouped_gemm_low_a_view(const GroupedGemmPlan& plan, const void* a) {
  return sm90_a_view(Sm90Task::kLowBoxRows, plan.shape.dtype, a, plan.shape.max_rows, plan.shape.k);
}

MatrixView grouped_gemm_b_view(const GroupedGemmPlan& plan, const void* b) {
  const GroupedGemmShape& shape = plan.shape;
  return sm90_b_views(sm90_b_view(shape.dtype, shape.b_layout, b, shape.n, shape.k), shape.groups,
                      plan.matrix_rows());
}

}  // namespace mkernel::kernels
