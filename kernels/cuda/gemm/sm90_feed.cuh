// The GEMM body with a feed of tasks: which tile comes next is found out while the kernel runs, by one warp
// for both CTAs of a cluster, one task ahead. Tiles are kTileM x kTileN; the two of a cluster lie above each
// other or side by side, from task to task. The weights are matrices one behind the other. What the feed
// brings:
//
//   struct Feed {                            // the same in every role; const
//     bool begin() const;                    // one whole warp, once: false: there are no tasks
//     bool next(Sm90Task& first, Sm90Task& second) const;  // the same warp: the tasks of both CTAs, whose
//                                            // rows of a may be read now; false: there are no more
//     int foresee(Sm90Task& task) const;     // optional; the loading thread, before there is a task: where
//                                            // in b the first one may lie, and how many steps along k of it
//                                            // to bring into the L2 meanwhile
//     int k_blocks(int product) const;       // ceil(k / kTileK) >= 1
//     const TensorMap* a(int product) const; // boxes of 64 rows x kTileK
//     const TensorMap* low_a(int product) const;  // optional: boxes of Sm90Task::kLowBoxRows x kTileK, for
//                                            // tasks of few rows (Sm90Task::low_boxes)
//     const TensorMap* b(int product, int half) const;  // of the first or second half of a tile's columns;
//                                            // boxes of 64 columns x kTileK, with a third coordinate
//     int matrix_rows(int product) const;    // rows of memory from one matrix of b to the next
//     bool gated(int product) const;         // the columns are gates, and what they let through: of the
//                                            // tile half as many columns are stored
//     const TensorMap* c(int product) const; // of a gated product: where its tiles go
//     int columns() const;                   // of other products: they go row by row,
//     std::byte* row_of(const Sm90Task& task, int row) const;  // where row `row` of the tile begins
//     void after_store(const Sm90Task& task) const;  // one whole warp, once the tile is complete in memory
//                                            // and visible to it: a release hands it on
//     static constexpr bool kCutsTasks;      // optional: tasks may leave out columns (Sm90Task::left_out)
//     void after_products() const;           // every multiplying warp, after its last tile
//     void beside_products() const;          // optional: one warp of every second CTA, meanwhile; no tile
//                                            // may wait for it
//   };
//
// Contract: all threads of both CTAs of a cluster call sm90_feed(). next() may wait for tiles that were
// handed out before: the end of a tile never depends on the next task.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gemm/sm90_body.cuh"
#include "kernels/cuda/gemm/sm90_feed_store.cuh"
#include "kernels/cuda/gemm/sm90_feed_tasks.cuh"
#include "kernels/cuda/gemm/sm90_task.h"
#include "kernels/cuda/ptx/shared.cuh"

