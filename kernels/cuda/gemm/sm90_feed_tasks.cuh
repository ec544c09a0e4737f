// The tasks of the GEMM body with a feed, as the roles of a CTA see them: a small ring in shared memory,
// which the feeding warp of the first CTA of a cluster fills for both. What a feed is: sm90_feed.cuh.
#pragma once

#include <cstddef>

#include "kernels/cuda/gemm/sm90_config.cuh"
#include "kernels/cuda/gemm/sm90_task.h"
#include "kernels/cuda/sync/pipeline.cuh"

namespace mkernel::kernels {

/// Shared memory of one CTA.
template <class Config>
struct alignas(1024) Sm90FeedShared {
  /// One that is stored, one that is multiplied, and the next one. With more, a cluster would take tasks that
  /// others could begin earlier.
  static constexpr int kTasks = 3;

  Sm90Shared<Config> body;
  Sm90Task task[kTasks];
  PipelineBarriers<kTasks> tasks;  ///< feed -> the other roles of both CTAs; empty in the first CTA
};

/// Dynamic shared memory of a launch.
template <class Config>
constexpr std::size_t sm90_feed_shared_bytes() {
  static_assert(sizeof(Sm90FeedShared<Config>) <= 227 * 1024, "more than a CTA can have");
  return sizeof(Sm90FeedShared<Config>);
}

/// Boxes of 64 columns that are left out of a task: none, unless the feed cuts tasks. What is multiplied in
/// their place is never stored.
template <class Feed>
__device__ __forceinline__ int sm90_left_out(const Sm90Task& task) {
  if constexpr (requires { Feed::kCutsTasks; }) {
    return task.left_out;
  } else {
    return 0;
  }
}

/// Low boxes of a, when the task has few rows; 0: it has many, or the feed has no low boxes. Rows that are
/// not loaded are multiplied as the stage was before: they come into rows of the product that nobody stores.
template <class Feed>
__device__ __forceinline__ int sm90_low_boxes(const Feed& feed, const Sm90Task& task) {
  if constexpr (requires { feed.low_a(0); }) {
    return task.low_boxes;
  } else {
    return 0;
  }
}

/// Bytes that come into one CTA's stage in a step along k.
template <class Config, class Feed>
__device__ __forceinline__ int sm90_feed_step_bytes(const Feed& feed, const Sm90Task& task) {
  int bytes =
      Sm90Stage<Config, Config>::kStepBytes - sm90_left_out<Feed>(task) * (Config::kBBytes / Config::kBBoxes);
  if (const int boxes = sm90_low_boxes(feed, task); boxes > 0)
    bytes -= Config::kABytes - boxes * Sm90Task::kLowBoxRows * Config::kRowBytes;
  return bytes;
}

/// A reader's place among the tasks of its CTA.
template <class Config>
class Sm90Tasks {
 public:
  /// Threads or warps that read a task: they load, store and multiply.
  static constexpr int kReaders = 1 + Config::kMultiplyWarpgroups * 5;

  explicit __device__ __forceinline__ Sm90Tasks(Sm90FeedShared<Config>& shared)
      : shared_(shared), place_(shared.tasks) {}

  __device__ __forceinline__ bool is_there() const { return place_.test_full(); }
  __device__ __forceinline__ const Sm90Task& wait() const {
    place_.wait_full_cluster();
    return shared_.task[place_.stage()];
  }
  /// By one thread of each reader, when the task is done with: what was read has long been used.
  __device__ __forceinline__ void give_back() const { place_.arrive_empty_at(0); }
  __device__ __forceinline__ void advance() { place_.advance(); }

 private:
  Sm90FeedShared<Config>& shared_;
  Pipeline<Sm90FeedShared<Config>::kTasks> place_;
};

}  // namespace mkernel::kernels
