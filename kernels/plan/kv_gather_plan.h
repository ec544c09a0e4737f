// Plan of the all-gather of keys and values: every rank pushes its own into the slabs of all others of its
// node, and puts them into those of its rail peers, which push them on; and which of them its queries see.
// Pure; the same on host and device.
#pragma once

#include <cstdint>

#include "kernels/base/divisor.h"
#include "kernels/plan/push_gather_plan.h"
#include "kernels/plan/sm90_tile.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// Words in the operation's own workspace, data in the half of the lent one that a launch uses:
///   ready[source][tensor][chunk]  64-bit words: shares of the chunk that have come, over all launches
///   slab[source][tensor]          [batch, positions of the source, kv_heads * head_dim]
/// A tensor is 0 for keys, 1 for values. A chunk is a block of rows of one tensor, of all its heads; over
/// several nodes it is one put. A rank's own words and slab are used only when there is another node to put
/// from them: it has its keys and values in the caller's tensors.
///
/// What the halves rest on (base/lent_workspace.h): a launch ends when it has seen all chunks of all other
/// ranks, hence every source has at least one, if need be an empty one; and when its own puts are completed,
/// since the next but one overwrites what they are read from. So nothing is on its way to this rank any more
/// when a launch has ended, even where a mask hides what came.
struct KvGatherPlan {
  static constexpr std::int32_t kTensors = 2;
  /// Rows are pushed whole, each in one piece (cuda/comm/fan_out.cuh).
  static constexpr std::int64_t kMostRowBytes = 16384;

  std::int32_t world = 1, rank = 0, batch = 0;
  std::int32_t near = 0;  ///< other ranks of this node
  bool causal = false;
  std::int8_t sources[kMaxKernelRanks] = {};  ///< whose keys the queries meet, one rank after the other
  /// Positions that a source holds: of a causal sequence two parts, with all of the first before those of the
  /// second (plan/positions.h). Else the second part is empty.
  std::int32_t part_rows[kMaxKernelRanks][2] = {};
  RowParts row;                 ///< the keys, or the values, of one position; one part
  std::int32_t max_chunks = 1;  ///< of the source that has most
  Divisor block_rows;
  Divisor shares;  ///< CTAs that share every chunk: what a launch adds to each word

  MK_HOST_DEVICE std::int32_t positions(std::int32_t source) const {
    return part_rows[source][0] + part_rows[source][1];
  }
  MK_HOST_DEVICE std::int32_t rows(std::int32_t source) const { return batch * positions(source); }
  MK_HOST_DEVICE std::int32_t chunks(std::int32_t source) const {
    const std::int32_t count = block_rows.ceil(rows(source));
    return count > 0 ? count : 1;
  }
  /// Cuts all sources into chunks of so many rows.
  void cut(std::int32_t rows_of_chunk) {
    block_rows = rows_of_chunk;
    max_chunks = 1;
    for (std::int32_t source = 0; source < world; ++source)
      max_chunks = max_chunks < chunks(source) ? chunks(source) : max_chunks;
  }

  /// Other nodes: as many rail peers has every rank.
  MK_HOST_DEVICE std::int32_t rails() const { return world / (near + 1) - 1; }

  /// Value of a chunk's word from which the chunk of launch `epoch` is there.
  MK_HOST_DEVICE std::uint64_t count(std::uint64_t epoch) const { return (epoch + 1) * shares; }

  MK_HOST_DEVICE std::uint64_t ready_offset(std::int32_t source, std::int32_t tensor) const {
    return std::uint64_t{8} * (source * kTensors + tensor) * max_chunks;
  }
  MK_HOST_DEVICE std::uint64_t word_bytes() const { return ready_offset(world, 0); }
  MK_HOST_DEVICE std::uint64_t slab_offset(std::int32_t source, std::int32_t tensor) const {
    std::int64_t before = 0;
    for (std::int32_t s = 0; s < source; ++s) before += rows(s);
    const std::int64_t first = kTensors * before + std::int64_t{tensor} * (source < world ? rows(source) : 0);
    return static_cast<std::uint64_t>(first * row.row_bytes);
  }
  MK_HOST_DEVICE std::uint64_t data_bytes() const { return slab_offset(world, 0); }
  /// Where a chunk lies in its slab, and how long it is.
  MK_HOST_DEVICE std::uint64_t chunk_offset(std::int32_t chunk) const {
    return static_cast<std::uint64_t>(chunk * std::int64_t{block_rows} * row.row_bytes);
  }
  MK_HOST_DEVICE std::uint64_t chunk_bytes(std::int32_t source, std::int32_t chunk) const {
    const std::int32_t behind = rows(source) - chunk * block_rows, most = block_rows;
    return static_cast<std::uint64_t>((behind < most ? behind : most) * row.row_bytes);
  }

  /// A channel carries the chunks of a source in this order, keys before values: how many puts of `source`
  /// have arrived, over all launches, when that chunk of launch `epoch` has.
  MK_HOST_DEVICE std::uint64_t arrivals(std::uint64_t epoch, std::int32_t source, std::int32_t tensor,
                                        std::int32_t chunk) const {
    const std::uint64_t in_launch = static_cast<std::uint64_t>(chunk) * kTensors + tensor + 1;
    return epoch * puts(source) + in_launch;
  }
  /// Of a source to one rail peer, in a launch.
  MK_HOST_DEVICE std::uint64_t puts(std::int32_t source) const {
    return std::uint64_t{kTensors} * chunks(source);
  }

  /// Whose keys the queries meet at `step` 0 .. world - 1.
  MK_HOST_DEVICE std::int32_t source(std::int32_t step) const { return sources[step]; }
  /// How many keys of another source, from its first one on, the queries of this rank's part `part` see.
  /// Parts 0 of all ranks, from rank 0 on, make up the first half of a causal sequence; parts 1, from the
  /// last rank on, make up the second one. So a query sees all of a part of another rank, or none of it.
  MK_HOST_DEVICE std::int32_t visible_keys(std::int32_t source, std::int32_t part) const {
    if (!causal) return positions(source);
    const std::int32_t first = part_rows[source][0], second = part_rows[source][1];
    if (part == 0) return source < rank ? first : 0;
    return first + (source > rank ? second : 0);
  }
};

}  // namespace mkernel::kernels
