#include "kernels/ops/ring_attention/estimate.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/ops/ring_attention/attention/plan.h"
#include "kernels/ops/ring_attention/attention_backward/plan.h"
#include "kernels/ops/ring_attention/backward/plan.h"
#include "kernels/ops/ring_attention/gpu_plan.h"
#include "kernels/ops/ring_attention/shape.h"
#include "kernels/plan/attention_backward_sequences.h"
#include "kernels/plan/attention_backward_tasks.h"
#include "kernels/plan/attention_sequences.h"
#include "kernels/plan/attention_tasks.h"
#include "kernels/plan/machine.h"
#include "kernels/plan/ring_backward_tasks.h"
#include "kernels/plan/ring_sequences.h"

namespace mkernel::kernels {
namespace {

/// Of one multiprocessor, for a tile of queries and `keys` keys.
double sweep_seconds(const AttentionShape& shape, const Machine& machine, std::int64_t tile_keys,
                     std::int64_t keys) {
  const std::int64_t scores = (keys + tile_keys - 1) / tile_keys * tile_keys * kAttentionTileQueries;
  const double products =
      4 * static_cast<double>(shape.head_dim) / (machine.tensor_operations * machine.tensor_share);
  return static_cast<double>(scores) * (products + machine.softmax_cycles) / machine.clock;
}

/// Queries of one rank and all keys, read once, and the outputs.
double memory_seconds(const AttentionShape& shape, const Machine& machine, std::int64_t queries) {
  const std::int64_t rows = 2 * shape.heads * queries + 2 * shape.kv_heads * shape.keys;
  return 2.0 * static_cast<double>(shape.batch * shape.head_dim * rows) / machine.memory_bytes;
}

/// When the last of `tasks` (AttentionTasks or SlotTasks) ends. `free_at`: when each CTA takes its first one;
/// it takes the next one when it is through. `end(place, begin)`: when a task ends that begins at `begin`.
template <class Tasks, class End>
double play(const Tasks& tasks, std::vector<double> free_at, const End& end) {
  // Of more tasks than these the rest is spread evenly: no CTA is a task behind another for long.
  constexpr std::int32_t kMostPlayed = 1 << 16;
  const auto later = std::greater<>();
  std::make_heap(free_at.begin(), free_at.end(), later);
  const std::int32_t played = std::min(tasks.tasks(), kMostPlayed);
  double worked = 0, last = 0;
  for (std::int32_t task = 0; task < played; ++task) {
    std::pop_heap(free_at.begin(), free_at.end(), later);
    const double ends = end(tasks.place(task), free_at.back());
    worked += ends - free_at.back();
    last = std::max(last, ends);
    free_at.back() = ends;
    std::push_heap(free_at.begin(), free_at.end(), later);
  }
  if (played == 0) return 0;
  return last + worked / played * (tasks.tasks() - played) / static_cast<double>(free_at.size());
}

/// From the first chunks of ranks to their last ones, in the order of heads.
struct Span {
  double first = 0, last = 0;

  double at(double share) const { return first + share * (last - first); }
};

/// When keys and values of other ranks arrive, and when the pushing CTAs are through.
struct Arrivals {
  Span near, far;  ///< from ranks of this node, from other nodes
  double pushed = 0;
  // KvChunks::first_heads.
  double first = 0, head = 0;  ///< when they begin to come; how long one of them takes to one rank
  std::int32_t first_heads = 0;

