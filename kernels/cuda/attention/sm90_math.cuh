// The math warpgroups of the attention body: scores, softmax and weighted sums of values. What a feed is:
// sm90_attention.cuh.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/sm90_config.cuh"
#include "kernels/cuda/attention/sm90_softmax.cuh"
#include "kernels/cuda/gemm/sm90_element.cuh"
#include "kernels/cuda/gemm/sm90_piece.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/sync/trace.cuh"

namespace mkernel::kernels {

/// Named barriers of the math warpgroups; 0 is that of the whole CTA.
enum class AttentionBarrier : std::uint32_t { kTurn = 1, kScoresDone = 3 };  // one of each per warpgroup

/// The two warpgroups issue their products in turn: while the tensor cores work for one, the other computes
/// its softmax. Both take equally many turns.
class AttentionTurns {
 public:
  explicit __device__ __forceinline__ AttentionTurns(int group) : group_(group) {
    if (group_ == 1) pass();
  }
  __device__ __forceinline__ void take() const { ptx::barrier_sync(id(group_), kThreads); }
  __device__ __forceinline__ void pass() const { ptx::barrier_arrive(id(1 - group_), kThreads); }
  /// Takes the turn that nobody needs any more, so that no barrier is left half full.
  __device__ __forceinline__ void end() const {
    if (group_ == 0) take();
  }

 private:
  static constexpr std::uint32_t kThreads = 256;
  static __device__ __forceinline__ std::uint32_t id(int group) {
    return static_cast<std::uint32_t>(AttentionBarrier::kTurn) + group;
  }
  const int group_;
};

/// One math warpgroup (`group` 0 or 1): rows 64 * group .. of every tile of queries.
template <class Config>
class AttentionMath {
 public:
  __device__ __forceinline__ AttentionMath(int group, float scale, AttentionShared<Config>& shared)
      : group_(group),
        shared_(shared),
        softmax_(scale),
        key_stages_(shared.key_stages),
        value_stages_(shared.value_stages),
        queries_(ptx::shared_address(shared.queries) + group * Config::kGroupQueries * 128) {}

  template <class Feed>
  __device__ __forceinline__ void run(const Feed& feed) {
    Pipeline<Config::kTasks> tasks(shared_.tasks), outputs(shared_.outputs[group_]);
    const AttentionTurns turns(group_);
    for (int i = 0;; ++i, tasks.advance(), outputs.advance()) {
      tasks.wait_full();
      const AttentionTask& task = shared_.task[tasks.stage()];
      const int key_tiles = uniform(task.key_tiles);
      if (key_tiles == AttentionTask::kEnd) break;
      if (threadIdx.x % 128 == 0) begin_work(feed.trace());
      const std::uint32_t queries = queries_ + tasks.stage() * Config::kQueryBytes;
      attend(feed, task, key_tiles, queries, turns);
      if (threadIdx.x % 128 == 0) end_work(feed.trace(), DeviceWork::kProduct, i);
      softmax_.end();
      if (feed.lse() != nullptr) write_lse(task, feed.lse() + task.lse);
      write_output(queries);
      if (threadIdx.x % 32 == 0) outputs.arrive_full();
    }
    turns.end();
  }

 private:
  using Scores = float[Config::kScores];
  using Weights = std::uint32_t[Config::kTileKeys / 16][4];  ///< as wgmma takes them from registers

  /// All keys of a task: leaves the weighted sums of values in sums_, not yet divided.
  template <class Feed>
  __device__ __forceinline__ void attend(const Feed& feed, const AttentionTask& task, int all,
                                         std::uint32_t queries, const AttentionTurns& turns) {
    softmax_.begin();
    if (all == 0) {
#pragma unroll
      for (float& sum : sums_) sum = 0;
      return;
    }
    const std::uint64_t a = ptx::wgmma_descriptor_swizzle128(queries, 16, 8 * 128);
    AttentionSegment segment = uniform(task.first);
    Scores scores;
    Weights weights;
    float rescale[2];
    key_stages_.wait_full();
    multiply_keys(scores, a);
    ptx::wgmma_wait_group<0>();
    give_back(key_stages_);
    ptx::wgmma_pin(scores);
    if (whole_tiles(segment) == 0) mask(scores, segment, 0);
    if constexpr (requires { feed.hidden(task); }) mask_before(scores, feed.hidden(task));
    softmax_.update(scores, rescale);
    narrow(scores, weights);
    if (all > 1) key_stages_.wait_full();
    // `tile` counts within the segment, `done` over all segments.
    for (int index = 0, tile = 1, done = 1;;) {
      const int tiles = segment.tiles(Config::kTileKeys), whole = whole_tiles(segment);
      // Two loops, so that most tiles compute no mask.
      for (; tile < whole; ++tile, ++done)
        attend_tile<false>(scores, weights, a, segment, tile, done, all, turns);
      for (; tile < tiles; ++tile, ++done)
        attend_tile<true>(scores, weights, a, segment, tile, done, all, turns);
      if (++index >= feed.segments()) break;
      segment = uniform(feed.segment(task, index));
      tile = 0;
    }
    value_stages_.wait_full();
    multiply_values(weights, all > 1);
    ptx::wgmma_wait_group<0>();
    give_back(value_stages_);
    ptx::wgmma_pin(sums_);
  }

