// The feed of the grouped GEMM: which tiles there are follows from the ends of the groups, which every
// cluster reads for itself, so that no CTA waits for another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gemm/sm90_task.h"
#include "kernels/cuda/sync/claim.cuh"
#include "kernels/cuda/sync/trace.cuh"
#include "kernels/cuda/sync/warp_sum.cuh"
#include "kernels/ops/grouped_gemm/parameters.h"
#include "kernels/plan/tile_pairs.h"

namespace mkernel::kernels {

/// Blocks of rows of all groups before every 32nd group: all that a cluster keeps of the ends. A task looks
/// at the ends of 32 groups, which lie in one or two lines of the cache.
struct GroupedGemmTable {
  static constexpr int kSteps = kMostGroups / 32;
  std::int32_t blocks_before[kSteps + 1];
  GroupedGemmCuts cuts;
};

/// Tasks take the groups in order, within a group one band of rows after the other, within these one pair of
/// columns of tiles after the other, and then all blocks of rows (banded_tile_pair()): a panel of b is read
/// from memory once for each band, and lies in L2 for the other blocks. Where no group has more than one
/// block, the first tasks are cut (GroupedGemmCuts).
template <class Config>
class GroupedGemmTasks {
 public:
  __device__ __forceinline__ GroupedGemmTasks(const GroupedGemmParameters& p, std::uint64_t epoch,
                                              GroupedGemmTable& table)
      : p_(p), epoch_(epoch), table_(table) {}

  static constexpr bool kCutsTasks = true;
  /// A tile of no more rows is loaded in low boxes: one warpgroup multiplies all of them.
  static constexpr std::int32_t kFewRows = 64;

  /// False: this launch is refused.
  __device__ __forceinline__ bool begin() const {
    const BadEnd bad = add_up();
    if (blockIdx.x == 0 && lane() == 0) {
      p_.scratch->next_task[(epoch_ + 1) & 1] = 0;
      if (bad.group >= 0) p_.scratch->refusal = {epoch_ + 1, bad};
    }
    __syncwarp();
    return bad.group < 0;
  }

  __device__ __forceinline__ bool next(Sm90Task& first, Sm90Task& second) const {
    const std::uint64_t taken = claim_unit(&p_.scratch->next_task[epoch_ & 1]);
    const GroupedGemmCuts& cuts = table_.cuts;
    if (taken >= static_cast<std::uint64_t>(cuts.tasks())) return false;
    place_pair(cuts.part(static_cast<std::int32_t>(taken)), first, second);
    return true;
  }

  __device__ __forceinline__ int k_blocks(int) const { return (p_.k + Config::kTileK - 1) / Config::kTileK; }
  __device__ __forceinline__ const TensorMap* a(int) const { return &p_.a; }
  __device__ __forceinline__ const TensorMap* low_a(int) const { return &p_.low_a; }
  __device__ __forceinline__ const TensorMap* b(int, int) const { return &p_.b; }
  __device__ __forceinline__ int matrix_rows(int) const { return p_.matrix_rows; }
  __device__ __forceinline__ bool gated(int) const { return false; }
  __device__ __forceinline__ const TensorMap* c(int) const { return nullptr; }
  __device__ __forceinline__ int columns() const { return p_.n; }
  __device__ __forceinline__ std::byte* row_of(const Sm90Task& task, int row) const {
    return p_.c + (std::int64_t{task.a_row} + row) * p_.n * 2;
  }
  __device__ __forceinline__ void after_store(const Sm90Task&) const {}

  __device__ __forceinline__ void after_products() const {}
  __device__ __forceinline__ const DeviceTrace& trace() const { return p_.endpoint.trace; }

 private:
  struct Rows {
    std::int32_t begin, end;
    __device__ __forceinline__ std::int32_t count() const { return end - begin; }
  };

