// The attention body for sm_90a: out = softmax(scale q k^T + mask) v for one tile of queries after the other.
// A tile sweeps all of its keys once, in registers: no partial results are merged, so the bits of an output
// depend on its queries, keys and values alone. What the kernel brings is a feed:
//
//   struct Feed {                           // the same in every role; const
//     bool next(AttentionTask& task) const; // the loading thread: the next task, whose queries may be read
//                                           // now; false: there are no more
//     const TensorMap& q(const AttentionTask& task) const;    // boxes of kTileQueries rows x 64, with a
//                                                             // third coordinate
//     const TensorMap& out(const AttentionTask& task) const;  // boxes of 64 rows x 64, likewise
//     int segments() const;                                   // of every task, those without keys too
//     AttentionSegment segment(const AttentionTask& task, int index) const;  // 0: task.first
//     // The loading thread: where the keys or the values of a segment lie, of which it reads rows from
//     // `row` on next. Returns when they may be read. Boxes of kTileKeys rows x 64.
//     template <AttentionOperand kOperand>
//     AttentionRows rows(const AttentionTask& task, int segment, int row) const;
//     // Only of a feed with a sliding window: keys of the first segment that its first query does not see,
//     // all in the first tile. Every query behind it sees one less; below zero it is none.
//     int hidden(const AttentionTask& task) const;
//     float scale() const;                  // of the scores, times log2(e)
//     float* lse() const;                   // log-sum-exp of every query and head; null: nobody wants it
//     const DeviceTrace& trace() const;
//   };
//
// Contract: all threads of the CTA call attention_body(). Rows behind the end of a sequence read as zero,
// which the third coordinate of the maps is for. `then(warp)`: a whole warp of the producer warpgroup, when
// it has nothing more to load or to store, with kProducerRegisters registers and without barriers of the CTA.
// Warp 0 is the loading one; warp 3 comes at once, and may stay as long as the launch takes.
#pragma once

#include "kernels/cuda/attention/sm90_config.cuh"
#include "kernels/cuda/attention/sm90_load.cuh"
#include "kernels/cuda/attention/sm90_math.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/registers.cuh"

namespace mkernel::kernels {

/// The barriers that the roles meet at. One thread.
template <class Config>
__device__ __forceinline__ void attention_init(AttentionShared<Config>& shared) {
  constexpr int kMathWarps = 4 * Config::kMathWarpgroups;
  Pipeline<Config::kTasks>::init(shared.tasks, 1, Config::kMathWarpgroups);
  for (auto& outputs : shared.outputs) Pipeline<Config::kTasks>::init(outputs, 4, 1);
  Pipeline<Config::kStages>::init(shared.key_stages, 1, kMathWarps);
  Pipeline<Config::kStages>::init(shared.value_stages, 1, kMathWarps);
  ptx::fence_mbarrier_init_release_cluster();
}

/// The whole body: every thread of the CTA. Shared memory may have been anything before.
template <class Config, class Feed, class Then>
__device__ __forceinline__ void attention_body(const Feed& feed, AttentionShared<Config>& shared,
                                               const Then& then) {
  const int warp = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp == 0 && ptx::elect_sync()) attention_init(shared);
  ptx::fence_proxy_async_shared_cta();
  __syncthreads();

  if (warp < 4) {
    ptx::setmaxnreg_dec<Config::kProducerRegisters>();
    if (warp == 0) {
      if (ptx::elect_sync()) attention_load(feed, shared);
    } else if (warp <= Config::kMathWarpgroups) {
      if (ptx::elect_sync()) attention_store(feed, warp - 1, shared);
    }
    __syncwarp();  // the lanes that had nothing to do meet the one that had
    then(warp);
  } else {
    ptx::setmaxnreg_inc<Config::kMathRegisters>();
    AttentionMath<Config>(warp / 4 - 1, feed.scale(), shared).run(feed);
  }
}

/// Of kernels that have no other work for these warps.
template <class Config, class Feed>
__device__ __forceinline__ void attention_body(const Feed& feed, AttentionShared<Config>& shared) {
  attention_body(feed, shared, [](int) {});
}

}  // namespace mkernel::kernels
