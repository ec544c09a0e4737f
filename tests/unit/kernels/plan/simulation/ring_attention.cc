// The roles of RingAttentionWorld, in the order of kernels/ops/ring_attention/roles.cuh.
#include "tests/unit/kernels/plan/simulation/ring_attention.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace mkernel::test {

void RingAttentionWorld::for_each_row(std::int32_t index, std::uint64_t epoch, const Chunk& chunk,
                                      std::int32_t share, const VisitRow& visit) {
  const auto row_bytes = static_cast<std::uint64_t>(gather().row_bytes);
  const std::uint64_t at = gather().chunk_offset(chunk.source, chunk.chunk);
  const auto first = static_cast<std::int64_t>(at / row_bytes);
  const std::int32_t rows = gather().chunk_rows(chunk.source, chunk.chunk);
  const std::int64_t end = first + rows * (share + 1) / gather().shares;
  for (std::int64_t row = first + rows * share / gather().shares; row < end; ++row) {
    visit({slab(epoch, chunk.source, chunk.tensor) + static_cast<std::uint64_t>(row) * row_bytes, row_bytes},
          row_stamp(rank(index).workspace, epoch, chunk.source, chunk.tensor, row));
  }
}

Task RingAttentionWorld::inter_send(Pushing& shared) {
  const std::int32_t index = shared.rank;
  const std::uint64_t epoch = shared.epoch;
  bool gave_up = false;
  for (std::int32_t n = 0; n < kTensors * chunks_of(index) && !gave_up; ++n) {
    const Chunk chunk{index, n % kTensors, n / kTensors};
    gave_up = !co_await wait_chunk(index, epoch, chunk);
    const std::uint64_t at = slab(epoch, index, chunk.tensor) + gather().chunk_offset(index, chunk.chunk);
    for (std::int32_t i = 0; i < rails() && !gave_up; ++i) {
      put(channel(index, rail(index, i), 0), at, at, gather().chunk_bytes(index, chunk.chunk));
      co_await scheduler_.step();
    }
  }
  co_await end_sending(shared, gave_up, (epoch + 1) * gather().puts());
}

/// All chunks of all other ranks, in the order of the sweep.
Task RingAttentionWorld::wait_at_end(std::int32_t index, std::uint64_t epoch) {
  if (has(Fault::kNoDummySignals)) co_return;
  for (std::int32_t step = 1; step < gather().world; ++step) {
    const std::int32_t source = plan(index).gather.source(step);
    for (std::int32_t n = 0; n < kTensors * chunks_of(source); ++n)
      if (!co_await wait_chunk(index, epoch, {source, n % kTensors, n / kTensors})) co_return;
  }
}

void RingAttentionWorld::begin_launch(std::int32_t index, std::uint64_t epoch) {
  next_task_[static_cast<std::size_t>(index)].of_epoch[(epoch + 1) & 1] = 0;
  FanOutWorld::begin_launch(index, epoch);
}

/// Tasks from the counter, until there are none.
Task RingAttentionWorld::compute(std::int32_t index, std::uint64_t epoch, std::int32_t) {
  Seen seen(static_cast<std::size_t>(gather().world * kTensors), 0);
  const kernels::AttentionTasks& tasks = plan(index).tasks;
  for (;;) {
    const std::int32_t task = take_task(index, epoch);
    if (task >= tasks.tasks()) co_return;
    co_await sweep(index, epoch, tasks.place(task), seen);
  }
}

/// A tile of queries over all keys and values of other ranks. Where a wait gives up it is computed from
/// whatever there is.
Task RingAttentionWorld::sweep(std::int32_t index, std::uint64_t epoch, kernels::AttentionTasks::Place place,
                               Seen& seen) {
  const kernels::KvGatherPlan& mine = plan(index).gather;
  const int part = place.tile < plan(index).first_tiles ? 0 : 1;
  bool right = true;
  for (std::int32_t step = 1; step < mine.world; ++step) {
    const std::int32_t source = mine.source(step), keys = mine.visible_keys(source, part);
    const auto head =
        static_cast<std::int32_t>(place.batch * mine.kv_heads + place.head / plan(index).group());
    const std::int64_t tile_keys = plan(index).tile_keys();
    for (std::int64_t row = 0; row < keys; row += tile_keys) {
      const Range rows{row, std::min<std::int64_t>(row + tile_keys, mine.positions(source))};
      for (std::int32_t tensor = 0; tensor < kTensors; ++tensor)
        co_await meet(index, epoch, {source, tensor, head, rows}, seen, right);
    }
  }
  const std::int64_t query =
      std::int64_t{place.tile - part * plan(index).first_tiles} * kernels::kAttentionTileQueries;
  const std::int64_t end =
      std::min<std::int64_t>(mine.part_rows[index][part], query + kernels::kAttentionTileQueries);
  const auto bytes = static_cast<std::uint64_t>(head_bytes());
  for (std::int64_t i = query; i < end; ++i) {
    const std::int64_t row =
        std::int64_t{place.batch} * mine.positions(index) + plan(index).part_begin(part) + i;
    write_result(index, epoch, {static_cast<std::uint64_t>(row * shape_.heads + place.head) * bytes, bytes},
                 right);
  }
  co_await scheduler_.step();
}

/// A tile of keys or values, once all chunks up to its last row are here.
Task RingAttentionWorld::meet(std::int32_t index, std::uint64_t epoch, HeadRows rows, Seen& seen,
                              bool& right) {
  const auto [source, tensor, head, range] = rows;
  std::int32_t& chunk = seen[static_cast<std::size_t>(source * kTensors + tensor)];
  const std::int32_t first = gather().first_chunk(head), end = gather().first_chunk(head + 1);
  const std::int32_t last = gather().chunk_of(head, static_cast<std::int32_t>(range.end) - 1);
  if (chunk < first || chunk > end) chunk = first;
  for (; chunk <= last && right; ++chunk) right = co_await wait_chunk(index, epoch, {source, tensor, chunk});
  Memory& memory = rank(index).workspace;
  const auto row_bytes = static_cast<std::uint64_t>(gather().row_bytes);
  const std::int64_t slab_row = std::int64_t{head} * gather().positions(source);
  for (int looks = 0; looks < 2; ++looks) {
    for (std::int64_t row = slab_row + range.begin; row < slab_row + range.end && right; ++row) {
      const Span span{slab(epoch, source, tensor) + static_cast<std::uint64_t>(row) * row_bytes, row_bytes};
      right &= holds(index, epoch, memory, span, row_stamp(memory, epoch, source, tensor, row), "rows");
    }
    co_await scheduler_.step();
  }
}

std::string RingAttentionWorld::check_counts() {
  for (const auto& [key, channel] : channels()) {
    if (channel.lane != 0) continue;
    const std::uint64_t puts = settings_.launches * gather().puts();
    if (const std::string error = check_channel(channel, puts); !error.empty()) return error;
  }
  for (std::int32_t index = 0; index < gather().world; ++index) {
    for (std::int32_t source = 0; source < gather().world; ++source)
      if (const std::string error = check_ready(index, source, kTensors); !error.empty()) return error;
  }
  return "";
}

}  // namespace mkernel::test