  /// From the rank of this node that is met at `step`: so many of `all` heads, a part of one included.
  double near_at(std::int32_t step, double heads, double all) const {
    if (heads > first_heads) return near.at(heads / all);
    return first + ((step - 1) * first_heads + heads) * head;
  }
};

/// Everybody pushes and puts at the same time; a source counts like the one that has most.
Arrivals arrivals_of(const RingGpuPlan& plan) {
  const KvGatherPlan& gather = plan.gather;
  const Machine& machine = plan.machine;
  const std::int32_t rails = gather.rails();
  std::int32_t most_rows = 0;
  for (std::int32_t source = 0; source < gather.world; ++source)
    most_rows = std::max(most_rows, gather.rows(source));
  // Keys and values of a chunk's rows go together.
  const double chunks = gather.chunks();
  const double bytes = 2.0 * most_rows * gather.row_bytes / chunks;
  const double taken_up = bytes / (plan.comm_ctas * (rails > 0 ? machine.prepare_bytes : machine.load_bytes));
  const auto push = [&](std::int32_t stores) {
    return std::max(taken_up, push_seconds(machine, bytes, stores, gather.near, plan.comm_ctas));
  };
  const double begin = machine.launch + machine.push_latency;
  if (gather.world == 1) return {.pushed = machine.launch};
  const double own = push(gather.near + (rails > 0 ? 1 : 0));
  if (rails == 0) {
    const double to_one = std::max(taken_up, push_seconds(machine, bytes, 1, 1, plan.comm_ctas));
    return {.near = {begin + own, begin + chunks * own},
            .pushed = machine.launch + chunks * own,
            .first = begin + to_one,
            .head = to_one * chunks / gather.heads,
            .first_heads = gather.first_heads};
  }

  // KvGatherPlan::turn(): chunks of the others go between own ones, as they come, and then without.
  const double far = rails * (gather.near > 0 ? push(gather.near) : 0), wire = rails * bytes / machine.nic;
  const double between = gather.own_between, laps = chunks / between;
  const double mixed = laps * std::max(between * own + far, wire);
  const double last = begin + mixed + (chunks - laps) * std::max(far, wire);
  const double latency = machine.wire_latency + own + wire + far + machine.push_latency;
  return {.near = {begin + own, begin + mixed},
          .far = {begin + latency, last + latency},
          .pushed = last + latency - machine.push_latency};
}

/// The tasks of a plan that is not plain.
struct SlotTasks {
  struct Place {
    AttentionSequence sequence;
    std::int32_t tile;
  };

  std::vector<AttentionSlot> slots;
  std::int32_t heads;

  std::int32_t tasks() const { return slots.back().tasks_before; }
  Place place(std::int32_t task) const {
    const auto count = static_cast<std::int32_t>(slots.size()) - 1;
    const AttentionSlot& slot = slots[static_cast<std::size_t>(attention_slot_of(slots.data(), count, task))];
    return {slot.sequence, attention_slot_tile(slot, heads, task - slot.tasks_before).tile};
  }
};

/// Lengths are known on the device alone: as if all sequences were as long as they are on average.
class AssumedLengths {
 public:
  explicit AssumedLengths(const AttentionShape& shape) : shape_(shape) {
    for (std::int64_t i = 0; i <= shape.max_sequences; ++i) {
      const std::int64_t parts = std::max<std::int64_t>(shape.max_sequences, 1);
      queries_.push_back(static_cast<std::int32_t>(shape.sequence * i / parts));
      keys_.push_back(static_cast<std::int32_t>(shape.keys * i / parts));
    }
  }
  AttentionLengths lengths() const {
    const bool packed = shape_.max_sequences > 0;
    return attention_lengths(shape_, packed ? queries_.data() : nullptr, packed ? keys_.data() : nullptr);
  }

 private:
  const AttentionShape& shape_;
  std::vector<std::int32_t> queries_, keys_;
};

/// Of a plan that is not plain.
SlotTasks slot_tasks(const AttentionPlan& plan) {
  return {plan.slots(AssumedLengths(plan.shape).lengths()), static_cast<std::int32_t>(plan.shape.heads)};
}

double slots_end(const AttentionPlan& plan, const Machine& machine) {
  return play(slot_tasks(plan), std::vector(static_cast<std::size_t>(machine.sms), machine.launch),
              [&](const SlotTasks::Place& place, double begin) {
                const std::int32_t query = place.tile * kAttentionTileQueries;
                const AttentionKeys keys =
                    attention_window_keys(place.sequence, plan.window(), query,
                                          std::min(place.sequence.queries, query + kAttentionTileQueries));
                return begin + sweep_seconds(plan.shape, machine, plan.tile_keys(), keys.end - keys.first);
              });
}

double plain_end(const AttentionPlan& plan, const Machine& machine) {
  const AttentionShape& shape = plan.shape;
  const auto queries = static_cast<std::int32_t>(shape.sequence);
  const auto keys = static_cast<std::int32_t>(shape.keys);
  const AttentionTasks tasks = plan.tasks();
  const std::int32_t ctas = std::max(1, std::min(machine.sms, tasks.tasks()));
  return play(tasks, std::vector(static_cast<std::size_t>(ctas), machine.launch),
              [&](const AttentionTasks::Place& place, double begin) {
                const std::int32_t end = std::min(queries, (place.tile + 1) * kAttentionTileQueries);
                return begin + sweep_seconds(shape, machine, plan.tile_keys(),
                                             attention_visible_keys(end, queries, keys, shape.causal));
              });
}

/// Of the backward pass, one multiprocessor, for a tile of keys and a tile of queries of one head.
/// NOTES: within 5 % of what an H100 took for 64 and 128 columns (tests/perf/results), but where heads that
/// share keys have a causal mask, which took half as long again.
double backward_step_seconds(const AttentionShape& shape, const Machine& machine) {
  constexpr double kScores = kBackwardTileKeys * kBackwardTileQueries;
  const auto columns = static_cast<double>(shape.head_dim);
  const double products = 10 * columns / (machine.tensor_operations * machine.tensor_share);
  const double adds = kBackwardTileQueries * columns * sizeof(float) / machine.l2_bytes;
  return (kScores * (products + 2 * machine.softmax_cycles) + adds) / machine.clock;
}

/// Before the first task: outputs and their gradients, read once.
double backward_prepare_seconds(const AttentionShape& shape, const Machine& machine, std::int64_t queries) {
  return 4.0 * static_cast<double>(shape.batch * shape.heads * queries * shape.head_dim) /
         machine.memory_bytes;
}

/// The tasks of a plan of the backward pass that is not plain.
struct BackwardSlotTasks {
  AttentionBackwardTaskList list;
  std::vector<AttentionBackwardSlot> slots;