  /// What all lanes have read is the same, which the compiler learns from a shuffle. Loops that end by it
  /// leave the numbers of stages uniform, too, so the descriptors of products are computed in uniform
  /// registers: else every product waits for some ten instructions (4 to 9 % of the body's time on an H100).
  static __device__ __forceinline__ int uniform(int value) {
    return __shfl_sync(~0U, value, 0);
  }
  static __device__ __forceinline__ AttentionSegment uniform(AttentionSegment segment) {
    segment.keys = uniform(segment.keys);
    segment.visible = uniform(segment.visible);
    return segment;
  }

  /// Tiles that all queries of the warpgroup see as a whole: those before the end of what its first one sees.
  __device__ __forceinline__ int whole_tiles(const AttentionSegment& segment) const {
    const int seen = min(segment.visible + group_ * Config::kGroupQueries, segment.keys);
    return max(seen, 0) / Config::kTileKeys;
  }

  /// The scores of a tile, whose keys are here, and their softmax under the product of the weights of the
  /// tile before with its values. `done` of `all` tiles of the task were before it.
  template <bool kMasked>
  __device__ __forceinline__ void attend_tile(Scores& scores, Weights& weights, std::uint64_t queries,
                                              const AttentionSegment& segment, int tile, int done, int all,
                                              const AttentionTurns& turns) {
    float rescale[2];
    value_stages_.wait_full();
    turns.take();
    multiply_keys(scores, queries);
    multiply_values(weights, done > 1);
    turns.pass();
    ptx::wgmma_wait_group<1>();
    give_back(key_stages_);
    ptx::wgmma_pin(scores);
    if constexpr (kMasked) mask(scores, segment, tile);
    softmax_.update(scores, rescale);
    ptx::wgmma_pin(scores);
    // NOTES: this wait also keeps the softmax under the second product. Without something here that branches,
    // ptxas (13.0) moves the wait for that product up, before the powers of two.
    if (done + 1 < all) key_stages_.wait_full();
    ptx::wgmma_wait_group<0>();
    give_back(value_stages_);
    ptx::wgmma_pin(sums_);
#pragma unroll
    for (int j = 0; j < Config::kSums; ++j) sums_[j] *= rescale[j / 2 % 2];
    narrow(scores, weights);
  }

  /// scores = queries x keys^T, [64, kTileKeys]
  __device__ __forceinline__ void multiply_keys(Scores& scores, std::uint64_t a) const {
    // In units of 16 bytes, as descriptors count.
    const std::uint64_t b = ptx::wgmma_descriptor_swizzle128(
        ptx::shared_address(shared_.keys) + key_stages_.stage() * Config::kKeyBytes, 16, 8 * 128);
    ptx::wgmma_pin(scores);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < Config::kHeadDim / 16; ++step) {
      const std::uint64_t from_a = a + step / 4 * (Config::kQueryBoxBytes / 16) + step % 4 * 2;
      const std::uint64_t from_b = b + step / 4 * (Config::kKeyBoxBytes / 16) + step % 4 * 2;
      constexpr auto kMajor = ptx::WgmmaMajor::kK;
      if constexpr (Config::kTileKeys == 192) {
        ptx::wgmma_m64n192k16<Config::kWgmmaElement, kMajor>(scores, from_a, from_b, step > 0);
      } else if constexpr (Config::kTileKeys == 160) {
        ptx::wgmma_m64n160k16<Config::kWgmmaElement, kMajor>(scores, from_a, from_b, step > 0);
      } else {
        ptx::wgmma_m64n128k16<Config::kWgmmaElement, kMajor>(scores, from_a, from_b, step > 0);
      }
    }
    ptx::wgmma_commit_group();
  }

