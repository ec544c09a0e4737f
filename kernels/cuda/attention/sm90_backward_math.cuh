// The math warpgroups of the backward body of attention. What a feed is: sm90_backward.cuh.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/cuda/attention/sm90_backward_config.cuh"
#include "kernels/cuda/gemm/sm90_element.cuh"
#include "kernels/cuda/gemm/sm90_piece.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/math.cuh"
#include "kernels/cuda/sync/trace.cuh"

namespace mkernel::kernels {

/// One math warpgroup (`group` 0 or 1): keys 64 * group .. of every tile of keys. Scores are computed with
/// keys as rows, so weights and gradients of scores are wgmma's first operand as they lie in registers.
template <class Config>
class AttentionBackwardMath {
 public:
  __device__ __forceinline__ AttentionBackwardMath(int group, AttentionBackwardShared<Config>& shared)
      : group_(group), shared_(shared) {}

  template <class Feed>
  __device__ __forceinline__ void run(const Feed& feed) {
    for (std::uint32_t number = 0;;) {
      Pipeline<1>(shared_.tasks, number).wait_full();
      if (shared_.task.steps == AttentionBackwardTask::kEnd) break;
      if (threadIdx.x % 128 == 0) begin_work(feed.trace());
      walk(feed);
      if (threadIdx.x % 128 == 0) end_work(feed.trace(), DeviceWork::kProduct, shared_.task.number);
      // Nobody reads the keys any more: the other warpgroup has computed its last sums too.
      ptx::barrier_sync(kAllDone, Config::kMathWarpgroups * 128);
      write(shared_.values, d_values_, 1);
      write(shared_.keys, d_keys_, feed.scale());
      ptx::fence_proxy_async_shared_cta();
      number = shared_.task.number + 1;  // not kept in a register meanwhile
      __syncwarp();
      if (threadIdx.x % 32 == 0) Pipeline<1>(shared_.gradients[group_]).arrive_full();
    }
  }

 private:
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  static constexpr std::uint32_t kAllDone = 1;  ///< a named barrier; 0 is that of the whole CTA
  static constexpr int kSteps16 = Config::kTileQueries / 16;
  using Stages = Pipeline<Config::kStages>;
  using Scores = float[Config::kScores];        ///< [64 keys, 64 queries]
  using Narrowed = std::uint32_t[kSteps16][4];  ///< the same, as wgmma takes them from registers
  using Sums = float[Config::kSums];            ///< [64 keys, head_dim]
  using Unit = float[32];                       ///< [64 queries, 64 columns]

  struct Registers {
    Scores scores, d_weights;
    Narrowed weights, d_scores;
    Unit unit;
  };

  /// All steps of a task. There is always a product for the tensor cores to work on:
  ///
  ///   in flight                          meanwhile
  ///   d_out v^T                          weights
  ///   d_v                                gradients of the scores
  ///   d_k, d_q, q k^T of the next step   waits
  ///   q k^T, d_out v^T of the next step  d_q on its way to shared memory
  ///
  /// d_q is that of the step before, for which the other warpgroup has had time to write its gradients of the
  /// scores.
  template <class Feed>
  __device__ __forceinline__ void walk(const Feed& feed) {
    Registers r;
    int tile = shared_.task.first_tile;
    Stages(shared_.stages, done_).wait_full();
    multiply(r.scores, keys(), queries(), done_);
    multiply(r.d_weights, values(), d_out(), done_);
    ptx::wgmma_wait_group<1>();
    if (shared_.task.steps == 1) {
      step<true, true>(feed, tile, r);
    } else {
      step<true, false>(feed, tile, r);
      for (int left = shared_.task.steps - 2; left > 0; --left) step<false, false>(feed, tile, r);
      step<false, true>(feed, tile, r);
    }
    sum_queries(r.unit, done_ - 1);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_pin(d_values_);
    ptx::wgmma_pin(d_keys_);
    write_unit(r.unit, done_ - 1);
  }

