// What a math warpgroup of the backward body of attention computes of one tile of scores, in registers.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/cuda/attention/sm90_backward_config.cuh"
#include "kernels/cuda/gemm/sm90_element.cuh"
#include "kernels/cuda/ptx/math.cuh"
#include "kernels/cuda/ptx/shared.cuh"
#include "kernels/plan/attention_sequences.h"

namespace mkernel::kernels {

template <class Config>
struct AttentionBackwardScores {
  static constexpr int kSteps16 = Config::kTileQueries / 16;
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  /// [64 keys, 64 queries], in the order of wgmma's sums: score 4 * j + 2 * half + odd of a thread is of
  /// query 8 * j + 2 * (lane % 4) + odd, and of the upper or lower one of its two keys.
  using Scores = float[Config::kScores];
  using Narrowed = std::uint32_t[kSteps16][4];  ///< the same, as wgmma takes them from registers

  /// Hides keys behind the sequence, and those that come after a query of the tile, of which the first one
  /// sees `last_key`.
  static __device__ __forceinline__ void mask(Scores& scores, const AttentionBackwardTask& task, int last_key,
                                              int group) {
    const int offset = task.key + group * Config::kGroupKeys, keys = task.keys - offset;
    const int seen = last_key - offset;  // of the warpgroup's keys
    if (keys >= Config::kGroupKeys && (!Config::kCausal || seen >= Config::kGroupKeys - 1)) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = static_cast<int>(threadIdx.x / 32 % 4 * 16 + threadIdx.x / 4 % 8) + 8 * half;
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

  /// Likewise, of a sliding window: hides keys that are too far from a query on either side. The first query
  /// of the tile stands at `position`.
  static __device__ __forceinline__ void mask_window(Scores& scores, const AttentionBackwardTask& task,
                                                     int position, int group, const AttentionWindow& window) {
    const int offset = task.key + group * Config::kGroupKeys, keys = task.keys - offset;
    const int first_ahead = position - offset;  // of the warpgroup's first key
    if (keys >= Config::kGroupKeys && Config::kGroupKeys - 1 - first_ahead <= window.right &&
        first_ahead + Config::kTileQueries - 1 <= window.left)
      return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = static_cast<int>(threadIdx.x / 32 % 4 * 16 + threadIdx.x / 4 % 8) + 8 * half;
      const int column = static_cast<int>(threadIdx.x % 4 * 2), ahead = first_ahead - key;
      // Queries before `first` and behind `last` are hidden. Positions that are farther apart than a tile is
      // high decide on one side alone; without a limit the other side's number would be too large.
      const int first =
          (key >= keys ? Config::kTileQueries : -window.right - min(ahead, Config::kTileQueries)) - column;
      const int last = window.left - max(ahead, -Config::kTileQueries) - column;
#pragma unroll
      for (int i = 2 * half; i < Config::kScores; i += 4) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd)
          if (i / 4 * 8 + odd < first || i / 4 * 8 + odd > last) scores[i + odd] = -kInfinity;
      }
    }
  }

  /// Replaces scores by weights. `rows`: shared address of AttentionBackwardRows; `scale`: times log2(e), so
  /// that powers of two do.
  static __device__ __forceinline__ void exponentials(Scores& scores, std::uint32_t rows, float scale) {
    const std::uint32_t lse = rows + threadIdx.x % 4 * 8;
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
  static __device__ __forceinline__ void differentiate(Scores& weights, const Scores& d_weights,
                                                       std::uint32_t rows) {
    const std::uint32_t delta = rows + sizeof(AttentionBackwardRows::lse) + threadIdx.x % 4 * 8;
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
};

}  // namespace mkernel::kernels
