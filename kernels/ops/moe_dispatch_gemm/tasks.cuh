// compute: the tiles of both products of this rank's experts, as they become possible.
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
#include "kernels/plan/expert_tasks.h"
#include "kernels/plan/tile_pairs.h"

namespace mkernel::kernels {

/// The pair of tiles of a task of ExpertTasks, whose columns are pairs of columns of tiles here.
__device__ __forceinline__ TilePair moe_pair(const ExpertTasks::Task& task, const OwnedExperts& owned) {
  const std::int32_t first = owned.first_block(task.expert);
  TilePair pair = tile_pair(task.block - first, owned.blocks(task.expert), task.column);
  pair.block += first;
  return pair;
}

template <class Config>
class MoeTasks {
 public:
  __device__ __forceinline__ MoeTasks(const MoeParameters& p, std::uint64_t epoch) : p_(p), epoch_(epoch) {}

  __device__ __forceinline__ bool begin() const {
    bool built = true;
    if (threadIdx.x % 32 == 0) {
      built = moe_wait_own(p_, p_.scratch.table_ready, ExpertExchangePlan::stamp(epoch_),
                           DeviceRole::kCompute, DeviceTag::kGridBarrier, MoeStage::kTable);
    }
    return moe_all(built) && !moe_refused(p_, epoch_);
  }

  __device__ __forceinline__ bool next(Sm90Task& first, Sm90Task& second) const {
    const std::uint64_t taken = claim_unit(&p_.scratch.counters[epoch_ & 1].tasks);
    const ExpertTasks tasks = moe_tasks(p_);
    if (taken >= static_cast<std::uint64_t>(tasks.tasks())) return false;
    const ExpertTasks::Task task = tasks.task(static_cast<std::int32_t>(taken));
    const TilePair pair = moe_pair(task, tasks.owned);
    const int product = task.second || p_.intermediate == 0 ? kFinish : kGate;
    const std::int32_t other_block = pair.second_block();
    first = place(tasks.owned, product, pair, task.expert, pair.block, pair.column);
    second = place(tasks.owned, product, pair, task.expert, other_block, pair.second_column());
    return task.second ? wait_hidden(pair.block, other_block) : wait_rows(pair.block, other_block);
  }

  /// Of few rows: as if the first experts had a block of rows each, and the clusters took their tasks in
  /// order.
  __device__ __forceinline__ int foresee(Sm90Task& task) const {
    const std::int32_t cluster =
        (static_cast<std::int32_t>(blockIdx.x) - p_.dispatch_ctas) / Config::kCluster;
    if (p_.foreseen_steps == 0 || cluster < 0) return 0;
    const std::int32_t expert = cluster / p_.pairs1, pair = cluster - expert * p_.pairs1;
    if (expert >= p_.plan.owners.count(p_.rank)) return 0;
    place_columns(task, p_.intermediate == 0 ? kFinish : kGate, expert,
                  Config::kCluster * pair + static_cast<std::int32_t>(ptx::cluster_cta_rank()));
    return p_.foreseen_steps;
  }

  __device__ __forceinline__ int k_blocks(int product) const {
    const std::int32_t k = product == kGate || p_.intermediate == 0 ? p_.hidden : p_.intermediate;
    return (k + Config::kTileK - 1) / Config::kTileK;
  }
  __device__ __forceinline__ const TensorMap* a(int product) const {
    return product == kGate || p_.intermediate == 0 ? &p_.rows : &p_.hidden_a;
  }
  __device__ __forceinline__ const TensorMap* b(int product, int half) const {
    if (product == kGate) return half == 0 ? &p_.w1 : &p_.w1_up;
    return p_.intermediate == 0 ? &p_.w1 : &p_.w2;
  }
  __device__ __forceinline__ int matrix_rows(int product) const {
    return product == kGate || p_.intermediate == 0 ? p_.weight_rows1 : p_.weight_rows2;
  }
  __device__ __forceinline__ bool gated(int product) const { return product == kGate; }
  __device__ __forceinline__ const TensorMap* c(int) const { return &p_.hidden_c; }
  __device__ __forceinline__ int columns() const { return p_.n; }

