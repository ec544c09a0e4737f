// The softmax of attention, tile of keys by tile of keys: what a thread knows of its two rows of scores. The
// four lanes of equal lane / 4 share rows lane / 4 and lane / 4 + 8 of the warp's 16.
#pragma once

#include <limits>

#include "kernels/cuda/ptx/math.cuh"

namespace mkernel::kernels {

/// kScores: of a thread in one tile, in the order of wgmma's sums: score 4 * j + 2 * half + odd is of row
/// `half` and of key 8 * j + 2 * (lane % 4) + odd of the tile.
template <int kScores>
class AttentionSoftmax {
 public:
  /// `scale`: of the scores, times log2(e), so that powers of two do.
  explicit __device__ __forceinline__ AttentionSoftmax(float scale) : scale_(scale) {}

  /// A new task.
  __device__ __forceinline__ void begin() {
    maximum_[0] = maximum_[1] = -kInfinity;
    sum_[0] = sum_[1] = 0;
  }

  /// Hides the keys of the tile from number `visible`[half] on.
  static __device__ __forceinline__ void mask(float (&scores)[kScores], const int (&visible)[2]) {
    const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      if (i / 4 * 8 + i % 2 >= visible[i / 2 % 2] - column) scores[i] = -kInfinity;
  }

  /// Hides the keys of the tile before number `hidden`[half].
  static __device__ __forceinline__ void mask_before(float (&scores)[kScores], const int (&hidden)[2]) {
    const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      if (i / 4 * 8 + i % 2 < hidden[i / 2 % 2] - column) scores[i] = -kInfinity;
  }

  /// Replaces the scores of the next tile by 2^(score - maximum so far). `rescale`[half]: what sums of
  /// earlier tiles are to be multiplied by.
  __device__ __forceinline__ void update(float (&scores)[kScores], float (&rescale)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float before = maximum_[half];
      const float now = fmaxf(before, maximum_of_row(scores, half));
      maximum_[half] = now;
      // As long as a row has seen no key, infinity must not be subtracted from itself.
      const float base = now == -kInfinity ? 0 : now * scale_;
      rescale[half] = ptx::ex2_approx_ftz(before * scale_ - base);
      float sum = sum_[half] * rescale[half];
#pragma unroll
      for (int i = 2 * half; i < kScores; i += 4) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          scores[i + odd] = ptx::ex2_approx_ftz(fmaf(scores[i + odd], scale_, -base));
          sum += scores[i + odd];
        }
      }
      sum_[half] = sum;
    }
  }

  /// After the last tile: the sum of all powers of each row.
  __device__ __forceinline__ void end() {
#pragma unroll
    for (float& sum : sum_) {
      sum += __shfl_xor_sync(~0U, sum, 1);
      sum += __shfl_xor_sync(~0U, sum, 2);
    }
  }
  /// 1 / the sum; 0 for a row that saw no key.
  __device__ __forceinline__ float inverse(int half) const {
    return sum_[half] == 0 ? 0 : 1 / sum_[half];
  }
  /// The natural logarithm of the sum of exponentials; minus infinity for a row that saw no key.
  __device__ __forceinline__ float log_sum_exp(int half) const {
    constexpr float kLn2 = 0.693147180559945309F;
    if (maximum_[half] == -kInfinity) return -kInfinity;
    return (maximum_[half] * scale_ + ptx::lg2_approx_ftz(sum_[half])) * kLn2;
  }

 private:
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();

  /// Two chains of comparisons, as each waits for the one before it.
  static __device__ __forceinline__ float maximum_of_row(const float (&scores)[kScores], int half) {
    float even = scores[2 * half], odd = scores[2 * half + 1];
#pragma unroll
    for (int i = 2 * half + 4; i < kScores; i += 4) {
      even = fmaxf(even, scores[i]);
      odd = fmaxf(odd, scores[i + 1]);
    }
    float maximum = fmaxf(even, odd);
    maximum = fmaxf(maximum, __shfl_xor_sync(~0U, maximum, 1));
    return fmaxf(maximum, __shfl_xor_sync(~0U, maximum, 2));
  }

  const float scale_;
  float maximum_[2], sum_[2];
};

}  // namespace mkernel::kernels
