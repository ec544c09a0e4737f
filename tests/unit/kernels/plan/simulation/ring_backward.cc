// The roles of RingBackwardWorld, in the order of kernels/ops/ring_attention/ring_backward_roles.cuh.
#include "tests/unit/kernels/plan/simulation/ring_backward.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace mkernel::test {

using kernels::KeyPartialsPlan;
using kernels::RingBackwardTasks;

namespace {

std::vector<kernels::RingGpuPlan> forward_of(const std::vector<kernels::RingBackwardPlan>& plans) {
  std::vector<kernels::RingGpuPlan> forward;
  for (const auto& plan : plans) forward.push_back(plan.ring);
  return forward;
}

}  // namespace

RingBackwardWorld::RingBackwardWorld(const AttentionShape& shape, const kernels::Topology& topology,
                                     const std::vector<kernels::RingBackwardPlan>& plans,
                                     const Settings& settings)
    : ForwardPlans{forward_of(plans)},
      RingAttentionWorld(shape, topology, settings, forward),
      backward_(plans),
      scratch_(plans.size()) {
  for (const auto& plan : plans) {
    // d_q, then d_k and d_v.
    const std::int64_t heads = shape.batch * (shape.heads + kTensors * shape.kv_heads);
    add_rank(plan.partials.word_bytes(), plan.partials.data_bytes(),
             static_cast<std::uint64_t>(heads * plan.positions() * head_bytes()), kCellBytes);
    const auto tiles = static_cast<std::size_t>(shape.batch * shape.heads * plan.tasks.query_tiles());
    scratch(plan.gather().rank).added = std::vector<Word>(tiles);
  }
}

void RingBackwardWorld::begin_launch(std::int32_t index, std::uint64_t epoch) {
  scratch(index).next_unit[(epoch + 1) & 1] = 0;
  RingAttentionWorld::begin_launch(index, epoch);
}

/// Tasks from the counter, until there are none; then what is left.
Task RingBackwardWorld::compute(std::int32_t index, std::uint64_t epoch, std::int32_t) {
  if (has(Fault::kSumsFirst)) co_await finish(index, epoch);
  Seen seen(static_cast<std::size_t>(gather().world * kTensors), 0);
  const RingBackwardTasks& tasks = backward(index).tasks;
  for (;;) {
    const std::int32_t task = take_task(index, epoch);
    if (task >= tasks.tasks()) break;
    co_await tile_of_keys(index, epoch, tasks.place(backward(index).gather(), task), seen);
  }
  co_await finish(index, epoch);
}

Task RingBackwardWorld::finish(std::int32_t index, std::uint64_t epoch) {
  constexpr std::int32_t kGroups = kernels::kBackwardTileKeys / KeyPartialsPlan::kRows;
  const auto queries = static_cast<std::int32_t>(scratch(index).added.size());
  const std::int32_t all = queries + backward(index).tasks.own_tasks() * kGroups;
  for (;;) {
    const std::int32_t unit = scratch(index).next_unit[epoch & 1]++;
    if (unit >= all) co_return;
    if (unit < queries) {
      co_await round_queries(index, epoch, unit);
    } else {
      co_await sum_keys(index, epoch, unit - queries);
    }
  }
}

/// Where a wait gives up it is computed from whatever there is.
Task RingBackwardWorld::tile_of_keys(std::int32_t index, std::uint64_t epoch, RingBackwardTasks::Place place,
                                     Seen& seen) {
  const kernels::KvGatherPlan& mine = backward(index).gather();
  const RingBackwardTasks& tasks = backward(index).tasks;
  bool right = true;
  if (place.source != index) {
    const std::int64_t key = (place.part == 0 ? 0 : mine.part_rows[place.source][0]) +
                             std::int64_t{place.tile} * kernels::kBackwardTileKeys;
    const Range rows{key,
                     std::min<std::int64_t>(key + kernels::kBackwardTileKeys, mine.positions(place.source))};
    for (std::int32_t tensor = 0; tensor < kTensors; ++tensor)
      co_await meet(index, epoch, {place.source, tensor, place.head, rows}, seen, right);
  }
  const auto group = static_cast<std::int32_t>(backward(index).ring.group());
  const kernels::AttentionBackwardWalk walk = tasks.walk(place);
  kernels::AttentionBackwardSteps at(walk, group);
  for (std::int32_t left = at.steps(); left > 0; --left, at.advance()) {
    Word& word = added(index, place.head * group + at.head(), at.tile());
    const std::uint64_t before = epoch * static_cast<std::uint64_t>(tasks.adds(at.tile())) +
                                 static_cast<std::uint64_t>(tasks.turn(place.before, at.tile()));
    right &= co_await scheduler_.wait(word, before);
    if (right && word.value != before) scheduler_.report("an add comes out of turn");
    co_await scheduler_.step();
    scheduler_.add(word, 1);
  }
  co_await store_keys(index, epoch, place, right);
}

