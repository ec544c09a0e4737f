// The backward body of attention for sm_90a: gradients of one tile of keys and values after the other, each
// from all queries that see it. With p = exp(scale q k^T - lse) and ds = p (d_out v^T - delta), where delta
// is the sum of out x d_out of a query: d_v = p^T d_out, d_k = scale ds^T q, d_q = scale ds k. Gradients of
// keys and values stay in registers. Those of queries are added in global memory, unit by unit in an order
// that the feed fixes, so all sums have the same bits every run. What the kernel brings is a feed:
//
//   struct Feed {                                    // the same in every role; const
//     bool next(AttentionBackwardTask& task) const;  // the loading thread: the next task; false: no more
//     // Boxes of kTileKeys rows x 64, with a third coordinate.
//     const TensorMap& k(const AttentionBackwardTask& task) const;
//     const TensorMap& v(const AttentionBackwardTask& task) const;
//     // Boxes of kTileQueries rows x 64, likewise. `tile`: of the queries of a head.
//     const TensorMap& q(int tile) const, d_out(int tile) const;
//     // false: a tile begins in row tile * kTileQueries, and task.query_first is the third coordinate.
//     static constexpr bool kPacked;
//     int query_row(const AttentionBackwardTask& task, int tile) const;    // kPacked: the row,
//     int query_first(const AttentionBackwardTask& task, int tile) const;  // and the third coordinate
//     // The loading thread: returns when what row_map() is of may be read of the head.
//     void wait_rows(const AttentionBackwardTask& task, int head) const;
//     const TensorMap& row_map() const;  // AttentionBackwardRows: its row tile_at() has those of a tile
//     std::int32_t tile_at(const AttentionBackwardTask& task, int head, int tile) const;
//     // The storing thread of a unit: its number, where its sums are, and the order of adds. `head` counts
//     // from the first one of the task.
//     std::int32_t unit(const AttentionBackwardTask& task, int head, int tile, int unit) const;
//     float* sums(std::int32_t unit) const;
//     // So many tasks add to the tile before this one does; the first one stores, and waits for nobody.
//     std::int32_t turn(const AttentionBackwardTask& task, int tile) const;
//     void wait_turn(std::int32_t unit, std::int32_t turn) const;
//     void pass_turn(std::int32_t unit, std::int32_t turn) const;  // to the next task that adds
//     // The storing thread of a warpgroup: stores the gradients of the 64 keys from `offset` on of the tile,
//     // which lie at these shared addresses in boxes of 64 rows x 64 (AttentionBackwardConfig). The body
//     // waits until they are read. announce() is given what this returns; the next task may have begun.
//     Stored store_keys(const AttentionBackwardTask& task, int offset, std::uint32_t d_keys,
//                       std::uint32_t d_values) const;
//     void announce(Stored stored) const;
//     void finish() const;                           // all math warps, when all tasks are over
//     float scale() const, scale_log2() const;       // of the scores; times log2(e)
//     const AttentionWindow& window() const;         // with Config::kWindow; neither side is kAll
//     const DeviceTrace& trace() const;
//   };
//
// Contract: all threads of the CTA call attention_backward_body(). Rows behind the end of a sequence read as
// zero, which the third coordinate of the maps is for.
#pragma once

#include "kernels/cuda/attention/sm90_backward_config.cuh"
#include "kernels/cuda/attention/sm90_backward_load.cuh"
#include "kernels/cuda/attention/sm90_backward_math.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/registers.cuh"

namespace mkernel::kernels {

/// The barriers that the roles meet at. One thread.
template <class Config>
__device__ __forceinline__ void attention_backward_init(AttentionBackwardShared<Config>& shared) {
  constexpr int kGroups = Config::kMathWarpgroups, kMathWarps = 4 * kGroups;
  Pipeline<1>::init(shared.tasks, 1, kGroups);
  Pipeline<Config::kStages>::init(shared.stages, 1, kMathWarps);
  Pipeline<Config::kStages>::init(shared.score_stages, kMathWarps, kMathWarps);
  for (auto& sums : shared.sum_stages) Pipeline<Config::kStages>::init(sums, 4, 1);
  for (auto& gradients : shared.gradients) Pipeline<1>::init(gradients, 4, 1);
  ptx::fence_mbarrier_init_release_cluster();
}

/// The whole body: every thread of the CTA. Shared memory may have been anything before.
template <class Config, class Feed>
__device__ __forceinline__ void attention_backward_body(const Feed& feed,
                                                        AttentionBackwardShared<Config>& shared) {
  const int warp = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp == 0 && ptx::elect_sync()) attention_backward_init(shared);
  ptx::fence_proxy_async_shared_cta();
  __syncthreads();

  if (warp < 4) {
    ptx::setmaxnreg_dec<Config::kProducerRegisters>();
    if (warp == 0) {
      if (ptx::elect_sync()) attention_backward_load(feed, shared);
    } else if (warp <= Config::kMathWarpgroups) {
      if (ptx::elect_sync()) attention_backward_store(feed, warp - 1, shared);
    }
    __syncwarp();
  } else {
    ptx::setmaxnreg_inc<Config::kMathRegisters>();
    AttentionBackwardMath<Config>(__any_sync(~0U, warp >= 8), shared).run(feed);
    feed.finish();
  }
}

}  // namespace mkernel::kernels
