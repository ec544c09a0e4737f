// Plan of the backward pass of ring attention, of both executors.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/ops/ring_attention/gpu_plan.h"
#include "kernels/plan/key_partials_plan.h"
#include "kernels/plan/put_key_partials_plan.h"
#include "kernels/plan/ring_backward_tasks.h"
#include "mkernel/ops.h"

namespace mkernel::kernels {

/// KeyPartialsPlan's, of what `writer` has of the owner's keys.
std::int32_t key_slot(const Topology& topology, std::uint32_t writer, std::uint32_t owner);

/// Pure; the same on every rank but for what is of this rank. Keys and values are gathered as in the forward
/// pass, and every rank computes what its queries give of all gradients. Those of its queries are whole;
/// those of keys and values go to their owners, over several nodes through the rail peers of these.
struct RingBackwardPlan {
  RingGpuPlan ring;  ///< of the forward pass: who gathers what, and how
  RingBackwardTasks tasks;
  KeyPartialsPlan partials;
  // Over several nodes.
  PutKeyPartialsPlan puts;
  std::int32_t far_tiles = 0;  ///< RingBackwardTasks::far_tiles()
  /// On the cuda executor: the first CTAs of the grid, which add up what is put when they have pushed. All
  /// but the first one compute when nothing is left of it; what computes adds up, too, when there are no more
  /// tasks.
  std::int32_t sum_ctas = 0;

  const AttentionShape& shape() const { return ring.shape; }
  const KvGatherPlan& gather() const { return ring.gather; }
  /// Positions that this rank holds.
  std::int32_t positions() const { return gather().positions(gather().rank); }

  RingBackwardTasks::Place place(std::int32_t task) const { return tasks.place(gather(), task, far_tiles); }

  /// Units of a head that this rank puts to the rail peer `distance` nodes behind this one, and those that
  /// come from there; the most chunks that are put to one peer.
  std::int32_t put_units(std::int32_t distance) const;
  std::int32_t come_units(std::int32_t distance) const;
  std::int32_t most_put_chunks() const;

  /// Of the group's channels, between rail peers only: keys and values, and sums of their gradients.
  std::uint32_t lanes() const { return gather().rails() > 0 ? 2 : 0; }
  std::uint64_t data_bytes() const { return puts.data_bytes(); }
  /// Bytes that this rank puts in every launch.
  std::uint64_t wire_bytes() const;
  /// That adding up what is put reads and stores.
  double summed_bytes() const;

  /// What is added up for rail peers, a unit at a time: head after head, of each all peers, in the order in
  /// which it is put.
  struct PutUnit {
    std::int32_t distance = 0, owner = 0;  ///< the owner's node is so many behind this one
    std::int32_t part = 0;
    std::int32_t unit = 0;    ///< KeyPartialsPlan's
    std::int32_t packed = 0;  ///< PutKeyPartialsPlan's
    std::int32_t rows = 0;
  };
  std::int32_t all_put_units() const;
  PutUnit put_unit(std::int32_t number) const;

  /// What is added up of own keys, in the order in which tasks take them.
  struct OwnUnit {
    RingBackwardTasks::Place place;  ///< the task that computes these keys
    std::int32_t row = 0, rows = 0;  ///< the first row in its part; no rows behind the part
    std::int32_t unit = 0;           ///< KeyPartialsPlan's
    std::int32_t in_head = 0;        ///< number of the unit in its head
  };
  std::int32_t all_own_units() const { return tasks.own_tasks() * kTaskUnits; }
  OwnUnit own_unit(std::int32_t number) const;
  static constexpr std::int32_t kTaskUnits = kBackwardTileKeys / KeyPartialsPlan::kRows;

  /// Again what follows from how `ring.gather` is cut and from `head_dim`.
  void lay_out();
  /// What both executors have the same; `ring` is cut already.
  static RingBackwardPlan of(RingGpuPlan ring);

  /// On the cuda executor, as RingGpuPlan::make().
  static Result<RingBackwardPlan> make(const AttentionShape& shape, const Topology& topology,
                                       std::uint32_t rank, const Machine& machine,
                                       const RingAttentionOptions& options = {});

  std::string signature() const;
};

}  // namespace mkernel::kernels
