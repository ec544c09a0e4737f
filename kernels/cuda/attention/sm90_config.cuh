// What of the attention body is fixed at compile time, and the shared memory that follows from it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/types.h"
#include "kernels/cuda/attention/sm90_task.h"
#include "kernels/cuda/gemm/sm90_element.cuh"
#include "kernels/cuda/sync/pipeline.cuh"
#include "kernels/plan/attention_tasks.h"

namespace mkernel::kernels {

/// Warps 0-3: producer warpgroup (load, store), 4-11: two math warpgroups, each with half of the queries.
template <int kHeadDim_, int kTileKeys_, DataType kInput_>
struct AttentionConfig {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr DataType kInput = kInput_;

  static constexpr int kTileQueries = kAttentionTileQueries;
  static constexpr int kTileKeys = kTileKeys_;
  static constexpr int kCluster = 1;
  static constexpr int kMathWarpgroups = 2;
  static constexpr int kThreads = (1 + kMathWarpgroups) * 128;
  static constexpr int kGroupQueries = kTileQueries / kMathWarpgroups;  ///< rows of one wgmma

  // A tile lies in boxes of 64 columns: rows of 128 bytes, as the copy engine swizzles them.
  static constexpr int kBoxes = kHeadDim / 64;
  static constexpr int kQueryBoxBytes = kTileQueries * 128;
  static constexpr int kKeyBoxBytes = kTileKeys * 128;
  static constexpr int kQueryBytes = kBoxes * kQueryBoxBytes;
  static constexpr int kKeyBytes = kBoxes * kKeyBoxBytes;

  static constexpr int kTasks = 2;  ///< the one that is computed, and the next one, whose queries are loaded
  static constexpr int kStages = kHeadDim == 64 ? 3 : 2;  ///< tiles of keys, and as many of values

  static constexpr int kScores = kTileKeys / 2;  ///< registers of a thread
  static constexpr int kSums = kHeadDim / 2;

  static constexpr int kProducerRegisters = 56;
  static constexpr int kMathRegisters = 224;
  static constexpr auto kWgmmaElement = sm90_wgmma_element(kInput);

  static_assert(kGroupQueries == 64 && kTileKeys % 16 == 0 && kHeadDim % 64 == 0);
  static_assert(kKeyBoxBytes % 1024 == 0, "the period of the swizzle");
};

/// Shared memory of one CTA, at a 1024-byte boundary (the swizzle's period).
template <class Config>
struct alignas(1024) AttentionShared {
  /// Once the scores of a task are computed, its outputs on their way to memory.
  std::byte queries[Config::kTasks][Config::kQueryBytes];
  std::byte keys[Config::kStages][Config::kKeyBytes];
  std::byte values[Config::kStages][Config::kKeyBytes];
  AttentionTask task[Config::kTasks];
  PipelineBarriers<Config::kTasks> tasks;                             ///< load -> math, store; empty by store
  PipelineBarriers<Config::kTasks> outputs[Config::kMathWarpgroups];  ///< math -> store; never empty: `tasks`
  PipelineBarriers<Config::kStages> key_stages, value_stages;         ///< load -> math
};

}  // namespace mkernel::kernels
