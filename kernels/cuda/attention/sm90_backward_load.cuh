// Loading and storing of the backward body of attention. What a feed is: sm90_backward.cuh.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/sm90_backward_config.cuh"
#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/cuda/ptx/bulk.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/registers.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/sync/trace.cuh"

namespace mkernel::kernels {

/// The boxes of a tile of kRows rows.
template <int kBoxes, int kRows>
__device__ __forceinline__ void attention_load_boxes(std::uint32_t to, const TensorMap& map, int column,
                                                     int row, int first, std::uint32_t barrier) {
#pragma unroll
  for (int box = 0; box < kBoxes; ++box)
    ptx::tma_load_3d(to + box * kRows * 128, &map, column + box * 64, row, first, barrier);
}

/// The third coordinate of a tile of queries in its maps.
template <class Feed>
__device__ __forceinline__ int attention_query_first(const Feed& feed, const AttentionBackwardTask& task,
                                                     int tile) {
  if constexpr (Feed::kPacked) return feed.query_first(task, tile);
  return task.query_first;
}

/// Queries, gradients of their outputs, and what is known of their rows, for all steps of a task.
template <class Config, class Feed>
__device__ __forceinline__ void attention_backward_load_steps(const Feed& feed,
                                                              const AttentionBackwardTask& task,
                                                              Pipeline<Config::kStages>& stages,
                                                              AttentionBackwardShared<Config>& shared) {
  constexpr int kRows = Config::kTileQueries;
  AttentionBackwardSteps at(task.walk, task.heads);
  for (int step = 0; step < task.steps; ++step, stages.advance(), at.advance()) {
    if (at.begins_head()) feed.wait_rows(task, at.head());
    stages.wait_empty();
    shared.tiles[stages.stage()] = at.tile();
    stages.arrive_full_expect(2 * Config::kQueryBytes + sizeof(AttentionBackwardRows));
    const std::uint32_t full = stages.full_barrier();
    const int column = task.query_column + at.head() * Config::kHeadDim;
    // NOTES: a function that gives the row costs the kernels of sequences of one length registers.
    int row = at.tile() * kRows;
    if constexpr (Feed::kPacked) row = feed.query_row(task, at.tile());
    attention_load_boxes<Config::kBoxes, kRows>(ptx::shared_address(shared.queries[stages.stage()]),
                                                feed.q(at.tile()), column, row,
                                                attention_query_first(feed, task, at.tile()), full);
    ptx::tma_load_2d(ptx::shared_address(&shared.rows[stages.stage()]), &feed.row_map(), 0,
                     feed.tile_at(task, at.head(), at.tile()), full);
    attention_load_boxes<Config::kBoxes, kRows>(ptx::shared_address(shared.d_out[stages.stage()]),
                                                feed.d_out(at.tile()), column, row,
                                                attention_query_first(feed, task, at.tile()), full);
  }
}

/// The loading thread.
template <class Config, class Feed>
__device__ __forceinline__ void attention_backward_load(const Feed& feed,
                                                        AttentionBackwardShared<Config>& shared) {
  Pipeline<1> tasks(shared.tasks);
  Pipeline<Config::kStages> stages(shared.stages);
  AttentionBackwardTask& task = shared.task;
  for (int i = 0;; ++i, tasks.advance()) {
    tasks.wait_empty();
    if (!feed.next(task)) {
      task.steps = AttentionBackwardTask::kEnd;
      return tasks.arrive_full();
    }
    task.number = i;
    begin_work(feed.trace());
    tasks.arrive_full_expect(2 * Config::kKeyBytes);
    attention_load_boxes<Config::kBoxes, Config::kTileKeys>(ptx::shared_address(shared.keys), feed.k(task),
                                                            task.key_column, task.key, task.key_first,
                                                            tasks.full_barrier());
    attention_load_boxes<Config::kBoxes, Config::kTileKeys>(ptx::shared_address(shared.values), feed.v(task),
                                                            task.key_column, task.key, task.key_first,
                                                            tasks.full_barrier());
    attention_backward_load_steps(feed, task, stages, shared);
    end_work(feed.trace(), DeviceWork::kLoad, i);
  }
}

/// Adds a unit of a tile of queries, which lies in a stage of the warpgroup's sums, to those of the tiles of
/// keys before, when it is its turn.
template <class Config, class Feed>
__device__ __forceinline__ void attention_backward_add(
    const Feed& feed, const AttentionBackwardTask& task, int head, int tile, int unit,
    const Pipeline<Config::kStages>& sums, std::byte (&staged)[Config::kStages][Config::kUnitBytes]) {
  sums.wait_full();
  const std::uint32_t from = ptx::shared_address(staged[sums.stage()]);
  const std::int32_t at = feed.unit(task, head, tile, unit), turn = feed.turn(task, tile);
  if (turn == 0) {
    ptx::bulk_store(feed.sums(at), from, Config::kUnitBytes);
  } else {
    feed.wait_turn(at, turn);
    ptx::bulk_reduce_add_f32(feed.sums(at), from, Config::kUnitBytes);
  }
  ptx::bulk_commit_group();
  ptx::bulk_wait_group_read<0>();
  sums.arrive_empty();
  ptx::bulk_wait_group<0>();
  feed.pass_turn(at, turn);
}

/// One thread per math warpgroup (`group`): its gradients of keys and values. The task is over for it.
template <class Config, class Feed>
__device__ __forceinline__ void attention_backward_store_keys(const Feed& feed, int group,
                                                              const Pipeline<1>& tasks,
                                                              AttentionBackwardShared<Config>& shared) {
  const AttentionBackwardTask& task = shared.task;
  int offset = group * Config::kGroupKeys;
  ptx::compute_now(offset);  // so are the addresses below: registers are few
  if (task.key + offset >= task.keys) return tasks.arrive_empty();
  const auto stored = feed.store_keys(task, offset, ptx::shared_address(shared.keys) + offset * 128,
                                      ptx::shared_address(shared.values) + offset * 128);
  ptx::bulk_commit_group();
  ptx::bulk_wait_group_read<0>();
  tasks.arrive_empty();
  feed.announce(stored);
}

/// One thread per math warpgroup (`group`): its units of every tile of queries, and its gradients of every
/// tile of keys.
template <class Config, class Feed>
__device__ __forceinline__ void attention_backward_store(const Feed& feed, int group,
                                                         AttentionBackwardShared<Config>& shared) {
  const AttentionBackwardTask& task = shared.task;
  std::uint32_t added = 0;  // units; a pipeline with stage and phase would take more registers
  int turns = 0;            // of the warpgroups, where there is one unit per step
  for (std::uint32_t number = 0;; ++number) {
    Pipeline<1>(shared.tasks, number).wait_full();
    if (task.steps == AttentionBackwardTask::kEnd) return;
    begin_work(feed.trace());
    AttentionBackwardSteps at(task.walk, task.heads);
    for (int step = 0; step < task.steps; ++step, turns ^= 1, at.advance()) {
      if (!Config::kUnitEach && turns != group) continue;
      attention_backward_add<Config>(feed, task, at.head(), at.tile(), Config::kUnitEach ? group : 0,
                                     Pipeline<Config::kStages>(shared.sum_stages[group], added++),
                                     shared.sums[group]);
    }
    Pipeline<1>(shared.gradients[group], number).wait_full();
    end_work(feed.trace(), DeviceWork::kStore, task.number);
    attention_backward_store_keys(feed, group, Pipeline<1>(shared.tasks, number), shared);
  }
}

}  // namespace mkernel::kernels