namespace mkernel::kernels {

/// Writes a task into shared memory of a CTA of the cluster.
__device__ __forceinline__ void sm90_hand_out(const Sm90Task& task, std::uint32_t to) {
  const auto store = [to](int i, std::int32_t x, std::int32_t y, std::int32_t z, std::int32_t w) {
    ptx::st_shared_cluster_v4(to + i * sizeof(uint4),
                              {static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(y),
                               static_cast<std::uint32_t>(z), static_cast<std::uint32_t>(w)});
  };
  store(0, task.product, task.side_by_side, task.a_row, task.b_matrix);
  store(1, task.b_column, task.b_column2, task.c_column, task.rows);
  store(2, task.block, task.column, task.left_out, task.low_boxes);
}

/// The warp that takes tasks, in the first CTA of the cluster.
template <class Config, class Feed>
__device__ __forceinline__ void sm90_feed_tasks(const Feed& feed, Sm90FeedShared<Config>& shared) {
  constexpr int kTasks = Sm90FeedShared<Config>::kTasks;
  Pipeline<kTasks> tasks(shared.tasks);
  const std::uint32_t lane = threadIdx.x % 32;
  for (bool more = feed.begin(), last = false; !last; tasks.advance()) {
    tasks.wait_empty_cluster();
    Sm90Task first{}, second{};
    more = more && feed.next(first, second);
    last = !more;
    if (last) first.product = second.product = Sm90Task::kEnd;
    const std::uint32_t at = ptx::shared_address(&shared.task[tasks.stage()]);
    if (lane == 0) {
      sm90_hand_out(first, ptx::map_to_cta(at, 0));
      tasks.arrive_full_at(0);
    } else if (lane == 1) {
      sm90_hand_out(second, ptx::map_to_cta(at, 1));
      tasks.arrive_full_at(1);
    }
    __syncwarp();
  }
}

/// `load(box, map, x, y)` for box `box` of b, of the step that begins at `k`.
template <class Config, class Feed, class Load>
__device__ __forceinline__ void sm90_feed_box(const Feed& feed, const Sm90Task& task, int box, int k,
                                              const Load& load) {
  constexpr int kHalf = Config::kBBoxes / 2;
  const int half = box / kHalf;
  const TensorMap* b = feed.b(task.product, half);
  const int column = (half == 0 ? task.b_column : task.b_column2) + box % kHalf * 64;
  if constexpr (Config::kLayoutB == Layout::kRowMajor) {
    load(box, b, column, k);
  } else {
    load(box, b, k, column);
  }
}

/// The loading thread, while there is no task yet.
template <class Config, class Feed>
__device__ __forceinline__ void sm90_feed_foresee(const Feed& feed) {
  Sm90Task task{};
  const int steps = feed.foresee(task);
  const int matrix = task.b_matrix * feed.matrix_rows(task.product);
  for (int step = 0; step < steps; ++step) {
    for (int box = 0; box < Config::kBBoxes; ++box) {
      sm90_feed_box<Config>(
          feed, task, box, step * Config::kTileK,
          [&](int, const TensorMap* b, int x, int y) { ptx::tma_prefetch_3d(b, x, y, matrix); });
    }
  }
}

/// The operands of one step along k. CTAs above each other have their own rows of a and share b, of which
/// each loads half of the boxes for both; side by side it is the other way round.
template <class Config, class Feed>
__device__ __forceinline__ void sm90_feed_step(const Feed& feed, const Sm90Task& task, int k,
                                               Sm90Shared<Config>& shared,
                                               const Pipeline<Config::kStages>& stages) {
  using Stage = Sm90Stage<Config, Config>;
  constexpr int kBoxes = Config::kBBoxes, kEach = kBoxes / Config::kCluster;
  constexpr std::uint32_t kBoxA = Config::kABytes / 2, kBoxB = Config::kBBytes / kBoxes;
  static_assert(Config::kTileM == 128 && Config::kCluster == 2 && kBoxes % 2 == 0);
  const std::uint32_t operands = ptx::shared_address(shared.a), full = stages.full_barrier();
  const std::uint32_t to_a = operands + Stage::a(stages.stage(), 0);
  const std::uint32_t to_b = operands + Stage::b(stages.stage(), 0);
  const auto part = static_cast<int>(ptx::cluster_cta_rank());
  const TensorMap* a = feed.a(task.product);
  const int matrix = task.b_matrix * feed.matrix_rows(task.product);
  constexpr std::uint16_t kBoth = 0b11;
  if (task.side_by_side != 0) {
    if (const int boxes = sm90_low_boxes(feed, task); boxes > 0) {
      if constexpr (requires { feed.low_a(0); }) {
        // Each CTA loads every second one for both.
#pragma unroll 1
        for (int box = part; box < boxes; box += Config::kCluster) {
          const int row = box * Sm90Task::kLowBoxRows;
          ptx::tma_load_multicast_2d(to_a + row * Config::kRowBytes, feed.low_a(task.product), k,
                                     task.a_row + row, full, kBoth);
        }
      }
    } else {
      ptx::tma_load_multicast_2d(to_a + part * kBoxA, a, k, task.a_row + part * 64, full, kBoth);
    }
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      if (box >= kBoxes - sm90_left_out<Feed>(task)) break;
      sm90_feed_box<Config>(feed, task, box, k, [&](int i, const TensorMap* b, int x, int y) {
        ptx::tma_load_3d(to_b + i * kBoxB, b, x, y, matrix, full);
      });
    }
  } else {
    for (const int box : {0, 1}) ptx::tma_load_2d(to_a + box * kBoxA, a, k, task.a_row + box * 64, full);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      sm90_feed_box<Config>(feed, task, part * kEach + i, k, [&](int box, const TensorMap* b, int x, int y) {
        ptx::tma_load_multicast_3d(to_b + box * kBoxB, b, x, y, matrix, full, kBoth);
      });
    }
  }
}

/// The loading thread.
template <class Config, class Feed>
__device__ __forceinline__ void sm90_feed_load(const Feed& feed, Sm90FeedShared<Config>& shared) {
  Sm90Tasks<Config> tasks(shared);
  Pipeline<Config::kStages> stages(shared.body.stages);
  if constexpr (requires(Sm90Task & task) { feed.foresee(task); }) sm90_feed_foresee<Config>(feed);
  for (int i = 0;; ++i, tasks.advance()) {
    const Sm90Task task = tasks.wait();
    if (task.product == Sm90Task::kEnd) break;
    // What the feed has acquired was written by ordinary stores or by others' copies; TMA reads it next.
    ptx::fence_proxy_async_global();
    begin_work(sm90_trace(feed));
    const int k_blocks = feed.k_blocks(task.product);
    for (int block = 0; block < k_blocks; ++block, stages.advance()) {
      stages.wait_empty_cluster();
      stages.arrive_full_expect(sm90_feed_step_bytes<Config>(feed, task));
      sm90_feed_step<Config>(feed, task, block * Config::kTileK, shared.body, stages);
    }
    end_work(sm90_trace(feed), DeviceWork::kLoad, i);
    tasks.give_back();
  }
}