/// The tile's units into their slots, and counted there.
Task RingBackwardWorld::store_keys(std::int32_t index, std::uint64_t epoch, RingBackwardTasks::Place place,
                                   bool right) {
  const kernels::KvGatherPlan& mine = backward(index).gather();
  const std::int32_t first = place.tile * kernels::kBackwardTileKeys;
  const std::int32_t end =
      std::min(first + kernels::kBackwardTileKeys, mine.part_rows[place.source][place.part]);
  for (std::int32_t row = first; row < end; row += KeyPartialsPlan::kRows) {
    const std::int32_t unit = KeyPartialsPlan::unit(mine, place.source, place.part, place.head, row);
    const Span span = slot(epoch, index, unit);
    Word& word = arrived(place.source, index, unit);
    begin_write(rank(place.source).workspace, span);
    co_await scheduler_.step();
    rank(place.source).workspace.end_write(span, slot_stamp(place.source, epoch, index, unit), right);
    co_await scheduler_.step();
    scheduler_.set(word, KeyPartialsPlan::count(epoch));
  }
}

/// A tile of own queries of one head, when all tiles of keys have added to it.
Task RingBackwardWorld::round_queries(std::int32_t index, std::uint64_t epoch, std::int32_t unit) {
  const RingBackwardTasks& tasks = backward(index).tasks;
  const std::int32_t head = unit / tasks.query_tiles(), tile = unit % tasks.query_tiles();
  const std::uint64_t adds = (epoch + 1) * static_cast<std::uint64_t>(tasks.adds(tile));
  const bool right = co_await scheduler_.wait(added(index, head, tile), adds);
  const int part = tile < tasks.first_tiles() ? 0 : 1;
  const std::int32_t first = (tile - part * tasks.first_tiles()) * kernels::kBackwardTileQueries;
  const std::int32_t end = std::min(first + kernels::kBackwardTileQueries, gather().part_rows[index][part]);
  const std::int64_t row =
      std::int64_t{head} * backward(index).positions() + plan(index).part_begin(part) + first;
  const auto bytes = static_cast<std::uint64_t>(head_bytes());
  write_result(index, epoch,
               {static_cast<std::uint64_t>(row) * bytes, static_cast<std::uint64_t>(end - first) * bytes},
               right);
}

/// 64 own keys of one head, when all ranks have sent what they have of them.
Task RingBackwardWorld::sum_keys(std::int32_t index, std::uint64_t epoch, std::int32_t piece) {
  constexpr std::int32_t kGroups = kernels::kBackwardTileKeys / KeyPartialsPlan::kRows;
  const kernels::KvGatherPlan& mine = backward(index).gather();
  const RingBackwardTasks::Place place = backward(index).tasks.place(mine, piece / kGroups);
  const std::int32_t row = place.tile * kernels::kBackwardTileKeys + piece % kGroups * KeyPartialsPlan::kRows;
  const std::int32_t rows = std::min(mine.part_rows[index][place.part] - row, KeyPartialsPlan::kRows);
  if (rows <= 0) co_return;
  const std::int32_t unit = KeyPartialsPlan::unit(mine, index, place.part, place.head, row);
  bool right = true;
  for (std::int32_t writer = 0; writer < mine.world; ++writer) {
    if (!RingBackwardTasks::is_seen(mine, writer, index, place.part)) continue;
    if (!has(Fault::kSumsUnwaited))
      right &= co_await scheduler_.wait(arrived(index, writer, unit), KeyPartialsPlan::count(epoch));
    for (int looks = 0; looks < 2 && right; ++looks) {
      right &= holds(index, epoch, rank(index).workspace, slot(epoch, writer, unit),
                     slot_stamp(index, epoch, writer, unit), "partial gradients");
      co_await scheduler_.step();
    }
  }
  const std::int64_t positions = backward(index).positions(), begin = plan(index).part_begin(place.part);
  const auto bytes = static_cast<std::uint64_t>(head_bytes());
  for (std::int64_t tensor = 0; tensor < kTensors; ++tensor) {
    const std::int64_t head = shape().batch * shape().heads + tensor * mine.heads + place.head;
    write_result(index, epoch,
                 {static_cast<std::uint64_t>(head * positions + begin + row) * bytes,
                  static_cast<std::uint64_t>(rows) * bytes},
                 right);
  }
}

std::string RingBackwardWorld::check_counts() {
  for (std::int32_t index = 0; index < gather().world; ++index) {
    for (std::int32_t unit = 0; unit < static_cast<std::int32_t>(scratch(index).added.size()); ++unit) {
      const RingBackwardTasks& tasks = backward(index).tasks;
      const std::uint64_t adds =
          settings_.launches * static_cast<std::uint64_t>(tasks.adds(unit % tasks.query_tiles()));
      if (scratch(index).added[static_cast<std::size_t>(unit)].value != adds)
        return "a tile of queries of rank " + std::to_string(index) + " was not added to " +
               std::to_string(adds) + " times";
    }
  }
  return RingAttentionWorld::check_counts();
}

}  // namespace mkernel::test
