// The roles of RingBackwardWorld, in the order of kernels/ops/ring_attention/backward/roles.cuh.
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
      RingAttentionWorld(shape, topology, settings, forward, plans[0].lanes()),
      backward_(plans),
      scratch_(plans.size()) {
  for (const auto& plan : plans) {
    // d_q, then d_k and d_v.
    const std::int64_t heads = shape.batch * (shape.heads + kTensors * shape.kv_heads);
    add_rank(plan.partials.word_bytes(), plan.data_bytes(),
             static_cast<std::uint64_t>(heads * plan.positions() * head_bytes()), kCellBytes);
    const auto tiles = static_cast<std::size_t>(shape.batch * shape.heads * plan.tasks.query_tiles());
    scratch(plan.gather().rank).added = std::vector<Word>(tiles);
    scratch(plan.gather().rank).staged =
        std::vector<Word>(static_cast<std::size_t>(rails() * plan.most_put_chunks()));
  }
}

void RingBackwardWorld::begin_launch(std::int32_t index, std::uint64_t epoch) {
  scratch(index).next_unit[(epoch + 1) & 1] = 0;
  scratch(index).next_put[(epoch + 1) & 1] = 0;
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
    co_await tile_of_keys(index, epoch, backward(index).place(task), seen);
  }
  co_await finish(index, epoch);
}

Task RingBackwardWorld::beside(Pushing& shared, std::uint64_t number) {
  if (number < kSummingWarps) {
    co_await wait_at_end(shared.rank, shared.epoch);
    co_await sum_put_keys(shared.rank, shared.epoch);
  } else {
    co_await put_key_sums(shared.rank, shared.epoch);
  }
}

/// A warp: adds up what is put, unit by unit, until nothing is left.
Task RingBackwardWorld::sum_put_keys(std::int32_t index, std::uint64_t epoch) {
  for (bool gave_up = false; !gave_up;) {
    const std::int32_t number = scratch(index).next_put[epoch & 1]++;
    if (number >= backward(index).all_put_units()) co_return;
    co_await sum_put_unit(index, epoch, number, gave_up);
  }
}

Task RingBackwardWorld::sum_put_unit(std::int32_t index, std::uint64_t epoch, std::int32_t number,
                                     bool& gave_up) {
  const kernels::RingBackwardPlan::PutUnit at = backward(index).put_unit(number);
  bool right = true;
  co_await meet_partials(index, epoch, at.owner, at.part, at.unit, right);
  gave_up = !right;
  if (gave_up) co_return;
  const Span to = staged(epoch, at.distance, at.packed);
  begin_write(rank(index).workspace, to);
  co_await scheduler_.step();
  rank(index).workspace.end_write(to, unit_stamp(at.owner, epoch, Content::kNodeSum, index, at.unit), right);
  co_await scheduler_.step();
  scheduler_.add(staged_count(index, at.distance, at.packed / puts().chunk_units), 1);
}

/// What the ranks of this node have of a unit, when all of it has come. Not right: a wait gave up, or it was
/// not what it should be.
Task RingBackwardWorld::meet_partials(std::int32_t index, std::uint64_t epoch, std::int32_t owner,
                                      std::int32_t part, std::int32_t unit, bool& right) {
  for (std::int32_t local = 0; local < ranks_per_node(); ++local) {
    const std::int32_t writer = rank_at(node_of(index), local);
    if (!RingBackwardTasks::is_seen(gather(), writer, owner, part)) continue;
    if (!has(Fault::kSumsUnwaited))
      right &= co_await scheduler_.wait(arrived(owner, writer, unit), KeyPartialsPlan::count(epoch));
    for (int looks = 0; looks < 2 && right; ++looks) {
      right &= holds(index, epoch, rank(index).workspace, slot(epoch, owner, writer, unit),
                     unit_stamp(owner, epoch, Content::kPartialTile, writer, unit), "partial gradients");
      co_await scheduler_.step();
    }
  }
}

/// When own keys and values are sent: the chunks that are whole with a head, of every peer, as they are made.
Task RingBackwardWorld::put_key_sums(std::int32_t index, std::uint64_t epoch) {
  bool gave_up = false;
  for (std::int32_t distance = 1; distance <= rails() && !gave_up && !has(Fault::kNoCompletions);
       ++distance) {
    Channel& sent = channel(index, rail(index, distance - 1), 0);
    gave_up = !co_await scheduler_.wait(sent.completions_seen, (epoch + 1) * gather().puts());
  }
  for (std::int32_t head = 0; head < gather().heads; ++head) {
    for (std::int32_t distance = 1; distance <= rails(); ++distance) {
      const std::int32_t of_head = backward(index).put_units(distance), units = gather().heads * of_head;
      const std::int32_t end = puts().chunks_whole((head + 1) * of_head, units);
      for (std::int32_t chunk = puts().chunks_whole(head * of_head, units); chunk < end && !gave_up; ++chunk)
        co_await put_key_chunk(index, epoch, distance, chunk, gave_up);
    }
  }
  for (std::int32_t distance = 1; distance <= rails() && !gave_up && !has(Fault::kNoCompletions);
       ++distance) {
    const auto chunks =
        static_cast<std::uint64_t>(puts().chunks(gather().heads * backward(index).put_units(distance)));
    Channel& sent = channel(index, rail(index, distance - 1), 1);
    gave_up = !co_await scheduler_.wait(sent.completions_seen, (epoch + 1) * chunks);
  }
}

