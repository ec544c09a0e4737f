// Loading and storing of the attention body. What a feed is: sm90_attention.cuh.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/sm90_config.cuh"
#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/sync/trace.cuh"

namespace mkernel::kernels {

/// The next tile of keys or of values of a task.
template <class Config>
__device__ __forceinline__ void attention_load_tile(const TensorMap& map, const AttentionTask& task, int tile,
                                                    std::uint32_t tiles, Pipeline<Config::kStages>& stages) {
  stages.wait_empty();
  stages.arrive_full_expect(Config::kKeyBytes);
  const std::uint32_t to = tiles + stages.stage() * Config::kKeyBytes;
#pragma unroll
  for (int box = 0; box < Config::kBoxes; ++box) {
    ptx::tma_load_3d(to + box * Config::kKeyBoxBytes, &map, task.key_column + box * 64,
                     tile * Config::kTileKeys, task.key_first, stages.full_barrier());
  }
  stages.advance();
}

/// The loading thread. It takes the next task when all loads of the one before are under way.
template <class Config, class Feed>
__device__ __forceinline__ void attention_load(const Feed& feed, AttentionShared<Config>& shared) {
  Pipeline<Config::kTasks> tasks(shared.tasks);
  Pipeline<Config::kStages> keys(shared.key_stages), values(shared.value_stages);
  const std::uint32_t to_queries = ptx::shared_address(shared.queries);
  const std::uint32_t to_keys = ptx::shared_address(shared.keys);
  const std::uint32_t to_values = ptx::shared_address(shared.values);

  for (int i = 0;; ++i, tasks.advance()) {
    AttentionTask task{};
    if (!feed.next(task)) task.key_tiles = AttentionTask::kEnd;
    tasks.wait_empty();
    shared.task[tasks.stage()] = task;
    if (task.key_tiles == AttentionTask::kEnd) return tasks.arrive_full();
    begin_work(feed.trace());
    tasks.arrive_full_expect(Config::kQueryBytes);
#pragma unroll
    for (int box = 0; box < Config::kBoxes; ++box) {
      ptx::tma_load_3d(to_queries + tasks.stage() * Config::kQueryBytes + box * Config::kQueryBoxBytes,
                       &feed.q(), task.query_column + box * 64, task.query, task.query_first,
                       tasks.full_barrier());
    }
    // In the order of use: scores of a tile are computed before the one before it meets its values.
    for (int tile = 0; tile <= task.key_tiles; ++tile) {
      if (tile < task.key_tiles) attention_load_tile<Config>(feed.k(), task, tile, to_keys, keys);
      if (tile > 0) attention_load_tile<Config>(feed.v(), task, tile - 1, to_values, values);
    }
    end_work(feed.trace(), DeviceWork::kLoad, i);
  }
}

/// One thread per math warpgroup (`group`): its rows of every task's output.
template <class Config, class Feed>
__device__ __forceinline__ void attention_store(const Feed& feed, int group,
                                                AttentionShared<Config>& shared) {
  Pipeline<Config::kTasks> tasks(shared.tasks), outputs(shared.outputs[group]);
  const std::uint32_t out = ptx::shared_address(shared.queries) + group * Config::kGroupQueries * 128;
  for (int i = 0;; ++i, tasks.advance(), outputs.advance()) {
    tasks.wait_full();
    const AttentionTask& task = shared.task[tasks.stage()];
    if (task.key_tiles == AttentionTask::kEnd) return;
    outputs.wait_full();
    begin_work(feed.trace());
    const int row = task.query + group * Config::kGroupQueries;
    if (row < task.queries) {
#pragma unroll
      for (int box = 0; box < Config::kBoxes; ++box) {
        ptx::tma_store_3d(&feed.out(), task.query_column + box * 64, row, task.query_first,
                          out + tasks.stage() * Config::kQueryBytes + box * Config::kQueryBoxBytes);
      }
      ptx::bulk_commit_group();
      ptx::bulk_wait_group_read<0>();
    }
    tasks.arrive_empty();
    end_work(feed.trace(), DeviceWork::kStore, i);
  }
}

}  // namespace mkernel::kernels
