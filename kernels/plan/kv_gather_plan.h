// Plan of the all-gather of keys and values: every rank pushes its own into the slabs of all others of its
// node, and puts them into those of its rail peers, which push them on; and which of them its queries see.
// Pure; the same on host and device.
#pragma once

#include <cstdint>

#include "kernels/base/divisor.h"
#include "kernels/plan/sm90_tile.h"
#include "proto/abi/host_device.h"

namespace mkernel::kernels {

/// How keys and values are cut into chunks, and in which turns a rank pushes them: what is the same for every
/// source.
///
/// Heads are those of keys and values, of all batch entries: head batch_entry * kv_heads + kv_head. The rows
/// of a head are its positions. A chunk is a block of rows of one head of one tensor, and number head *
/// blocks
/// + block of its source and tensor. All sources have equally many: blocks behind the last row of a source
/// are short or empty. Chunks travel in the order of their numbers, which is that in which tasks need them
/// (plan/attention_tasks.h), keys before values: so the first heads are whole after a fraction of the time
/// that the gather takes.
struct KvChunks {
  static constexpr std::int32_t kAllTargets = -1;
  struct Turn {
    std::int32_t stream, chunk;
    std::int32_t target;  ///< where it goes: 0 is the next rank of the node; or kAllTargets
  };

  static constexpr std::int32_t kTensors = 2;
  /// A CTA pushes its share of a chunk in pieces of whole rows (cuda/comm/fan_out.cuh).
  static constexpr std::int32_t kPieceBytes = 16384;

  std::int32_t world = 1;
  std::int32_t near = 0;       ///< other ranks of this node
  std::int32_t heads = 0;      ///< batch * kv_heads
  Divisor kv_heads;            ///< of a batch entry
  std::int32_t row_bytes = 0;  ///< keys, or values, of one head of one position
  Divisor block_rows;          ///< of a chunk; the last one of a head may have fewer
  Divisor blocks;              ///< of a head
  Divisor shares;              ///< CTAs that share every chunk: what a launch adds to each word
  /// Over several nodes a chunk of every rail peer is pushed on after each so many own ones: about as many as
  /// are pushed while one comes over the wire.
  Divisor own_between = 1;
  /// On one node the chunks of so many first heads go to the next rank, then to the one behind it, and so on.
  /// The tasks that come first meet the sources in this order, all at the same time: with all the links for
  /// one source after the other each of them comes before it is needed.
  std::int32_t first_heads = 0;

  /// Other nodes: as many rail peers has every rank.
  MK_HOST_DEVICE std::int32_t rails() const { return world / (near + 1) - 1; }
  MK_HOST_DEVICE std::int32_t piece_rows() const { return kPieceBytes / row_bytes; }

  /// Of one tensor of a source.
  MK_HOST_DEVICE std::int32_t chunks() const { return heads * blocks; }
  MK_HOST_DEVICE std::int32_t head_of(std::int32_t chunk) const { return chunk / blocks; }
  MK_HOST_DEVICE std::int32_t first_chunk(std::int32_t head) const { return head * blocks; }
  /// Which holds a row of that head.
  MK_HOST_DEVICE std::int32_t chunk_of(std::int32_t head, std::int32_t row) const {
    return first_chunk(head) + row / block_rows;
  }
  /// The first row of a chunk, in its head.
  MK_HOST_DEVICE std::int32_t chunk_row(std::int32_t chunk) const { return chunk % blocks * block_rows; }
  /// Of a source that holds so many positions.
  MK_HOST_DEVICE std::int32_t rows_from(std::int32_t chunk_row, std::int32_t positions) const {
    const std::int32_t behind = positions - chunk_row, most = block_rows;
    return behind < 0 ? 0 : behind < most ? behind : most;
  }

  /// What a rank pushes, one turn after the other: streams 0 and 1 are its own keys and values; of those that
  /// follow, each two are those of a rail peer, as chunks of the same number come. A turn of another node's
  /// chunk waits for no turn but earlier ones of that peer.
  MK_HOST_DEVICE std::int32_t streams() const { return kTensors * (1 + rails()); }
  /// A rank alone pushes nothing.
  MK_HOST_DEVICE std::int32_t turns() const { return world > 1 ? more_turns() + streams() * chunks() : 0; }
  MK_HOST_DEVICE Turn turn(std::int32_t index) const {
    const std::int32_t more = more_turns(), first = first_turns();
    if (index >= more + first) return turn_to_all(index - more);
    const std::int32_t in_target = index % first;
    return {in_target % kTensors, in_target / kTensors, index / first};
  }