Task RingBackwardWorld::put_key_chunk(std::int32_t index, std::uint64_t epoch, std::int32_t distance,
                                      std::int32_t chunk, bool& gave_up) {
  const std::int32_t units = gather().heads * backward(index).put_units(distance);
  const std::int32_t begin = puts().chunk_begin(chunk, units);
  const auto count = static_cast<std::uint64_t>(puts().chunk_begin(chunk + 1, units) - begin);
  gave_up = !co_await scheduler_.wait(staged_count(index, distance, chunk), (epoch + 1) * count);
  if (gave_up) co_return;
  put(channel(index, rail(index, distance - 1), 1), staged(epoch, distance, begin).at,
      partial(epoch, nodes() - distance, begin).at, count * puts().unit_bytes);
  co_await scheduler_.step();
}

Task RingBackwardWorld::finish(std::int32_t index, std::uint64_t epoch) {
  co_await sum_put_keys(index, epoch);
  const auto queries = static_cast<std::int32_t>(scratch(index).added.size());
  const std::int32_t all = queries + backward(index).all_own_units();
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
    // A task that gave up a wait adds without its turn, in a launch that has failed.
    if (right && word.value != before && settings_.expire_one_in == 0)
      scheduler_.report("an add comes out of turn");
    co_await scheduler_.step();
    scheduler_.set(word, before + 1);
  }
  co_await store_keys(index, epoch, place, right);
}

/// The tile's units into their slots, and counted there, unless a wait of the task has given up.
Task RingBackwardWorld::store_keys(std::int32_t index, std::uint64_t epoch, RingBackwardTasks::Place place,
                                   bool right) {
  if (!right && !has(Fault::kStoresAnyway)) co_return;
  const kernels::KvGatherPlan& mine = backward(index).gather();
  const std::int32_t first = place.tile * kernels::kBackwardTileKeys;
  const std::int32_t end =
      std::min(first + kernels::kBackwardTileKeys, mine.part_rows[place.source][place.part]);
  for (std::int32_t row = first; row < end; row += KeyPartialsPlan::kRows) {
    const std::int32_t unit = KeyPartialsPlan::unit(mine, place.source, place.part, place.head, row);
    const Span span = slot(epoch, place.source, index, unit);
    Memory& memory = rank(reducer(index, place.source)).workspace;
    begin_write(memory, span);
    co_await scheduler_.step();
    memory.end_write(span, unit_stamp(place.source, epoch, Content::kPartialTile, index, unit), right);
    co_await scheduler_.step();
    scheduler_.set(arrived(place.source, index, unit), KeyPartialsPlan::count(epoch));
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

/// The sums of other nodes of a unit of own keys, when they have come.
Task RingBackwardWorld::meet_node_sums(std::int32_t index, std::uint64_t epoch, std::int32_t head,
                                       std::int32_t key_unit, bool& right) {
  const std::int32_t unit = head * KeyPartialsPlan::units_of(gather(), index) + key_unit;
  for (std::int32_t distance = 1; distance <= rails(); ++distance) {
    const std::int32_t head_units = backward(index).come_units(distance), from = rail(index, distance - 1);
    if (key_unit >= head_units) continue;
    const std::int32_t packed = kernels::PutKeyPartialsPlan::packed(head, key_unit, head_units);
    if (!has(Fault::kNodeSumsUnwaited)) {
      const std::uint64_t come =
          puts().count(epoch, packed / puts().chunk_units, gather().heads * head_units);
      right &= co_await scheduler_.wait(channel(from, index, 1).arrivals_seen, come);
    }
    for (int looks = 0; looks < 2 && right; ++looks) {
      right &= holds(index, epoch, rank(index).workspace, partial(epoch, distance, packed),
                     unit_stamp(index, epoch, Content::kNodeSum, from, unit), "a node's sum");
      co_await scheduler_.step();
    }
  }
}

/// 64 own keys of one head, when all ranks have sent what they have of them.
Task RingBackwardWorld::sum_keys(std::int32_t index, std::uint64_t epoch, std::int32_t number) {
  const kernels::RingBackwardPlan::OwnUnit at = backward(index).own_unit(number);
  if (at.rows == 0) co_return;
  bool right = true;
  co_await meet_partials(index, epoch, index, at.place.part, at.unit, right);
  co_await meet_node_sums(index, epoch, at.place.head, at.in_head, right);
  const std::int64_t positions = backward(index).positions(), begin = plan(index).part_begin(at.place.part);
  const auto bytes = static_cast<std::uint64_t>(head_bytes());
  for (std::int64_t tensor = 0; tensor < kTensors; ++tensor) {
    const std::int64_t head = shape().batch * shape().heads + tensor * gather().heads + at.place.head;
    write_result(index, epoch,
                 {static_cast<std::uint64_t>(head * positions + begin + at.row) * bytes,
                  static_cast<std::uint64_t>(at.rows) * bytes},
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
  if (const std::string error = check_puts(); !error.empty()) return error;
  return RingAttentionWorld::check_counts();
}

std::string RingBackwardWorld::check_puts() {
  for (std::int32_t index = 0; index < gather().world; ++index) {
    for (std::int32_t distance = 1; distance <= rails(); ++distance) {
      const std::int32_t units = gather().heads * backward(index).put_units(distance);
      const std::int32_t to = rail(index, distance - 1);
      if (units != gather().heads * backward(to).come_units(nodes() - distance))
        return "rank " + std::to_string(to) + " waits for other units than rank " + std::to_string(index) +
               " puts";
      const std::string error = check_channel(
          channel(index, to, 1), settings_.launches * static_cast<std::uint64_t>(puts().chunks(units)));
      if (!error.empty()) return error;
    }
  }
  return "";
}

}  // namespace mkernel::test
