// Loading and storing of the attention body. What a feed is: sm90_attention.cuh.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/sm90_config.cuh"
#include "kernels/cuda/memory/tensor_map.h"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/sync/trace.cuh"

namespace mkernel::kernels {

enum class AttentionOperand { kKeys, kValues };

/// Rows of keys or of values: their map, the columns where those of the head begin, the row of memory where
/// those of the sequence begin, and how many rows of the map come before them.
struct AttentionRows {
  const TensorMap* map;
  std::int32_t column;
  std::int32_t first;
  std::int32_t before = 0;
};

/// Walks the tiles of keys of a task, segment after segment.
template <class Config, class Feed>
class AttentionTiles {
 public:
  __device__ __forceinline__ AttentionTiles(const Feed& feed, const AttentionTask& task)
      : feed_(feed), task_(task), left_(task.first.tiles(Config::kTileKeys)) {}

  __device__ __forceinline__ int segment() const { return segment_; }
  /// The first key of the tile, in its segment.
  __device__ __forceinline__ int row() const { return row_; }
  __device__ __forceinline__ void advance() {
    row_ += Config::kTileKeys;
    if (--left_ > 0) return;
    row_ = 0;
    while (left_ <= 0 && ++segment_ < feed_.segments())
      left_ = feed_.segment(task_, segment_).tiles(Config::kTileKeys);
  }

 private:
  const Feed& feed_;
  const AttentionTask& task_;
  int segment_ = 0, row_ = 0, left_;
};

/// The next tile of keys or of values of a task.
template <class Config, AttentionOperand kOperand, class Feed>
__device__ __forceinline__ void attention_load_tile(const Feed& feed, const AttentionTask& task,
                                                    AttentionTiles<Config, Feed>& at, std::uint32_t tiles,
                                                    Pipeline<Config::kStages>& stages) {
  const AttentionRows rows = feed.template rows<kOperand>(task, at.segment(), at.row());
  stages.wait_empty();
  stages.arrive_full_expect(Config::kKeyBytes);
  const std::uint32_t to = tiles + stages.stage() * Config::kKeyBytes;
#pragma unroll
  for (int box = 0; box < Config::kBoxes; ++box) {
    ptx::tma_load_3d(to + box * Config::kKeyBoxBytes, rows.map, rows.column + box * 64,
                     rows.before + at.row(), rows.first, stages.full_barrier());
  }
  stages.advance();
  at.advance();
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
    AttentionTask next{};
    if (!feed.next(next)) next.key_tiles = AttentionTask::kEnd;
    tasks.wait_empty();
    // It is read from there: registers are few, and it stays until its outputs are stored.
    AttentionTask& task = shared.task[tasks.stage()];
    task = next;
    if (task.key_tiles == AttentionTask::kEnd) return tasks.arrive_full();
    begin_work(feed.trace());
    tasks.arrive_full_expect(Config::kQueryBytes);
#pragma unroll
    for (int box = 0; box < Config::kBoxes; ++box) {
      ptx::tma_load_3d(to_queries + tasks.stage() * Config::kQueryBytes + box * Config::kQueryBoxBytes,
                       &feed.q(task), task.query_column + box * 64, task.query, task.query_first,
                       tasks.full_barrier());
    }
    // In the order of use: scores of a tile are computed before the one before it meets its values.
    AttentionTiles<Config, Feed> of_keys(feed, task), of_values(feed, task);
    for (int tile = 0; tile <= task.key_tiles; ++tile) {
      if (tile < task.key_tiles)
        attention_load_tile<Config, AttentionOperand::kKeys>(feed, task, of_keys, to_keys, keys);
      if (tile > 0)
        attention_load_tile<Config, AttentionOperand::kValues>(feed, task, of_values, to_values, values);
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
        ptx::tma_store_3d(&feed.out(task), task.query_column + box * 64, row, task.query_first,
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