 private:
  /// To one rank of the first heads; and how many more there are because they go to each by itself.
  MK_HOST_DEVICE std::int32_t first_turns() const { return kTensors * first_chunk(first_heads); }
  MK_HOST_DEVICE std::int32_t more_turns() const { return first_heads > 0 ? (near - 1) * first_turns() : 0; }
  /// As if all heads went to all ranks at a time.
  MK_HOST_DEVICE Turn turn_to_all(std::int32_t index) const {
    const std::int32_t far = kTensors * rails(), own = kTensors * own_between, laps = chunks() / own_between;
    const std::int32_t lap = index / (own + far), in_lap = index % (own + far);
    if (lap < laps) {
      if (in_lap >= own) return {kTensors + in_lap - own, lap, kAllTargets};
      return {in_lap % kTensors, lap * own_between + in_lap / kTensors, kAllTargets};
    }
    // What is left when the own chunks end, and then of the others'.
    const std::int32_t left = index - laps * (own + far), own_left = kTensors * (chunks() % own_between);
    if (left < own_left) return {left % kTensors, laps * own_between + left / kTensors, kAllTargets};
    return {kTensors + (left - own_left) % far, laps + (left - own_left) / far, kAllTargets};
  }
};

/// Words in the operation's own workspace, data in the half of the lent one that a launch uses:
///   ready[source][tensor][chunk]  64-bit words: shares of the chunk that have come, over all launches
///   slab[source][tensor]          [batch * kv_heads, positions of the source, head_dim]
/// A tensor is 0 for keys, 1 for values. A chunk lies together in the slab; over several nodes it is one put.
/// A rank's own words and slab are used only when there is another node to put from them: it has its keys and
/// values in the caller's tensors.
///
/// What the halves rest on (base/lent_workspace.h): a launch ends when it has seen all chunks of all other
/// ranks, hence every source has at least one, if need be an empty one; and when its own puts are completed,
/// since the next but one overwrites what they are read from. So nothing is on its way to this rank any more
/// when a launch has ended, even where a mask hides what came.
struct KvGatherPlan : KvChunks {
  std::int32_t rank = 0;
  bool causal = false;
  std::int8_t sources[kMaxKernelRanks] = {};  ///< whose keys the queries meet, one rank after the other
  /// Positions that a source holds: of a causal sequence two parts, with all of the first before those of the
  /// second (plan/positions.h). Else the second part is empty.
  std::int32_t part_rows[kMaxKernelRanks][2] = {};

  MK_HOST_DEVICE std::int32_t positions(std::int32_t source) const {
    return part_rows[source][0] + part_rows[source][1];
  }
  /// Of a slab: below 2^31.
  MK_HOST_DEVICE std::int32_t rows(std::int32_t source) const { return heads * positions(source); }
  MK_HOST_DEVICE std::int32_t chunk_rows(std::int32_t source, std::int32_t chunk) const {
    return rows_from(chunk_row(chunk), positions(source));
  }
  /// Cuts all heads of all sources into chunks of so many rows.
  void cut(std::int32_t rows_of_chunk) {
    block_rows = rows_of_chunk;
    std::int32_t most = 1;
    for (std::int32_t source = 0; source < world; ++source)
      most = most < positions(source) ? positions(source) : most;
    blocks = block_rows.ceil(most);
  }

  /// Value of a chunk's word from which the chunk of launch `epoch` is there.
  MK_HOST_DEVICE std::uint64_t count(std::uint64_t epoch) const { return (epoch + 1) * shares; }

  MK_HOST_DEVICE std::uint64_t ready_offset(std::int32_t source, std::int32_t tensor) const {
    return std::uint64_t{8} * (source * kTensors + tensor) * chunks();
  }
  MK_HOST_DEVICE std::uint64_t word_bytes() const { return ready_offset(world, 0); }
  MK_HOST_DEVICE std::uint64_t slab_offset(std::int32_t source, std::int32_t tensor) const {
    std::int64_t before = 0;
    for (std::int32_t s = 0; s < source; ++s) before += rows(s);
    const std::int64_t first = kTensors * before + std::int64_t{tensor} * (source < world ? rows(source) : 0);
    return static_cast<std::uint64_t>(first * row_bytes);
  }
  MK_HOST_DEVICE std::uint64_t data_bytes() const { return slab_offset(world, 0); }
  /// Where a chunk lies in its slab, and how long it is.
  MK_HOST_DEVICE std::uint64_t chunk_offset(std::int32_t source, std::int32_t chunk) const {
    const std::int64_t held = positions(source), row = chunk_row(chunk);
    return static_cast<std::uint64_t>((head_of(chunk) * held + (row < held ? row : held)) * row_bytes);
  }
  MK_HOST_DEVICE std::uint64_t chunk_bytes(std::int32_t source, std::int32_t chunk) const {
    return static_cast<std::uint64_t>(std::int64_t{chunk_rows(source, chunk)} * row_bytes);
  }

  /// A channel carries the chunks of a source in the order of their numbers, keys before values: how many of
  /// its puts have arrived, over all launches, when that chunk of launch `epoch` has.
  MK_HOST_DEVICE std::uint64_t arrivals(std::uint64_t epoch, std::int32_t tensor, std::int32_t chunk) const {
    const std::uint64_t in_launch = static_cast<std::uint64_t>(chunk) * kTensors + tensor + 1;
    return epoch * puts() + in_launch;
  }
  /// Of a source to one rail peer, in a launch.
  MK_HOST_DEVICE std::uint64_t puts() const { return std::uint64_t{kTensors} * chunks(); }

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