  /// One step, whose scores are here; their gradients of the weights are in flight.
  /// NOTES: ptxas (13.0) lets a product stay in flight from one round of a loop to the next only if nothing
  /// else is when it is waited for.
  template <bool kFirst, bool kLast, class Feed>
  __device__ __forceinline__ void step(const Feed& feed, int& tile, Registers& r) {
    ptx::wgmma_pin(r.scores);
    mask(r.scores, tile);
    tile = shared_.task.tile_after(tile);
    exponentials(r.scores, feed.scale_log2());
    narrow(r.scores, r.weights);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_pin(r.d_weights);
    accumulate(d_values_, r.weights, d_out(), !kFirst);
    differentiate(r.scores, r.d_weights);
    narrow(r.scores, r.d_scores);
    write_scores(r.d_scores);
    accumulate(d_keys_, r.d_scores, queries(), !kFirst);
    if constexpr (kFirst) {
      ptx::wgmma_wait_group<0>();
    } else {
      sum_queries(r.unit, done_ - 1);
      ptx::wgmma_wait_group<1>();
    }
    give_back(Stages(shared_.stages, done_));
    if constexpr (!kLast) {
      Stages(shared_.stages, done_ + 1).wait_full();
      multiply(r.scores, keys(), queries(), done_ + 1);
    }
    if constexpr (!kFirst) {
      ptx::wgmma_wait_group<kLast ? 0 : 1>();
      write_unit(r.unit, done_ - 1);
    }
    if constexpr (!kLast) {
      multiply(r.d_weights, values(), d_out(), done_ + 1);
      ptx::wgmma_wait_group<1>();
    }
    ++done_;
  }

  __device__ __forceinline__ std::uint32_t keys() const { return ptx::shared_address(shared_.keys); }
  __device__ __forceinline__ std::uint32_t values() const { return ptx::shared_address(shared_.values); }
  __device__ __forceinline__ std::uint32_t queries() const { return ptx::shared_address(shared_.queries); }
  __device__ __forceinline__ std::uint32_t d_out() const { return ptx::shared_address(shared_.d_out); }
  static __device__ __forceinline__ void give_back(const Stages& stages) {
    if (threadIdx.x % 32 == 0) stages.arrive_empty();
  }
  static __device__ __forceinline__ std::uint32_t stage_of(std::uint32_t step) {
    return step % Config::kStages;
  }
  /// Whether the warpgroup sums d_q of a step. A vote, so that ptxas knows that warps do not diverge.
  __device__ __forceinline__ bool sums_queries(std::uint32_t step) const {
    if constexpr (Config::kUnitEach) return true;
    return __any_sync(~0U, static_cast<int>(step % Config::kMathWarpgroups) == group_);
  }

  /// scores = keys x queries^T of the step, or values and gradients of the outputs: [64, 64]
  __device__ __forceinline__ void multiply(Scores& scores, std::uint32_t keys, std::uint32_t queries,
                                           std::uint32_t step) const {
    // In units of 16 bytes, as descriptors count.
    const std::uint64_t a =
        ptx::wgmma_descriptor_swizzle128(keys + group_ * Config::kGroupKeys * 128, 16, 8 * 128);
    const std::uint64_t b =
        ptx::wgmma_descriptor_swizzle128(queries + stage_of(step) * Config::kQueryBytes, 16, 8 * 128);
    ptx::wgmma_pin(scores);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Config::kHeadDim / 16; ++k) {
      ptx::wgmma_m64n64k16<Config::kWgmmaElement, ptx::WgmmaMajor::kK>(
          scores, a + k / 4 * (Config::kKeyBoxBytes / 16) + k % 4 * 2,
          b + k / 4 * (Config::kQueryBoxBytes / 16) + k % 4 * 2, k > 0);
    }
    ptx::wgmma_commit_group();
  }