  __device__ __forceinline__ void place_pair(const GroupedGemmCuts::Part& of, Sm90Task& first,
                                             Sm90Task& second) const {
    const std::int32_t index = of.task;
    const std::uint32_t begun = __ballot_sync(~0U, table_.blocks_before[lane()] * p_.column_pairs <= index);
    const std::int32_t step = __popc(begun) - 1;
    const Rows mine = rows_of(step * 32 + lane());
    const std::int32_t blocks = blocks_of(mine.count());
    const std::int32_t before = table_.blocks_before[step] + warp_sum_up_to(blocks) - blocks;
    const std::int32_t inside = index - before * p_.column_pairs;
    const bool is_here = inside >= 0 && inside < blocks * p_.column_pairs;
    const std::int32_t at = __ffs(static_cast<std::int32_t>(__ballot_sync(~0U, is_here))) - 1;
    const Rows rows{__shfl_sync(~0U, mine.begin, at), __shfl_sync(~0U, mine.end, at)};
    const std::int32_t of_group = __shfl_sync(~0U, blocks, at), number = __shfl_sync(~0U, inside, at);
    const TilePair pair = banded_tile_pair(number, of_group, p_.column_pairs, p_.band_blocks);
    const int side_by_side = pair.side_by_side ? 1 : 0;
    first = place(step * 32 + at, rows, pair.block, pair.column, side_by_side, of);
    second = place(step * 32 + at, rows, pair.second_block(), pair.second_column(), side_by_side, of);
  }

  static __device__ __forceinline__ std::int32_t lane() {
    return static_cast<std::int32_t>(threadIdx.x) % 32;
  }
  /// Of no group: none.
  __device__ __forceinline__ Rows rows_of(std::int32_t group) const {
    if (group >= p_.groups) return {0, 0};
    return {group == 0 ? 0 : p_.ends[group - 1], p_.ends[group]};
  }

  static __device__ __forceinline__ std::int32_t blocks_of(std::int32_t rows) {
    return (rows + Config::kTileM - 1) / Config::kTileM;
  }

  /// Fills the table; which end is the first bad one. Nothing in the loop depends on what it has read before,
  /// so that loads follow each other.
  __device__ __forceinline__ BadEnd add_up() const {
    std::int32_t before = 0, all = 0, first_bad = -1;
    bool alone = true;  // no group has more than one block
#pragma unroll 4
    for (std::int32_t step = 0; step * 32 < p_.groups; ++step) {
      const Rows rows = rows_of(step * 32 + lane());
      const bool is_bad = rows.begin < 0 || rows.end < rows.begin || rows.end > p_.max_rows;
      const std::uint32_t bad = __ballot_sync(~0U, is_bad);
      if (bad != 0 && first_bad < 0) first_bad = step * 32 + __ffs(static_cast<std::int32_t>(bad)) - 1;
      const std::int32_t mine = is_bad ? 0 : blocks_of(rows.count());
      const std::int32_t blocks = __reduce_add_sync(~0U, mine);
      alone = alone && !__any_sync(~0U, mine > 1);
      if (lane() > step) before += blocks;
      all += blocks;
    }
    table_.blocks_before[lane()] = before;
    if (lane() == 0) {
      const std::int32_t tasks = all * p_.column_pairs;
      table_.blocks_before[GroupedGemmTable::kSteps] = all;
      table_.cuts = alone ? grouped_gemm_cuts(tasks, static_cast<std::int32_t>(gridDim.x) / Config::kCluster,
                                              Config::kBBoxes)
                          : GroupedGemmCuts{.whole = tasks};
    }
    __syncwarp();
    if (first_bad < 0) return {};
    const Rows rows = rows_of(first_bad);
    return {first_bad, rows.begin, rows.end};
  }

  __device__ __forceinline__ Sm90Task place(std::int32_t group, const Rows& rows, std::int32_t block,
                                            std::int32_t column, int side_by_side,
                                            const GroupedGemmCuts::Part& of) const {
    const std::int32_t first = rows.begin + block * Config::kTileM;
    const std::int32_t count = min(rows.end - first, Config::kTileM);
    Sm90Task task{};
    task.side_by_side = side_by_side;
    task.left_out = Config::kBBoxes - Config::kBBoxes / of.parts;
    task.a_row = first;
    task.b_matrix = group;
    task.b_column = column * Config::kTileN + of.part * (Config::kTileN / of.parts);
    task.b_column2 = task.b_column + Config::kTileN / 2;
    task.c_column = task.b_column;
    // Of an odd number of columns of tiles the last pair has one.
    task.rows = task.b_column < p_.n ? count : 0;
    if (side_by_side != 0 && count <= kFewRows)
      task.low_boxes = (count + Sm90Task::kLowBoxRows - 1) / Sm90Task::kLowBoxRows;
    return task;
  }

  const GroupedGemmParameters& p_;
  const std::uint64_t epoch_;
  GroupedGemmTable& table_;
};

}  // namespace mkernel::kernels
