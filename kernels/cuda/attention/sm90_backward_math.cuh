// The math warpgroups of the backward body of attention. What a feed is: sm90_backward.cuh.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/sm90_backward_config.cuh"
#include "kernels/cuda/attention/sm90_backward_scores.cuh"
#include "kernels/cuda/gemm/sm90_element.cuh"
#include "kernels/cuda/gemm/sm90_piece.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/registers.cuh"
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
    for (std::uint32_t number = 0;; ++number) {
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
      __syncwarp();
      if (threadIdx.x % 32 == 0) Pipeline<1>(shared_.gradients[group_]).arrive_full();
    }
  }

 private:
  static constexpr std::uint32_t kAllDone = 1;  ///< a named barrier; 0 is that of the whole CTA
  using Stages = Pipeline<Config::kStages>;
  using Of = AttentionBackwardScores<Config>;
  using Scores = typename Of::Scores;
  using Narrowed = typename Of::Narrowed;
  using Sums = float[Config::kSums];  ///< [64 keys, head_dim]
  using Unit = float[32];             ///< [64 queries, 64 columns]

  struct Registers {
    Scores scores, d_weights;
    Narrowed weights, d_scores;
    Unit unit;
  };

  /// All steps of a task. There is always a product for the tensor cores to work on:
  ///
  ///   in flight              | meanwhile
  ///   d_out v^T              | weights
  ///   d_v                    | gradients of the scores
  ///   d_k, d_q               | wait for the queries of the next step
  ///   q k^T of the next step | d_q on its way to shared memory
  ///
  /// d_q is that of the step before, for which the other warpgroup has had time to write its gradients of the
  /// scores.
  template <class Feed>
  __device__ __forceinline__ void walk(const Feed& feed) {
    Registers r;
    Stages(shared_.stages, done_).wait_full();
    multiply(r.scores, keys(), queries(), done_);
    multiply(r.d_weights, values(), d_out(), done_);
    ptx::wgmma_wait_group<1>();
    if (shared_.task.steps == 1) {
      step<true, true>(feed, r);
    } else {
      step<true, false>(feed, r);
      for (int left = shared_.task.steps - 2; left > 0; --left) step<false, false>(feed, r);
      step<false, true>(feed, r);
    }
    sum_queries(r.unit, done_ - 1);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_pin(d_values_);
    ptx::wgmma_pin(d_keys_);
    write_unit(r.unit, done_ - 1);
  }

  /// One step, whose scores are here; the gradients of their weights are in flight.
  /// NOTES: ptxas (13.0) lets a product stay in flight from one round of a loop to the next only if nothing
  /// else is when it is waited for.
  template <bool kFirst, bool kLast, class Feed>
  __device__ __forceinline__ void step(const Feed& feed, Registers& r) {
    ptx::wgmma_pin(r.scores);
    if constexpr (Config::kWindow) {
      Of::mask_window(r.scores, shared_.task, last_key(), group_, feed.window());
    } else {
      Of::mask(r.scores, shared_.task, last_key(), group_);
    }
    Of::exponentials(r.scores, rows(), feed.scale_log2());
    ptx::wgmma_pin(r.scores);
    // NOTES: this stage is known to be full. Without something here that branches, ptxas (13.0) moves the
    // wait for the product in flight up, before the powers of two.
    Stages(shared_.stages, done_).wait_full();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_pin(r.d_weights);
    Of::narrow(r.scores, r.weights);
    accumulate(d_values_, r.weights, d_out(), !kFirst);
    Of::differentiate(r.scores, r.d_weights, rows());
    Of::narrow(r.scores, r.d_scores);
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
    __syncwarp();  // all lanes have read what is known of the rows
    if (threadIdx.x % 32 == 0) stages.arrive_empty();
  }
  static __device__ __forceinline__ std::uint32_t stage_of(std::uint32_t step) {
    return step % Config::kStages;
  }
  /// Whether the warpgroup hands on d_q of a step.
  __device__ __forceinline__ bool gives_unit(std::uint32_t step) const {
    return Config::kUnitEach || static_cast<int>(step % Config::kMathWarpgroups) == group_;
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
    for (int k = 0; k < Of::kSteps16; ++k) {
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

  /// unit = gradients of the scores^T x keys, [64, 64], when both warpgroups have written theirs.
  __device__ __forceinline__ void sum_queries(Unit& unit, std::uint32_t step) const {
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
    ptx::wgmma_commit_group();
  }

  /// The unit that sum_queries() has computed, to the storing thread.
  __device__ __forceinline__ void write_unit(Unit& unit, std::uint32_t step) const {
    give_back(Stages(shared_.score_stages, step));
    ptx::wgmma_pin(unit);
    if (!gives_unit(step)) return;
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

  /// Address of what is known of the step's queries.
  __device__ __forceinline__ std::uint32_t rows() const {
    return ptx::shared_address(shared_.rows) + stage_of(done_) * sizeof(AttentionBackwardRows);
  }

  /// Causal: the last key that the first query of the step's tile sees, which stands there. NOTES: only the
  /// lane that gives the stage and the task back reads what it is made of, since racecheck does not see that
  /// the reads of the others come before that, too.
  __device__ __forceinline__ int last_key() const {
    if constexpr (!Config::kCausal && !Config::kWindow) return 0;  // no mask asks
    int key = 0;
    if (threadIdx.x % 32 == 0)
      key = shared_.task.first_key + shared_.tiles[stage_of(done_)] * Config::kTileQueries;
    return __shfl_sync(~0U, key, 0);
  }

  /// Rows of keys, for sum_queries() of both warpgroups in the next step.
  __device__ __forceinline__ void write_scores(const Narrowed& d_scores) const {
    const Stages stages(shared_.score_stages, done_);
    stages.wait_empty();
    std::uint32_t packed[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) packed[i] = d_scores[i / 4][i % 4];
    Sm90PieceRows rows;
    ptx::compute_now(rows);  // else ptxas keeps all addresses in registers, and has none left
    rows.write(ptx::shared_address(shared_.scores) + stages.stage() * Config::kScoreBytes +
                   group_ * Config::kGroupScoreBytes,
               packed);
    ptx::fence_proxy_async_shared_cta();
    __syncwarp();
    if (threadIdx.x % 32 == 0) stages.arrive_full();
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