  /// sums (+)= factors x rows of the step, [64, head_dim]
  __device__ __forceinline__ void accumulate(Sums& sums, const Narrowed& factors, std::uint32_t rows,
                                             bool accumulate) const {
    const std::uint64_t b = ptx::wgmma_descriptor_swizzle128(rows + stage_of(done_) * Config::kQueryBytes,
                                                             Config::kQueryBoxBytes, 8 * 128);
    ptx::wgmma_pin(sums);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kSteps16; ++k) {
      const std::uint64_t from = b + k * (16 * 128 / 16);
      constexpr auto kMajor = ptx::WgmmaMajor::kMn;
      if constexpr (Config::kHeadDim == 128) {
        ptx::wgmma_m64n128k16<Config::kWgmmaElement, kMajor>(sums, factors[k], from, accumulate || k > 0);
      } else {
        ptx::wgmma_m64n64k16<Config::kWgmmaElement, kMajor>(sums, factors[k], from, accumulate || k > 0);
      }
    }
    ptx::wgmma_commit_group();
  }

  /// unit = gradients of the scores^T x keys, [64, 64], when both warpgroups have written theirs. One group
  /// in flight, though it is empty where the other warpgroup computes the unit.
  __device__ __forceinline__ void sum_queries(Unit& unit, std::uint32_t step) const {
    if (sums_queries(step)) {
      Stages(shared_.score_stages, step).wait_full();
      const std::uint64_t a = ptx::wgmma_descriptor_swizzle128(
          ptx::shared_address(shared_.scores) + stage_of(step) * Config::kScoreBytes, 16, 8 * 128);
      const std::uint64_t b = ptx::wgmma_descriptor_swizzle128(
          keys() + (Config::kUnitEach ? group_ * Config::kKeyBoxBytes : 0), 16, 8 * 128);
      ptx::wgmma_pin(unit);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < Config::kTileKeys / 16; ++k) {
        constexpr auto kMajor = ptx::WgmmaMajor::kMn;
        ptx::wgmma_m64n64k16<Config::kWgmmaElement, kMajor, kMajor>(unit, a + k * (16 * 128 / 16),
                                                                    b + k * (16 * 128 / 16), k > 0);
      }
    }
    ptx::wgmma_commit_group();
  }

  /// The unit that sum_queries() has computed, to the storing thread.
  __device__ __forceinline__ void write_unit(Unit& unit, std::uint32_t step) const {
    give_back(Stages(shared_.score_stages, step));
    if (!sums_queries(step)) return;
    ptx::wgmma_pin(unit);
    const Stages sums(shared_.sum_stages[group_], Config::kUnitEach ? step : step / Config::kMathWarpgroups);
    sums.wait_empty();
    const std::uint32_t to = ptx::shared_address(shared_.sums[group_]) + sums.stage() * Config::kUnitBytes +
                             threadIdx.x % 128 * 16;
#pragma unroll
    for (int j = 0; j < 8; ++j)
      ptx::st_shared_f32x4(to + j * 128 * 16,
                           {unit[4 * j], unit[4 * j + 1], unit[4 * j + 2], unit[4 * j + 3]});
    ptx::fence_proxy_async_shared_cta();
    __syncwarp();
    if (threadIdx.x % 32 == 0) sums.arrive_full();
  }

  /// Hides keys behind the sequence, and those that come after a query of the tile.
  __device__ __forceinline__ void mask(Scores& scores, int tile) const {
    const AttentionBackwardTask& task = shared_.task;
    const int offset = task.key + group_ * Config::kGroupKeys, keys = task.keys - offset;
    // The last of the warpgroup's keys that the first query sees.
    const int seen = task.first_key + tile * Config::kTileQueries - offset;
    if (keys >= Config::kGroupKeys && (!Config::kCausal || seen >= Config::kGroupKeys - 1)) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = row_in_group() + 8 * half;
      const int first = key >= keys ? Config::kTileQueries : Config::kCausal ? key - seen : 0;
      const int here = first - static_cast<int>(threadIdx.x % 4 * 2);  // queries before it are hidden
#pragma unroll
      for (int i = 2 * half; i < Config::kScores; i += 4) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd)
          if (i / 4 * 8 + odd < here) scores[i + odd] = -kInfinity;
      }
    }
  }

  /// Address of what is known of the thread's first column in `rows`.
  __device__ __forceinline__ std::uint32_t of_columns(const float (&rows)[Config::kTileQueries]) const {
    return ptx::shared_address(rows) + stage_of(done_) * sizeof(AttentionBackwardRows) + threadIdx.x % 4 * 8;
  }
  /// Replaces scores by weights. `scale`: times log2(e), so that powers of two do.
  __device__ __forceinline__ void exponentials(Scores& scores, float scale) const {
    const std::uint32_t lse = of_columns(shared_.rows[0].lse);
#pragma unroll
    for (int i = 0; i < Config::kScores; i += 4) {
      const float2 of_column = ptx::ld_shared_f32x2(lse + i / 4 * 32);
#pragma unroll
      for (int half = 0; half < 4; half += 2) {
        scores[i + half] = ptx::ex2_approx_ftz(fmaf(scores[i + half], scale, -of_column.x));
        scores[i + half + 1] = ptx::ex2_approx_ftz(fmaf(scores[i + half + 1], scale, -of_column.y));
      }
    }
  }
  /// Replaces weights by the gradients of their scores.
  __device__ __forceinline__ void differentiate(Scores& weights, const Scores& d_weights) const {
    const std::uint32_t delta = of_columns(shared_.rows[0].delta);
#pragma unroll
    for (int i = 0; i < Config::kScores; i += 4) {
      const float2 of_column = ptx::ld_shared_f32x2(delta + i / 4 * 32);
#pragma unroll
      for (int half = 0; half < 4; half += 2) {
        weights[i + half] *= d_weights[i + half] - of_column.x;
        weights[i + half + 1] *= d_weights[i + half + 1] - of_column.y;
      }
    }
  }

  static __device__ __forceinline__ void narrow(const Scores& scores, Narrowed& narrowed) {
#pragma unroll
    for (int i = 0; i < Config::kScores / 2; ++i)
      narrowed[i / 4][i % 4] = narrow_pair<Config::kInput>(scores[2 * i], scores[2 * i + 1]);
  }

  /// Rows of keys, for sum_queries() of both warpgroups in the next step.
  __device__ __forceinline__ void write_scores(const Narrowed& d_scores) const {
    const Stages stages(shared_.score_stages, done_);
    stages.wait_empty();
    std::uint32_t packed[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) packed[i] = d_scores[i / 4][i % 4];
    Sm90PieceRows().write(ptx::shared_address(shared_.scores) + stages.stage() * Config::kScoreBytes +
                              group_ * Config::kGroupScoreBytes,
                          packed);
    ptx::fence_proxy_async_shared_cta();
    __syncwarp();
    if (threadIdx.x % 32 == 0) stages.arrive_full();
  }

  /// The upper one of the thread's two.
  static __device__ __forceinline__ int row_in_group() {
    return static_cast<int>(threadIdx.x / 32 % 4 * 16 + threadIdx.x / 4 % 8);
  }

  /// The warpgroup's rows of `tile`, in place of its keys or values.
  __device__ __forceinline__ void write(std::byte (&tile)[Config::kKeyBytes], const Sums& sums,
                                        float factor) const {
    const std::uint32_t to = ptx::shared_address(tile) + group_ * Config::kGroupKeys * 128;
#pragma unroll
    for (int box = 0; box < Config::kBoxes; ++box) {
      std::uint32_t packed[16];
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const float* pair = &sums[box * 32 + 2 * j];
        packed[j] = narrow_pair<Config::kInput>(pair[0] * factor, pair[1] * factor);
      }
      Sm90PieceRows().write(to + box * Config::kKeyBoxBytes, packed);
    }
  }

  const int group_;
  AttentionBackwardShared<Config>& shared_;
  std::uint32_t done_ = 0;  ///< steps of all tasks
  Sums d_keys_, d_values_;
};

}  // namespace mkernel::kernels