/// One multiplying warpgroup: the rows 64 * group .. of every tile. It passes over a tile that ends before.
template <class Config, class Feed>
__device__ __forceinline__ void sm90_feed_multiply(const Feed& feed, int group,
                                                   Sm90FeedShared<Config>& shared) {
  using Stage = Sm90Stage<Config, Config>;
  static_assert(Config::kBlocks == 1 && Stage::kSteps == 1 && Config::kHeld > 0);
  constexpr int kGroupABytes = Config::kABytes / Config::kMultiplyWarpgroups;
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t operands = ptx::shared_address(shared.body.a);
  const std::uint64_t a = ptx::wgmma_descriptor_swizzle128(operands + group * kGroupABytes, 16, 8 * 128);
  const std::uint64_t b = ptx::wgmma_descriptor_swizzle128(
      operands, Config::kMajorB == ptx::WgmmaMajor::kK ? 16 : 64 * 128, 8 * 128);
  Sm90Tasks<Config> tasks(shared);
  Pipeline<Config::kStages> stages(shared.body.stages);
  Pipeline<Config::kStages> used = stages;  // trails by the products in flight
  Pipeline<Config::kSlots> pieces(shared.body.pieces[group]);
  Sm90Output<Config, Config> output(shared.body, group, pieces);
  float sums[Config::kBlocks][Config::kSums];
  bool held = false;  // the last pieces of the tile before are in registers

  const auto give_back = [&] {
    if (lane < Config::kCluster) used.arrive_empty_at(lane);
    used.advance();
  };
  const auto multiply = [&](int first, int last) {
    for (int block = first; block < last; ++block, stages.advance()) {
      stages.wait_full();
      sm90_multiply_block<Config>(sums, a + Stage::a(stages.stage(), 0) / 16,
                                  b + Stage::b(stages.stage(), 0) / 16, block > 0);
      ptx::wgmma_wait_group<1>();
      if (block > 0) give_back();
    }
  };
  const auto write_held_unless = [&](bool others_come) {
    if (!held || __shfl_sync(~0U, others_come, 0)) return;
    output.write_held();
    held = false;
  };

  for (int i = 0;; ++i, tasks.advance()) {
    // The next task may be waiting for just what is held.
    write_held_unless(tasks.is_there());
    const Sm90Task& task = tasks.wait();
    const int product = task.product;
    if (product == Sm90Task::kEnd) break;
    const int k_blocks = feed.k_blocks(product);
    if (task.rows > group * 64) {
      write_held_unless(stages.test_full());
      if (is_traced(sm90_trace(feed))) {
        stages.wait_full();
        if (threadIdx.x % 128 == 0) begin_work(sm90_trace(feed));
      }
      const int first = min(2, k_blocks);
      multiply(0, first);
      write_held_unless(false);
      multiply(first, k_blocks);
      ptx::wgmma_wait_group<0>();
      if (threadIdx.x % 128 == 0) end_work(sm90_trace(feed), DeviceWork::kProduct, i);
      give_back();
      if (feed.gated(product)) {
        output.write_gated(sums);
      } else {
        output.write(sums);
        held = true;
      }
    } else {
      for (int block = 0; block < k_blocks; ++block, stages.advance()) {
        stages.wait_full();
        give_back();
      }
    }
    __syncwarp();
    if (lane == 0) tasks.give_back();
  }
  if (held) output.write_held();
}

/// The whole body: every thread of the CTA. Shared memory may have been anything before.
template <class Config, class Feed>
__device__ __forceinline__ void sm90_feed(const Feed& feed, Sm90FeedShared<Config>& shared) {
  const int warp = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp == 0 && ptx::elect_sync()) {
    Pipeline<Config::kStages>::init(shared.body.stages, 1, Config::kStageReaders);
    for (auto& pieces : shared.body.pieces) Pipeline<Config::kSlots>::init(pieces, 4, 1);
    Pipeline<Sm90FeedShared<Config>::kTasks>::init(shared.tasks, 1,
                                                   Config::kCluster * Sm90Tasks<Config>::kReaders);
    for (std::uint32_t& stored : shared.body.stored) stored = 0;
    ptx::fence_mbarrier_init_release_cluster();
  }
  ptx::fence_proxy_async_shared_cta();
  __syncthreads();
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait_acquire();

  if (warp < 4) {
    ptx::setmaxnreg_dec<Config::kProducerRegisters>();
    if (warp == 0) {
      if (ptx::elect_sync()) sm90_feed_load(feed, shared);
    } else if (warp <= Config::kMultiplyWarpgroups) {
      Sm90FeedStore<Config>(warp - 1, shared).run(feed);
    } else if (ptx::cluster_cta_rank() == 0) {
      sm90_feed_tasks(feed, shared);
    } else if constexpr (requires { feed.beside_products(); }) {
      feed.beside_products();
    }
    __syncwarp();
  } else {
    ptx::setmaxnreg_inc<Config::kMultiplyRegisters>();
    sm90_feed_multiply(feed, warp / 4 - 1, shared);
    feed.after_products();
  }
  // No CTA is gone while the other one still arrives at its barriers.
  __syncwarp();
  ptx::cluster_arrive_release();
  ptx::cluster_wait_acquire();
}

}  // namespace mkernel::kernels