  /// A finished row goes to the home of its token.
  __device__ __forceinline__ std::byte* row_of(const Sm90Task& task, int row) const {
    const ExpertRowOrigin origin = origin_of(task.a_row + row);
    return moe_memory(p_, origin.rank) + p_.places.finished +
           static_cast<std::uint64_t>(origin.entry) * p_.plan.finished_bytes;
  }

  __device__ __forceinline__ void after_store(const Sm90Task& task) const {
    if (task.rows <= 0) return;  // the pair has no such column
    const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32;
    const std::uint64_t stamp = ExpertExchangePlan::stamp(epoch_);
    if (task.product == kGate) {
      std::uint64_t* words = moe_words(p_, p_.rank, p_.places.hidden_word);
      if (lane == 0) ptx::st_release_gpu(words + task.block * p_.plan.columns1 + task.column, stamp);
      return;
    }
    std::uint64_t* stored = moe_words(p_, p_.rank, p_.places.stored);
    std::uint64_t before = 0;
    if (lane == 0) before = ptx::atom_add_release_gpu(stored + task.block, 1);
    before = __shfl_sync(~0U, before, 0);
    if (!p_.plan.last_column(before)) return;
    // After this fence the signals stand for the tiles of all who have added to the count before.
    const ptx::SysReleased released = ptx::fence_acq_rel_sys();
    for (std::int32_t row = lane; row < task.rows; row += 32) {
      const ExpertRowOrigin origin = origin_of(task.a_row + row);
      std::uint64_t* finished = moe_words(p_, origin.rank, p_.places.finished_word);
      ptx::st_relaxed_sys(finished + origin.entry, stamp, released);
    }
  }

  __device__ __forceinline__ void after_products() const { moe_sum<Config::kInput>(p_, epoch_); }
  __device__ __forceinline__ const DeviceTrace& trace() const { return p_.endpoint.trace; }

 private:
  static constexpr int kGate = 0, kFinish = 1;

  /// Not through L1: it may hold the line as it was when rows of an earlier block were looked up.
  __device__ __forceinline__ ExpertRowOrigin origin_of(std::int32_t pool_row) const {
    const auto* origins = reinterpret_cast<const int2*>(moe_memory(p_, p_.rank) + p_.places.origin);
    const int2 origin = __ldcg(origins + pool_row);
    return {origin.x, origin.y};
  }

  __device__ __forceinline__ Sm90Task place(const OwnedExperts& owned, int product, const TilePair& pair,
                                            std::int32_t expert, std::int32_t block,
                                            std::int32_t column) const {
    const OwnedExperts::Block rows = owned.block(block);
    const bool gate = product == kGate;
    const std::int32_t columns = gate ? p_.plan.columns1 : p_.plan.last_columns();
    Sm90Task task{};
    place_columns(task, product, expert, column);
    task.side_by_side = pair.side_by_side ? 1 : 0;
    task.a_row = rows.first_row;
    task.rows = column < columns ? rows.rows : 0;  // of an odd number of columns the last pair has one
    task.block = block;
    task.column = column;
    return task;
  }

  static __device__ __forceinline__ void place_columns(Sm90Task& task, int product, std::int32_t expert,
                                                       std::int32_t column) {
    constexpr std::int32_t kHalf = Config::kTileN / 2;
    const bool gate = product == kGate;
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
  __device__ __forceinline__ bool wait_hidden(std::int32_t first, std::int32_t second) const {
    const auto lane = static_cast<std::int32_t>(threadIdx.x) % 32;
    const std::uint64_t* words = moe_words(p_, p_.rank, p_.places.hidden_word);
    const std::int32_t columns = p_.plan.columns1, all = (second - first + 1) * columns;
    bool came = true;
    for (std::int32_t i = lane; i < all && came; i += 32) {
      came = moe_wait_own(p_, words + first * columns + i, ExpertExchangePlan::stamp(epoch_),
                          DeviceRole::kCompute, DeviceTag::kTileReady, MoeStage::kRows);
    }
    return moe_all(came);
  }

  const MoeParameters& p_;
  const std::uint64_t epoch_;
};

}  // namespace mkernel::kernels