  std::int32_t tasks() const { return slots.back().tasks_before; }
  AttentionBackwardTaskList::Place place(std::int32_t task) const {
    const auto count = static_cast<std::int32_t>(slots.size()) - 1;
    const auto at = static_cast<std::size_t>(attention_slot_of(slots.data(), count, task));
    return list.place(slots[at], task - slots[at].tasks_before);
  }
  static AttentionBackwardWalk walk(const AttentionBackwardTaskList::Place& place) { return place.walk; }
};

/// The tasks of RingBackwardTasks.
struct RingBackwardPlaces {
  const RingBackwardPlan& plan;

  std::int32_t tasks() const { return plan.tasks.tasks(); }
  RingBackwardTasks::Place place(std::int32_t task) const { return plan.place(task); }
};

/// Keys of a rank that a tile of queries meets: `own_keys` of its own one. Of packed sequences as many as of
/// one that is as long as they are on average; with a mask half of them.
std::int32_t met_keys(const RingGpuPlan& plan, std::int32_t source, std::int32_t own_keys, int part) {
  if (plan.packed()) return plan.average_rows() / ring_parts(plan.shape.causal);
  return source == plan.gather.rank ? own_keys : plan.gather.visible_keys(source, part);
}

/// When the sums of other nodes have come, of tasks that end at `far_end`; 0 on one node. They are made, and
/// have the wire, when keys and values have come.
double sums_of_nodes_come(const RingBackwardPlan& plan, const Arrivals& arrivals, double far_end) {
  if (plan.gather().rails() == 0) return 0;
  const Machine& machine = plan.ring.machine;
  const auto bytes = static_cast<double>(plan.wire_bytes() - plan.ring.wire_bytes());
  const double summed = plan.summed_bytes() / (plan.sum_ctas * machine.sum_bytes);
  const double chunk = std::min(bytes, plan.puts.chunk_units * static_cast<double>(plan.puts.unit_bytes));
  const double last = machine.push_latency + chunk / machine.nic + machine.wire_latency;
  return std::max(far_end, arrivals.far.last + std::max(summed, bytes / machine.nic)) + last;
}

}  // namespace

double estimated_seconds(const AttentionPlan& plan, const Machine& machine) {
  const double ends = plan.plain() ? plain_end(plan, machine) : slots_end(plan, machine);
  const double memory = memory_seconds(plan.shape, machine, plan.shape.sequence);
  return std::max(ends, machine.launch + memory) + machine.last_stores;
}

double estimated_seconds(const RingGpuPlan& plan) {
  const KvGatherPlan& gather = plan.gather;
  const Machine& machine = plan.machine;
  const Arrivals arrivals = arrivals_of(plan);
  std::vector<double> free_at(static_cast<std::size_t>(plan.ctas - plan.idle_ctas()), machine.launch);
  std::fill_n(free_at.begin(), plan.comm_ctas - plan.idle_ctas(), arrivals.pushed);
  const auto end = [&](const AttentionTasks::Place& place, double begin) {
    const int part = place.tile < plan.first_tiles ? 0 : 1;
    const std::int64_t kv_head = place.head / plan.group();
    const auto head = static_cast<double>(place.batch * gather.kv_heads + kv_head);
    const double heads = gather.heads;
    const std::int32_t own = gather.part_rows[gather.rank][part];
    const std::int32_t in_part =
        std::min(own, (place.tile - part * plan.first_tiles + 1) * kAttentionTileQueries);
    const std::int32_t own_keys =
        plan.shape.causal ? plan.part_begin(part) + in_part : gather.positions(gather.rank);
    double now = begin + sweep_seconds(plan.shape, machine, plan.tile_keys(),
                                       met_keys(plan, gather.rank, own_keys, part));
    for (std::int32_t step = 1; step < gather.world; ++step) {
      const std::int32_t source = gather.source(step), keys = met_keys(plan, source, 0, part);
      if (keys == 0) continue;
      const auto arrival = [&](double come) {
        return step <= gather.near ? arrivals.near_at(step, come, heads) : arrivals.far.at(come / heads);
      };
      const double whole = gather.positions(source);
      now = std::max(now, arrival(head)) + sweep_seconds(plan.shape, machine, plan.tile_keys(), keys);
      now = std::max(now, arrival(head + keys / whole));
    }
    return now;
  };
  const double ends = play(plan.tasks, std::move(free_at), end);
  const double all = std::max({machine.launch, arrivals.near.last, arrivals.far.last});
  const double memory = memory_seconds(plan.shape, machine, gather.positions(gather.rank));
  return std::max({ends, all, machine.launch + memory}) + machine.last_stores;
}

double estimated_seconds(const AttentionBackwardPlan& plan, const Machine& machine) {
  const AttentionShape& shape = plan.shape;
  const double begin = machine.launch + backward_prepare_seconds(shape, machine, shape.sequence);
  const double step = static_cast<double>(plan.group()) * backward_step_seconds(shape, machine);
  const auto end = [&](const auto& tasks) {
    const std::int32_t ctas = std::max(1, std::min(machine.sms, tasks.tasks()));
    return play(tasks, std::vector(static_cast<std::size_t>(ctas), begin),
                [&](const auto& place, double now) { return now + tasks.walk(place).tiles() * step; });
  };
  const double ends = plan.plain()
                          ? end(plan.tasks())
                          : end(BackwardSlotTasks{plan.list(), plan.slots(AssumedLengths(shape).lengths())});
  return std::max(ends, begin) + machine.last_stores;
}

double estimated_seconds(const RingBackwardPlan& plan) {
  const KvGatherPlan& gather = plan.gather();
  const Machine& machine = plan.ring.machine;
  const Arrivals arrivals = arrivals_of(plan.ring);
  const double prepared = backward_prepare_seconds(plan.shape(), machine, plan.positions());
  // What adds up for other nodes does so for most of the launch.
  std::vector<double> free_at(static_cast<std::size_t>(plan.ring.ctas - plan.sum_ctas),
                              machine.launch + prepared);
  std::fill_n(free_at.begin(), plan.ring.comm_ctas - plan.sum_ctas, arrivals.pushed + prepared);
  const double step = static_cast<double>(plan.ring.group()) * backward_step_seconds(plan.shape(), machine);
  std::vector<bool> is_far(static_cast<std::size_t>(gather.world));
  for (std::int32_t s = gather.near + 1; s < gather.world; ++s)
    is_far[static_cast<std::size_t>(gather.source(s))] = true;
  double far_end = 0;
  const auto end = [&](const RingBackwardTasks::Place& place, double begin) {
    const bool own = place.source == gather.rank;
    const bool far = is_far[static_cast<std::size_t>(place.source)];
    const double arrived =
        own ? 0 : (far ? arrivals.far : arrivals.near).at((place.head + 1.0) / gather.heads);
    const double now = std::max(begin, arrived) + (plan.tasks.query_tiles() - place.first_query_tile) * step;
    if (far) far_end = std::max(far_end, now);
    return now;
  };
  const double ends = play(RingBackwardPlaces{plan}, std::move(free_at), end);
  const double others =
      gather.world > 1 ? machine.push_latency : 0;  // the last partial gradients on their way
  return std::max({machine.launch + prepared, arrivals.near.last, ends + others,
                   sums_of_nodes_come(plan, arrivals, far_end)}) +
         machine.last_stores;
}

}  // namespace mkernel::kernels
