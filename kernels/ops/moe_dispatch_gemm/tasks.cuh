// compute: the tiles of both products of this rank's experts and of the shared expert, as they become
// possible.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gemm/sm90_task.h"
#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/global.cuh"
#include "kernels/ops/moe_dispatch_gemm/combine.cuh"
#include "kernels/ops/moe_dispatch_gemm/parameters.h"
#include "kernels/ops/moe_dispatch_gemm/table.cuh"
#include "kernels/ops/moe_dispatch_gemm/workers.cuh"
#include "kernels/plan/layer_tasks.h"
#include "kernels/plan/tile_pairs.h"

namespace mkernel::kernels {

/// The pair of tiles of a task, whose columns are pairs of columns of tiles here.
__device__ __forceinline__ TilePair moe_pair(const ExpertTasks::Task& task) {
  TilePair pair = tile_pair(task.block - task.first_block, task.blocks, task.column);
  pair.block += task.first_block;
  return pair;
}

template <class Config>
class MoeTasks {
 public:
  __device__ __forceinline__ MoeTasks(const MoeParameters& p, std::uint64_t epoch) : p_(p), epoch_(epoch) {}

  /// There may be tasks before there is a table.
  __device__ __forceinline__ bool begin() const { return true; }

  __device__ __forceinline__ bool next(Sm90Task& first, Sm90Task& second) const {
    const std::uint64_t taken = claim_unit(&p_.scratch.counters[epoch_ & 1].tasks);
    LayerTasks tasks{moe_shared_tiles(p_), {}};
    if (taken >= static_cast<std::uint64_t>(tasks.early())) {
      tabled_ = tabled_ || wait_table();
      if (!tabled_) return false;
      tasks = moe_tasks(p_);
      if (taken >= static_cast<std::uint64_t>(tasks.tasks())) return false;
    }
    const ExpertTasks::Task task = tasks.task(static_cast<std::int32_t>(taken));
    const TilePair pair = moe_pair(task);
    const std::int32_t other_block = pair.second_block();
    first = place(tasks, task, pair, pair.block, pair.column);
    second = place(tasks, task, pair, other_block, pair.second_column());
    if (task.second) return wait_hidden(first.product, pair.block, other_block);
    return task.shared || wait_rows(pair.block, other_block);
  }

  /// Of few rows: as if the first experts had a block of rows each, and the clusters took their tasks in
  /// order, those of the shared expert first.
  __device__ __forceinline__ int foresee(Sm90Task& task) const {
    const std::int32_t cluster =
        (static_cast<std::int32_t>(blockIdx.x) - p_.dispatch_ctas) / Config::kCluster;
    const std::int32_t taken = cluster - moe_shared_tiles(p_).first();
    if (p_.foreseen_steps == 0 || cluster < 0 || taken < 0) return 0;
    const std::int32_t expert = taken / p_.pairs1, pair = taken - expert * p_.pairs1;
    if (expert >= p_.plan.owners.count(p_.rank)) return 0;
    place_columns(task, p_.experts.intermediate == 0 ? kFinish : kGate, expert,
                  Config::kCluster * pair + static_cast<std::int32_t>(ptx::cluster_cta_rank()));
    return p_.foreseen_steps;
  }

  __device__ __forceinline__ int k_blocks(int product) const {
    const std::int32_t k = first_product(product) ? p_.hidden : operands(product).intermediate;
    return (k + Config::kTileK - 1) / Config::kTileK;
  }
  __device__ __forceinline__ const TensorMap* a(int product) const {
    const MoeOperands& of = operands(product);
    return first_product(product) ? &of.rows : &of.hidden_a;
  }
  __device__ __forceinline__ const TensorMap* b(int product, int half) const {
    const MoeOperands& of = operands(product);
    if (gated(product)) return half == 0 ? &of.w1 : &of.w1_up;
    return first_product(product) ? &of.w1 : &of.w2;
  }
  __device__ __forceinline__ int matrix_rows(int product) const {
    const MoeOperands& of = operands(product);
    return first_product(product) ? of.weight_rows1 : of.weight_rows2;
  }
  __device__ __forceinline__ bool gated(int product) const {
    return product == kGate || product == kSharedGate;
  }
  __device__ __forceinline__ const TensorMap* c(int product) const { return &operands(product).hidden_c; }
  __device__ __forceinline__ int columns() const { return p_.n; }