  /// sums (+)= weights x values, [64, kHeadDim]
  __device__ __forceinline__ void multiply_values(const Weights& weights, bool accumulate) {
    const std::uint64_t b = ptx::wgmma_descriptor_swizzle128(
        ptx::shared_address(shared_.values) + value_stages_.stage() * Config::kKeyBytes, Config::kKeyBoxBytes,
        8 * 128);
    ptx::wgmma_pin(sums_);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < Config::kTileKeys / 16; ++step) {
      const std::uint64_t from = b + step * (16 * 128 / 16);
      constexpr auto kMajor = ptx::WgmmaMajor::kMn;
      if constexpr (Config::kHeadDim == 128) {
        ptx::wgmma_m64n128k16<Config::kWgmmaElement, kMajor>(sums_, weights[step], from,
                                                             accumulate || step > 0);
      } else {
        ptx::wgmma_m64n64k16<Config::kWgmmaElement, kMajor>(sums_, weights[step], from,
                                                            accumulate || step > 0);
      }
    }
    ptx::wgmma_commit_group();
  }

  /// Hides the keys of a tile that are behind the segment, or come after a query.
  __device__ __forceinline__ void mask(Scores& scores, const AttentionSegment& segment, int tile) const {
    const int first_key = tile * Config::kTileKeys;
    const int visible = segment.visible + group_ * Config::kGroupQueries + row_in_group();
    const int of_row[2] = {min(visible, segment.keys) - first_key,
                           min(visible + 8, segment.keys) - first_key};
    softmax_.mask(scores, of_row);
  }

  /// Hides from the tile's first query the first `hidden` keys of the first tile, from the one behind it one
  /// more, and so on.
  __device__ __forceinline__ void mask_before(Scores& scores, int hidden) const {
    hidden += group_ * Config::kGroupQueries;
    if (hidden + Config::kGroupQueries <= 1) return;  // not even from the last query
    const int of_row[2] = {hidden + row_in_group(), hidden + row_in_group() + 8};
    softmax_.mask_before(scores, of_row);
  }

  static __device__ __forceinline__ void narrow(const Scores& scores, Weights& weights) {
#pragma unroll
    for (int i = 0; i < Config::kScores / 2; ++i)
      weights[i / 4][i % 4] = narrow_pair<Config::kInput>(scores[2 * i], scores[2 * i + 1]);
  }

  /// The upper one of the thread's two.
  static __device__ __forceinline__ int row_in_group() {
    return static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  }

  static __device__ __forceinline__ void give_back(Pipeline<Config::kStages>& stages) {
    if (threadIdx.x % 32 == 0) stages.arrive_empty();
    stages.advance();
  }

  /// One thread of a row.
  __device__ __forceinline__ void write_lse(const AttentionTask& task, float* lse) const {
    if (threadIdx.x % 4 != 0) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = group_ * Config::kGroupQueries + row_in_group() + 8 * half;
      if (task.query + row < task.queries) lse[row] = softmax_.log_sum_exp(half);
    }
  }

  /// Into the place of the queries, when all of the warpgroup has its scores.
  __device__ __forceinline__ void write_output(std::uint32_t to) {
    ptx::barrier_sync(static_cast<std::uint32_t>(AttentionBarrier::kScoresDone) + group_, 128);
    const float inverse[2] = {softmax_.inverse(0), softmax_.inverse(1)};
    const Sm90PieceRows rows;
#pragma unroll
    for (int box = 0; box < Config::kBoxes; ++box) {
      std::uint32_t packed[16];
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const float* pair = &sums_[box * 32 + 2 * j];
        packed[j] = narrow_pair<Config::kInput>(pair[0] * inverse[j % 2], pair[1] * inverse[j % 2]);
      }
      rows.write(to + box * Config::kQueryBoxBytes, packed);
    }
    ptx::fence_proxy_async_shared_cta();
    __syncwarp();
  }

  const int group_;
  AttentionShared<Config>& shared_;
  AttentionSoftmax<Config::kScores> softmax_;
  Pipeline<Config::kStages> key_stages_, value_stages_;
  const std::uint32_t queries_;
  float sums_[Config::kSums];
};

}  // namespace mkernel::kernels
