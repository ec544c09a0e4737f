// What of the backward body of attention is fixed at compile time, and the shared memory that follows from
// it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/types.h"
#include "kernels/cuda/attention/sm90_backward_rows.h"
#include "kernels/cuda/gemm/sm90_element.cuh"
#include "kernels/cuda/sync/pipeline.cuh"
#include "kernels/plan/attention_backward_tasks.h"

namespace mkernel::kernels {

/// A tile of keys of one head, and the tiles of queries that it walks, of every head that shares the keys.
/// Rows and columns are those of the tensors seen as matrices: a row for each
/// position, in it the heads side by side.
struct alignas(16) AttentionBackwardTask {
  static constexpr std::int32_t kEnd = -1;

  std::int32_t steps;      ///< tiles of queries of all heads, at least 1; kEnd: there are no more tasks
  std::int32_t key;        ///< position of the tile's first key in its sequence
  std::int32_t keys;       ///< of the sequence
  std::int32_t key_first;  ///< row where the keys of the sequence begin
  std::int32_t key_column;
  AttentionBackwardWalk walk;
  std::int32_t heads;         ///< that share the keys
  std::int32_t query_first;   ///< row where the queries of the sequence begin
  std::int32_t query_column;  ///< of the first head
  std::int32_t first_key;  ///< causal: the first query sees the keys before `first_key` + 1; may be negative.
                           ///< With a window: its own position
  std::int32_t head;       ///< the first one, counted over all sequences
  std::int32_t number;     ///< counted by the CTA
  // For the feed alone.
  bool downwards;
  std::int32_t source;     ///< whose keys they are
  std::int32_t unit;       ///< of the gradients of keys: of the first 64
  std::int32_t before[2];  ///< adds before its own, by part of the queries
  std::int32_t query_end;  ///< row behind the last query of the sequence
};

/// Warps 0-3: producer warpgroup (load, store), 4-11: two math warpgroups, each with half of the keys.
template <int kHeadDim_, bool kCausal_, DataType kInput_>
struct AttentionBackwardConfig {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kCausal = kCausal_;
  static constexpr bool kWindow = false;
  static constexpr DataType kInput = kInput_;

  static constexpr int kTileKeys = kBackwardTileKeys;
  static constexpr int kTileQueries = kBackwardTileQueries;
  static constexpr int kCluster = 1;
  static constexpr int kMathWarpgroups = 2;
  static constexpr int kThreads = (1 + kMathWarpgroups) * 128;
  static constexpr int kGroupKeys = kTileKeys / kMathWarpgroups;  ///< rows of one wgmma

  // A tile lies in boxes of 64 columns: rows of 128 bytes, as the copy engine swizzles them.
  static constexpr int kBoxes = kHeadDim / 64;
  static constexpr int kKeyBoxBytes = kTileKeys * 128;
  static constexpr int kQueryBoxBytes = kTileQueries * 128;
  static constexpr int kKeyBytes = kBoxes * kKeyBoxBytes;
  static constexpr int kQueryBytes = kBoxes * kQueryBoxBytes;
  static constexpr int kScoreBytes = kTileKeys * kTileQueries * 2;
  static constexpr int kGroupScoreBytes = kScoreBytes / kMathWarpgroups;

  static constexpr int kStages = 2;  ///< of everything that there is once per step

  // The gradient of a tile of queries is summed in units of 64 rows and 64 columns of fp32. Of two units each
  // warpgroup computes one; where there is but one, both compute it and take turns in handing it on.
  // NOTES: products under a branch are serialized by ptxas (13.0).
  static constexpr int kUnits = kBoxes;
  static constexpr bool kUnitEach = kUnits == kMathWarpgroups;
  static constexpr int kUnitElements = kTileQueries * 64;
  static constexpr int kUnitBytes = kUnitElements * 4;

  static constexpr int kScores = kTileQueries / 2;  ///< registers of a thread
  static constexpr int kSums = kHeadDim / 2;

  static constexpr int kProducerRegisters = 40;
  static constexpr int kMathRegisters = 232;
  static constexpr auto kWgmmaElement = sm90_wgmma_element(kInput);

  static_assert(kGroupKeys == 64 && kTileQueries == 64 && (kBoxes == 1 || kBoxes == 2));
};

/// With a sliding window, of which a causal mask is a case.
template <int kHeadDim, DataType kInput>
struct AttentionBackwardWindowConfig : AttentionBackwardConfig<kHeadDim, false, kInput> {
  static constexpr bool kWindow = true;
};

/// Shared memory of one CTA, at a 1024-byte boundary (the swizzle's period).
template <class Config>
struct alignas(1024) AttentionBackwardShared {
  std::byte keys[Config::kKeyBytes];    ///< at the end of a task its gradients of keys
  std::byte values[Config::kKeyBytes];  ///< likewise, of values
  std::byte queries[Config::kStages][Config::kQueryBytes];
  std::byte d_out[Config::kStages][Config::kQueryBytes];
  /// Gradients of the scores [keys, queries], in the io type.
  std::byte scores[Config::kStages][Config::kScoreBytes];
  /// Unit by unit, in the order of registers: [8 columns in 8][thread][4].
  std::byte sums[Config::kMathWarpgroups][Config::kStages][Config::kUnitBytes];
  AttentionBackwardRows rows[Config::kStages];
  std::int32_t tiles[Config::kStages];  ///< number of the tile of queries in its head
  AttentionBackwardTask task;
  PipelineBarriers<1> tasks;                       ///< load -> math, store; empty by store
  PipelineBarriers<Config::kStages> stages;        ///< load -> math
  PipelineBarriers<Config::kStages> score_stages;  ///< math -> math
  PipelineBarriers<Config::kStages> sum_stages[Config::kMathWarpgroups];  ///< math -> store
  PipelineBarriers<1> gradients[Config::kMathWarpgroups];  ///< math -> store; never empty: `tasks`
};

}  // namespace mkernel::kernels