  /// A finished row goes to the home of its token.
  __device__ __forceinline__ std::byte* row_of(const Sm90Task& task, int row) const {
    const ExpertRowOrigin origin = origin_of(task, row);
    return moe_memory(p_, origin.rank) + p_.places.finished +
           static_cast<std::uint64_t>(origin.entry) * p_.plan.finished_bytes;
  }

  __device__ __forceinline__ void after_store(const Sm90Task& task) const {
    if (task.rows <= 0) return;  // the pair has no such column
    const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32;
    const std::uint64_t stamp = ExpertExchangePlan::stamp(epoch_);
    if (gated(task.product)) {
      if (lane == 0) ptx::st_release_gpu(hidden_words(task.product, task.block) + task.column, stamp);
      return;
    }
    std::uint64_t* stored =
        moe_words(p_, p_.rank, is_shared(task.product) ? p_.places.shared_stored : p_.places.stored);
    std::uint64_t before = 0;
    if (lane == 0) before = ptx::atom_add_release_gpu(stored + task.block, 1);
    before = __shfl_sync(~0U, before, 0);
    if (!p_.plan.last_column(before)) return;
    // A shuffle orders no memory: the barrier hands on to all lanes what lane 0 has found. After the fence
    // their signals stand for the tiles of all who have added to the count before.
    __syncwarp();
    const ptx::SysReleased released = ptx::fence_acq_rel_sys();
    for (std::int32_t row = lane; row < task.rows; row += 32) {
      const ExpertRowOrigin origin = origin_of(task, row);
      std::uint64_t* finished = moe_words(p_, origin.rank, p_.places.finished_word);
      ptx::st_relaxed_sys(finished + origin.entry, stamp, released);
    }
  }

  __device__ __forceinline__ void after_products() const { moe_sum<Config::kInput>(p_, epoch_); }
  /// Half as many rows as other warps sum at a time: it has the registers of a warp that loads.
  __device__ __forceinline__ void beside_products() const { moe_sum<Config::kInput, 4>(p_, epoch_); }
  __device__ __forceinline__ const DeviceTrace& trace() const { return p_.endpoint.trace; }

 private:
  /// Products of the experts, and of the shared expert. The first of two is gated.
  static constexpr int kGate = 0, kFinish = 1, kSharedGate = 2, kSharedFinish = 3;

  static __device__ __forceinline__ bool is_shared(int product) { return product >= kSharedGate; }
  __device__ __forceinline__ const MoeOperands& operands(int product) const {
    return is_shared(product) ? p_.shared : p_.experts;
  }
  __device__ __forceinline__ bool first_product(int product) const {
    return gated(product) || p_.experts.intermediate == 0;
  }

  /// The feeding warp. False: there is no table, or the launch is refused.
  __device__ __forceinline__ bool wait_table() const {
    bool built = true;
    if (threadIdx.x % 32 == 0) {
      built = moe_wait_own(p_, p_.scratch.table_ready, ExpertExchangePlan::stamp(epoch_),
                           DeviceRole::kCompute, DeviceTag::kGridBarrier, MoeStage::kTable);
    }
    return moe_all(built) && !moe_refused(p_, epoch_);
  }

  /// Of a row of a tile. Not through L1: it may hold the line as it was when rows of an earlier block were
  /// looked up.
  __device__ __forceinline__ ExpertRowOrigin origin_of(const Sm90Task& task, int row) const {
    if (is_shared(task.product)) return {p_.rank, p_.plan.shared_entry(task.a_row + row)};
    const auto* origins = reinterpret_cast<const int2*>(moe_memory(p_, p_.rank) + p_.places.origin);
    const int2 origin = __ldcg(origins + task.a_row + row);
    return {origin.x, origin.y};
  }

  /// Columns of tiles of the first product.
  __device__ __forceinline__ std::int32_t hidden_columns(int product) const {
    return is_shared(product) ? p_.plan.shared_columns1 : p_.plan.columns1;
  }
  __device__ __forceinline__ std::uint64_t* hidden_words(int product, std::int32_t block) const {
    const std::uint64_t at = is_shared(product) ? p_.places.shared_hidden_word : p_.places.hidden_word;
    return moe_words(p_, p_.rank, at) + block * hidden_columns(product);
  }

  __device__ __forceinline__ Sm90Task place(const LayerTasks& tasks, const ExpertTasks::Task& of,
                                            const TilePair& pair, std::int32_t block,
                                            std::int32_t column) const {
    const OwnedExperts::Block rows = of.shared ? p_.plan.shared_block(p_.routed.tokens, block)
                                               : tasks.experts.owned.block(of.expert, block);
    const bool finish = of.second || p_.experts.intermediate == 0;
    const int product = (finish ? kFinish : kGate) + (of.shared ? kSharedGate : 0);
    const std::int32_t columns = finish ? p_.plan.last_columns() : hidden_columns(product);
    Sm90Task task{};
    place_columns(task, product, of.expert, column);
    task.side_by_side = pair.side_by_side ? 1 : 0;
    task.a_row = rows.first_row;
    task.rows = column < columns ? rows.rows : 0;  // of an odd number of columns the last pair has one
    task.block = block;
    task.column = column;
    return task;
  }

  __device__ __forceinline__ void place_columns(Sm90Task& task, int product, std::int32_t expert,
                                                std::int32_t column) const {
    constexpr std::int32_t kHalf = Config::kTileN / 2;
    const bool gate = gated(product);
    task.product = product;
    task.b_matrix = expert;
    task.b_column = column * (gate ? kHalf : 2 * kHalf);
    task.b_column2 = task.b_column + (gate ? 0 : kHalf);
    task.c_column = task.b_column;
  }

  /// Lanes 0 and 1: all rows of both blocks.
  __device__ __forceinline__ bool wait_rows(std::int32_t first, std::int32_t second) const {
    const auto lane = static_cast<std::int32_t>(threadIdx.x) % 32;
    const std::uint64_t* arrived = moe_words(p_, p_.rank, p_.places.arrived);
    bool came = true;
    if (lane < 2) {
      const std::int32_t block = lane == 0 ? first : second;
      const DeviceWaitSite site{DeviceRole::kCompute, DeviceTag::kChunkReady, -1,
                                static_cast<std::uint32_t>(block)};
      came =
          wait_at_least(arrived + block, p_.plan.arrived_count(epoch_), site, moe_scope(p_, MoeStage::kRows));
    }
    return moe_all(came);
  }

  /// All lanes: every column of both blocks.
  __device__ __forceinline__ bool wait_hidden(int product, std::int32_t first, std::int32_t second) const {
    const auto lane = static_cast<std::int32_t>(threadIdx.x) % 32;
    const std::uint64_t* words = hidden_words(product, first);
    const std::int32_t all = (second - first + 1) * hidden_columns(product);
    bool came = true;
    for (std::int32_t i = lane; i < all && came; i += 32) {
      came = moe_wait_own(p_, words + i, ExpertExchangePlan::stamp(epoch_), DeviceRole::kCompute,
                          DeviceTag::kTileReady, MoeStage::kRows);
    }
    return moe_all(came);
  }

  const MoeParameters& p_;
  const std::uint64_t epoch_;
  mutable bool tabled_ = false;  ///< of the feeding warp: it has seen the table
};

}  // namespace mkernel::kernels
